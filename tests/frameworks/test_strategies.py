"""The strategies keep their contract: the bits are those of one process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import trainwright
from trainwright.testing.strategy_suite import StrategySuite
from trainwright.world import Mesh


@pytest.mark.services
class TestDataParallel(StrategySuite):
    strategy = "ddp"


class TestDivided(StrategySuite):
    """Two processes that own whole tensors, rows of some, and columns of others."""

    strategy = "ddp"
    model = "divided_models:Net"  # which puts its strategy in the place of `ddp`

    def test_files_hold_blocks_and_predict_as_whole_ones(self, alone: dict[str, Any], tmp_path: Path) -> None:
        result = self._result(self._train(tmp_path, self.processes))
        self._compare(result, alone)
        run = trainwright.get(result["run_id"], runs_dir=tmp_path / "runs")
        assert run.manifest["environment"]["mesh"] == {"pipeline": 1, "data": 2, "shard": 1, "tensor": 1}
        for kind in ("checkpoints", "best"):
            newest = max((run.path / kind).iterdir())
            with safe_open(newest / "weights.1.safetensors", "pt") as file:
                blocks = json.loads(file.metadata()["blocks"])
            assert {len(one["whole"]) for one in blocks.values()} == {1, 2}
            assert any(one["offset"][-1] for one in blocks.values() if len(one["whole"]) == 2), "columns"
        rows = np.ones((3, 64), np.float32)
        whole = trainwright.load(Path(alone["path"]), trust=True)
        assert trainwright.load(run, trust=True).outputs(rows).tolist() == whole.outputs(rows).tolist()


def test_the_coordinates_of_processes_on_a_mesh() -> None:
    mesh = Mesh(pipeline=2, data=3, tensor=4)
    assert mesh.size == 24
    numbers = [[place.pipeline, place.data, place.tensor] for place in map(mesh.coordinates, range(24))]
    assert numbers == np.stack(np.unravel_index(range(24), (2, 3, 4)), 1).tolist()
    assert {place.shard for place in map(mesh.coordinates, range(24))} == {0}
