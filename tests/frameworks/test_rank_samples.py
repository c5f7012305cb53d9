"""Two processes that train on samples read by workers: each reads its own share, and names what fails."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from small_runs import SMALL
from trainwright.errors import TrainingError
from trainwright.order import SampleOrder, WeightedDraws

pytestmark = [pytest.mark.slow, pytest.mark.soak]  # four processes of torch each
ROWS, BATCH, STEPS = 96, 12, 4  # within one epoch


class Logged:
    """A map-style data set that writes down what workers read, and fails at item 5 as `FAULT` says."""

    classes = (0, 1)
    weights = np.arange(ROWS) % 3

    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        if multiprocessing.parent_process() is not None and self.split == "train":
            with open(Path(os.environ["FLAGS"]) / f"rank-{os.environ['RANK']}", "a") as file:
                file.write(f"{i}\n")
            if i == 5 and os.environ.get("FAULT") == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if i == 5 and os.environ.get("FAULT") == "hangs":
                time.sleep(600)
        return np.array([i % 7, np.random.rand()], np.float32), i % 2


def config(**data: Any) -> dict[str, Any]:
    training = {**SMALL["training"], "max_steps": STEPS, "batch_size": BATCH, "microbatch_size": 4}
    return {
        **SMALL,
        "data": {"type": "test_rank_samples:Logged", **data},
        "training": training,
        "distributed": {"virtual": {"data": 2}},
        "evaluation": {"every_n_steps": 4},
    }


@pytest.fixture(autouse=True)
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return tmp_path


@pytest.mark.parametrize("sampling", [None, {"weight": "weights"}], ids=["each once", "drawn"])
def test_each_process_reads_its_own_share_and_the_bits_are_those_of_one(
    sampling: Any, tmp_path: Path
) -> None:
    alone = trainwright.train(config(sampling=sampling), runs_dir=tmp_path / "alone")
    both = config(sampling=sampling, workers=2, prefetch=1)
    run = trainwright.train(both, {"distributed.nproc": 2}, runs_dir=tmp_path / "both")
    assert run.digest == alone.digest
    draws = None if sampling is None else WeightedDraws(Logged.weights.astype(float))
    order = SampleOrder(ROWS, BATCH, SMALL["experiment"]["seed"], draws=draws)
    for rank in range(2):
        half = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
        shares = [order.batch(step)[half].tolist() for step in range(STEPS + 1)]
        read = [int(line) for line in (tmp_path / f"rank-{rank}").read_text().split()]
        assert set(np.concatenate(shares[:STEPS]).tolist()) <= set(read)
        assert set(read) <= set(np.concatenate(shares).tolist())  # what is read ahead is of the next step


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dies", r"data worker \d .*was killed by SIGKILL while it read item 5 of the train dataset"),
        ("hangs", r"data worker \d .*hangs: it has read item 5 of the train dataset"),
    ],
)
def test_a_worker_of_one_process_that_fails_is_named(
    fault: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", fault)
    settings = {"distributed.nproc": 2, "distributed.max_restarts": 0, "training.max_steps": 16}
    with pytest.raises(TrainingError, match=message):
        trainwright.train(config(workers=2, timeout=2.0), settings, runs_dir=tmp_path / "runs")
