"""A training process that sends itself a signal after a step, and exits as the command line does.

python stopping.py SIGNAL STEP CONFIG RUNS_DIR [CACHE]
python stopping.py SIGNAL STEP --resume RUN [CACHE [FOLDER NAME COUNT]]
python stopping.py SIGNAL STEP --work RUN [CACHE [FOLDER NAME COUNT]]

With FOLDER, it waits until COUNT processes have made files there, each with its NAME: to begin, and after a step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import trainwright
from trainwright.callbacks.base import Callback
from trainwright.errors import TrainwrightError
from trainwright.runs.run import Run


class SignalOnce(Callback):
    def __init__(self, signum: int, step: int) -> None:
        self._signum, self._step = signum, step

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step:
            os.kill(os.getpid(), self._signum)


class Meeting(Callback):
    """Lets a process that trains wait for the other ones, until they train, too, or have ended.

    Else one that is late would find a run that is completed, and there would be no race.
    """

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._folder, self._name, self._count = folder, name, count

    def begin(self) -> None:
        """Wait until all are here."""
        self._wait("here")

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._wait("met")

    def end(self) -> None:
        """Keep nobody waiting."""
        (self._folder / f"met-{self._name}").touch()

    def _wait(self, what: str) -> None:
        (self._folder / f"{what}-{self._name}").touch()
        while len(list(self._folder.glob(f"{what}-*"))) < self._count:
            os.sched_yield()


def train(callbacks: list[Callback], first: str, second: str) -> Run:
    if first == "--resume":
        return trainwright.resume(second, callbacks=callbacks, quiet=True)
    if first == "--work":
        return trainwright.work(second, callbacks=callbacks, quiet=True)
    return trainwright.train(Path(first), runs_dir=second, callbacks=callbacks, quiet=True)


def main(name: str, step: str, first: str, second: str, cache: str = "", *meeting: str) -> None:
    if cache:
        os.environ["TRAINWRIGHT_CACHE"] = cache
    callbacks: list[Callback] = [SignalOnce(getattr(signal, name), int(step))]
    met = Meeting(Path(meeting[0]), meeting[1], int(meeting[2])) if meeting else None
    if met:
        met.begin()
        callbacks.append(met)
    try:
        run = train(callbacks, first, second)
    except TrainwrightError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None
    finally:
        if met:
            met.end()
    sys.stdout.write(f"{run.status} {run.digest}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
