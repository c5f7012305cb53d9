"""Small studies: runs of a tenth of a second, of the toy framework."""

import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from trainwright.callbacks.base import Callback, RunView
from trainwright.digest import write_file
from trainwright.studies.study import Study

# 150 rows; with 3 folds 90 train, 10 validate and 50 test.
TOY: dict[str, Any] = {
    "experiment": {"name": "small", "seed": 3},
    "data": {"type": "iris"},
    "model": {"type": "toy", "params": {"noise": 0.1}},
    "training": {"epochs": 3, "batch_size": 16, "learning_rate": 0.1, "threads": 1},
    "checkpoint": {"every_n_steps": 5, "every_n_minutes": None},
    "logging": {"every_n_steps": 1},
}


class SignalInRun(Callback):
    """Sends this process a signal after a step of the n-th run that it sees, counted from 0."""

    def __init__(self, run: int, step: int, signum: signal.Signals = signal.SIGTERM) -> None:
        self._run, self._step, self._signum, self._seen = run, step, signum, -1

    def on_start(self, run: RunView) -> None:
        self._seen += 1

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if (self._seen, step) == (self._run, self._step):
            os.kill(os.getpid(), self._signum)


def signal_after(run: int, signum: signal.Signals = signal.SIGTERM) -> Callable[[Mapping[str, Any]], None]:
    """A `watch` that sends this process a signal when the n-th run has ended: between two runs."""
    seen = iter(range(100))

    def watch(_: Mapping[str, Any]) -> None:
        if next(seen) == run:
            os.kill(os.getpid(), signum)

    return watch


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Let no file of a checkpoint be written after so many, nor the records of a study."""
    written: list[Any] = []
    update = Study.update

    def is_full() -> bool:
        return len(written) > after

    def write(*args: Any) -> Any:
        written.append(args)
        if is_full():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_file(*args)

    def update_unless_full(study: Study, **values: Any) -> None:
        if is_full():
            raise OSError(errno.ENOSPC, "No space left on device")
        update(study, **values)

    with pytest.MonkeyPatch.context() as disk:
        disk.setattr("trainwright.engine.checkpoint.write_file", write)
        disk.setattr("trainwright.studies.study.Study.update", update_unless_full)
        yield
