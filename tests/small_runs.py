"""Small real runs, for the tests of whatever trains.

On iris, half a second each, with all that is random switched on.
"""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.callbacks.base import Callback
from trainwright.engine.saver import Saver
from trainwright.records.journal import evaluations, losses, read
from trainwright.records.listing import all_runs
from trainwright.runs.run import Run
from trainwright.storage.log import Log
from trainwright.storage.run_files import is_of_checkpoint
from trainwright.storage.seals import whole_file
from trainwright.stores.local import LocalStore

# 120 training rows: 8 steps in an epoch. No cadence divides another.
SMALL: dict[str, Any] = {
    "experiment": {"name": "small", "seed": 3},
    "data": {"type": "iris"},
    "model": {"type": "mlp", "params": {"hidden": [16], "dropout": 0.2}},
    "training": {"max_steps": 30, "batch_size": 16, "learning_rate": 0.01, "threads": 1},
    "evaluation": {"every_n_steps": 7, "batch_size": 4},
    "checkpoint": {"every_n_steps": 5, "every_n_minutes": None},
    "logging": {"every_n_steps": 1},
}


class SignalAt(Callback):
    """Sends this process a signal after a step; with the config above every step is logged."""

    def __init__(self, step: int, signum: signal.Signals = signal.SIGTERM) -> None:
        self._step = step
        self._signum = signum

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step:
            os.kill(os.getpid(), self._signum)


@contextmanager
def every_save_on_disk() -> Iterator[None]:
    """Has the loop wait for each save.

    Such short runs are faster than the disk, and most saves would be coalesced.
    """
    save = Saver.save

    def save_and_wait(saver: Saver, *args: Any, **how: Any) -> None:
        save(saver, *args, **how)
        saver.drain()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saver, "save", save_and_wait)
        yield


class Crash(BaseException):
    """Ends a run as a crash would: nothing that catches errors catches it."""


class CrashAt(Callback):
    """Crashes after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step:
            raise Crash


def preempted(runs: Path, overrides: Mapping[str, Any] | None = None, *, at: int = 13, **objects: Any) -> Run:
    """A run that SIGTERM ended after step `at`."""
    run = trainwright.train(SMALL, overrides or {}, runs_dir=runs, callbacks=[SignalAt(at)], **objects)
    assert (run.status, run.result["steps"]) == ("preempted", at)
    return run


def crashed(runs: Path, overrides: Mapping[str, Any] | None = None, *, at: int = 13, **objects: Any) -> Run:
    """A run that died after step `at`, all its saves done.

    With the config above, after 13, those of 5 and 10.
    """
    try:
        with every_save_on_disk():
            trainwright.train(SMALL, overrides or {}, runs_dir=runs, callbacks=[CrashAt(at)], **objects)
    except Crash:
        return trainwright.get("last", runs_dir=runs)
    raise AssertionError("it did not crash")


class ImageAt(Callback):
    """Copies the run directory after a step: what a power cut would leave there."""

    def __init__(self, step: int, runs: Path, image: Path) -> None:
        self._step, self._runs, self._image = step, runs, image

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step:
            (run,) = all_runs(self._runs)
            shutil.copytree(run.path, self._image / run.path.relative_to(self._runs))


def whole_and_resumed(
    folder: Path, overrides: Mapping[str, Any] | None = None, *, at: int = 13, **objects: Any
) -> tuple[Run, Run]:
    """The uninterrupted run, and one that goes on from what was on the disk when step `at` was made.

    With the config above and 13, from the checkpoint of step 10. One training serves both.
    """
    whole, cut = folder / "whole", folder / "cut"
    with every_save_on_disk():
        run = trainwright.train(
            SMALL, overrides or {}, runs_dir=whole, callbacks=[ImageAt(at, whole, cut)], **objects
        )
    image = trainwright.get("last", runs_dir=cut)
    assert image.status == "crashed"
    return run, trainwright.resume(image, **objects, trust=True)  # it lies elsewhere than it was made


def journal_values(run: Run) -> tuple[dict[int, float], list[Any]]:
    """What the journal says that the inputs alone decide.

    The loss of each step, and the values of each evaluation.
    """
    records = list(read(run.path / "journal"))
    logged = [(r["step"], r["values"]) for r in records if r["kind"] == "metrics"]
    # A slow run also logs what it takes of the machine, as `system_...`.
    train_losses = [(step, values["train_loss"]) for step, values in logged if "train_loss" in values]
    return losses(records), [*evaluations(records), *train_losses]


def assert_same(run: Run, whole: Run) -> None:
    """That a run came to the bits of the uninterrupted one, and that its journal tells the same."""
    same = ("status", "steps", "digest", "metrics", "best", "evaluated")
    assert {key: run.result[key] for key in same} == {key: whole.result[key] for key in same}
    assert journal_values(run) == journal_values(whole)


def checkpoints(run: Run) -> list[Path]:
    """The folders of the resume checkpoints, oldest first."""
    return sorted((run.path / "checkpoints").iterdir())


def flip(path: Path) -> None:
    """Flips one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def reseal(run: Path) -> None:
    """Have the log of a run seal its checkpoints as they are now, as whoever can write it can."""
    log = Log(LocalStore(run))
    head = log.head()
    assert head is not None
    there = [name for name in head.files if is_of_checkpoint(name) and (run / name).is_file()]
    sealed = {name: whole_file(run / name, 3) for name in there}
    log.delete(head.number)
    log.write(head.model_copy(update={"files": head.files | sealed}))
