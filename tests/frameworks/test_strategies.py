"""The strategies keep their contract: the bits are those of one process."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import trainwright
from trainwright.errors import InputError
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.layout import address, local
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.records.run_dir import RunDir
from trainwright.testing.strategy_suite import StrategySuite
from trainwright.world import Mesh


@pytest.mark.services
class TestDataParallel(StrategySuite):
    strategy = "ddp"


@pytest.mark.services
class TestDivided(StrategySuite):
    """Two processes that own whole tensors, rows of some, and columns of others."""

    strategy = "ddp"
    model = "divided_models:Net"  # which puts its strategy in the place of `ddp`

    def test_a_process_that_does_not_see_the_folder_sends_its_parts(
        self, alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Over TCP, to the main process, which writes them; also after the death of one of the two."""
        monkeypatch.setenv("FAR_APART", "1")
        result = self._result(self._train(tmp_path, self.processes, kill=self._call(1, self.processes, 13)))
        self._compare(result, alone)
        for kind in ("checkpoints", "best"):
            newest = max((Path(result["path"]) / kind).iterdir())
            assert (newest / "weights.1.safetensors").stat().st_size > 100_000


@pytest.mark.services
def test_files_hold_blocks_and_predict_as_whole_ones(tmp_path: Path) -> None:
    """Also after the death of one of the two processes."""
    suite = TestDivided()
    for name in ("alone", "divided"):
        (tmp_path / name).mkdir()
    alone = suite._result(suite._train(tmp_path / "alone", 1))
    result = suite._result(suite._train(tmp_path / "divided", 2, kill=suite._call(1, 2, 13)))
    suite._compare(result, alone)
    run = trainwright.get(result["run_id"], runs_dir=tmp_path / "divided" / "runs")
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


ACME = """
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.state.snapshot import Files, Owned

class Acme(DataParallel):
    pass

class Apart(Strategy):
    "Forgets the gradients of the other process."
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of a package that registers two strategies."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme-1.0.dist-info").mkdir()
    (tmp_path / "acme-1.0.dist-info" / "METADATA").write_text("Name: acme\nVersion: 1.0\n")
    (tmp_path / "acme-1.0.dist-info" / "entry_points.txt").write_text(
        "[trainwright.strategies]\nacme = acme_strategy:Acme\napart = acme_strategy:Apart\n"
    )
    module = tmp_path / "acme_strategy.py"
    module.write_text(ACME)
    return module


@pytest.mark.services
def test_the_code_of_a_strategy_is_an_input(acme: Path, tmp_path: Path) -> None:
    """Of one that the config names, and of one that a later attempt has had."""
    suite = TestDataParallel()
    killed = suite._train(
        tmp_path, 1, "distributed.max_restarts=0", "training.max_steps=12", kill=suite._call(0, 1, 7)
    )
    assert killed.returncode != 0
    (tmp_path / "killed").unlink()
    (run,) = (tmp_path / "runs" / "strategy").iterdir()
    words = "distributed.nproc=2", "distributed.strategy=acme", "distributed.max_restarts=0", "--trust"
    again = suite._command(tmp_path, "resume", run.name, *words, kill=suite._call(1, 2, 3))
    assert again.returncode not in (0, 2), again.stderr
    acme.write_text(ACME + "\n# edited\n")
    refused = suite._command(tmp_path, "resume", run.name, *words)
    assert refused.returncode == 2
    assert "module acme_strategy" in json.loads(refused.stdout)["error"]["message"]


@pytest.mark.services
def test_processes_that_differ_are_an_error_that_no_restart_mends(acme: Path, tmp_path: Path) -> None:
    suite = TestDataParallel()
    suite.strategy = "apart"
    failed = suite._train(tmp_path, 2, "training.max_steps=3")
    assert failed.returncode == 1, failed.stderr
    answer = json.loads(failed.stdout)["error"]
    assert "process 1 has a different state from process 0" in answer["message"]
    (path,) = (tmp_path / "runs" / "strategy").iterdir()
    run = RunDir(path)
    assert len(run.attempts()) == 1
    assert run.require_manifest().determinism.tier == "statistical"


def test_parts_of_a_model_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cpu:gloo,cuda:gloo")
    cuda = torch.device("cuda")
    Strategy(SimpleNamespace(mesh=Mesh(data=2)), device=cuda)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"distributed.backend: over gloo, .*; use nccl"):
        Strategy(SimpleNamespace(mesh=Mesh(shard=2)), device=cuda)  # type: ignore[arg-type]


def test_the_coordinates_of_processes_on_a_mesh() -> None:
    mesh = Mesh(pipeline=2, data=3, tensor=4)
    assert mesh.size == 24
    numbers = [[place.pipeline, place.data, place.tensor] for place in map(mesh.coordinates, range(24))]
    assert numbers == np.stack(np.unravel_index(range(24), (2, 3, 4)), 1).tolist()
    assert {place.shard for place in map(mesh.coordinates, range(24))} == {0}


def test_a_state_of_blocks_is_read_without_gathering_it(tmp_path: Path) -> None:
    """PyTorch's FSDP2 makes `DTensor`s of the parameters, which have no memory of their own."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        whole = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
        module = copy.deepcopy(whole)
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        states = [trained_state(one) for one in (whole, module)]
        files, blocks = (one.files(weights_only=False) for one in states)
        assert isinstance(blocks["weights.safetensors"]["0.weight"], DTensor)
        for file, tensors in files.items():
            for name, tensor in tensors.items():
                assert torch.equal(local(blocks[file][name]), tensor), name
        unsaved = [one.unsaved(has_trained=True).items() for one in states]
        assert unsaved[0] <= unsaved[1], "besides what FSDP2 keeps in the modules"
        assert address(module[0].weight) != address(module[1].weight)
    finally:
        dist.destroy_process_group()


def trained_state(module: torch.nn.Module) -> TrainingState:
    """The state after a step."""
    optimizer = torch.optim.AdamW(module.parameters(), 0.1)
    module(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    return TrainingState(module, optimizer, Precision("fp32", torch.device("cpu")))
