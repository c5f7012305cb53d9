"""Processes that share parameters out among them (FSDP2) end with the bits of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from trainwright.records.run_dir import RunDir
from trainwright.testing.strategy_suite import CONFIG, StrategySuite

pytestmark = pytest.mark.services
SUITE = StrategySuite()
AVERAGED = ["training.ema.decay=0.9", "training.max_steps=12"]
PASSES = {1: 5, 2: 3}  # in training, of a process in a step; a process without samples makes one all the same


class TestFullySharded(StrategySuite):
    """A model with frozen, unused and transposed parameters, and a layer that is used twice."""

    strategy = "fsdp"


class TestAutomatic(StrategySuite):
    """The model fits into each process."""

    strategy = "auto"


class TestHybrid(StrategySuite):
    """Two groups of two processes."""

    strategy = "hsdp"
    processes = 4

    def _train(self, folder: Path, processes: int, *words: str, kill: str = "") -> Any:
        return super()._train(folder, processes, f"distributed.shard={min(2, processes)}", *words, kill=kill)


def train(folder: Path, processes: int, *words: str, model: str = "Net", kill: str = "") -> Any:
    """Batches of 13 are 6 and 7 samples, in microbatches of 3."""
    folder.mkdir(exist_ok=True)
    training = {**CONFIG["training"], "batch_size": 13, "microbatch_size": 3}
    config = {**CONFIG, "training": training, "model": {"type": f"sharded_models:{model}"}}
    (folder / "config.yaml").write_text(json.dumps(config))
    placement = [f"distributed.nproc={processes}", "distributed.strategy=fsdp", "distributed.virtual.data=2"]
    return SUITE._command(folder, "train", "config.yaml", *placement, *words, kill=kill)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the result of one process."""
    return SUITE._result(train(tmp_path_factory.mktemp("alone"), 1, *AVERAGED))


def test_unequal_parts_of_a_batch_and_an_average(alone: Any, tmp_path: Path) -> None:
    """The averages are in blocks, too."""
    result = SUITE._result(train(tmp_path, 2, *AVERAGED, kill=f"1@{7 * PASSES[2] + 1}"))
    assert result["attempts"] == 2
    SUITE._compare(result, alone)
    manifest = RunDir(Path(result["path"])).require_manifest()
    assert manifest.determinism.tier == "bitwise", manifest.determinism
    assert manifest.environment.mesh["shard"] == 2
    newest = max((Path(result["path"]) / "checkpoints").iterdir())
    with safe_open(newest / "optimizer.1.safetensors", "pt") as file:
        names = json.loads(file.metadata()["blocks"])
        assert {"trained/second.weight", "second.weight.exp_avg_sq"} <= names.keys()
        assert file.get_tensor("second.weight.exp_avg_sq").shape == (300, 601)


@pytest.mark.parametrize("first", [1, 2])
def test_a_run_goes_on_in_another_number_of_processes(first: int, alone: Any, tmp_path: Path) -> None:
    """Blocks are read from whole tensors, and whole tensors from blocks."""
    words = [*AVERAGED, "distributed.max_restarts=0"]
    killed = train(tmp_path, first, *words, kill=f"0@{7 * PASSES[first] + 1}")
    assert killed.returncode != 0, killed.stdout
    (run,) = (tmp_path / "runs" / "strategy").iterdir()
    result = SUITE._result(
        SUITE._command(tmp_path, "resume", run.name, f"distributed.nproc={3 - first}", "--trust")
    )
    SUITE._compare(result, alone)


def test_modules_are_gathered_by_their_size(alone: Any, tmp_path: Path) -> None:
    result = SUITE._result(train(tmp_path, 2, *AVERAGED, "distributed.min_num_params=30000"))
    SUITE._compare(result, alone)


def test_batch_normalization_over_the_processes(tmp_path: Path) -> None:
    """Each process computes one virtual rank."""
    words = ["training.batch_size=24", "training.microbatch_size=6", "training.max_steps=12"]
    results = [SUITE._result(train(tmp_path / str(n), n, *words, model="Normalized")) for n in (1, 2)]
    SUITE._compare(*results)


def test_more_virtual_ranks_than_processes_are_normalized_together(tmp_path: Path) -> None:
    """Each process holds all parameters then, as the log says."""
    words = ["training.batch_size=24", "training.microbatch_size=6", "training.max_steps=12"]
    runs = [
        train(tmp_path / str(n), n, *words, "distributed.virtual.data=4", model="Normalized") for n in (1, 2)
    ]
    SUITE._compare(*map(SUITE._result, runs))
    assert "each process holds all parameters, as with ddp" in runs[1].stderr
