"""The training of runs for a tuner that decides after each evaluation whether the run continues.

`WorkerTrainer` lives in a process of the tuner, and starts a worker process of ours, as a study with
`parallel` does. That process runs `serve`: at each evaluation it waits for an instruction.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from trainwright.engine.outside import VerdictFunction
from trainwright.engine.signals import STATUS_OF, Stopped
from trainwright.errors import CheckpointError, InputError, RunLockedError, TrainingError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL, Ended
from trainwright.records.trials import read_trials
from trainwright.runs.data.shared import sharing_data
from trainwright.studies.tuning.stints import Stint, curve_of, failure, train
from trainwright.studies.tuning.workers import WorkerProcess, received
from trainwright.tuners.base import Point, Report, StartedTrial
from trainwright.types import Mode

Answer = Literal["keep", "pause"]
_LOCK_SECONDS = 60.0  # a process that has just died may still hold the run


@dataclass
class WorkerTrainer:
    """A trainer of trials in a worker process; see `tuners.base.Trainer`.

    Args:
        study_id: The study.
        metric: The metric that is reported.
        mode: Its mode.
        directory: Where the worker works: paths of data are relative to it.
        log_level: The level of the worker's log, on stderr.
        alike: The id of a run with the data and code that each must have, if there was one at the start.
        shares_inputs: Whether all trials must have the same data and code.
        searches_data: Whether the trials have different data.
        allow_change: Accept changed inputs.
        path: The folders that the worker searches for modules before its own; default: those of this process
            that come before Python's.
    """

    study_id: str
    metric: str
    mode: Mode
    directory: str
    log_level: int
    alike: str | None = None
    shares_inputs: bool = False
    searches_data: bool = False
    allow_change: bool = False
    path: list[str] = field(default_factory=lambda: _before_python(sys.path))
    _worker: WorkerProcess | None = field(default=None, repr=False)
    _trial: StartedTrial | None = field(default=None, repr=False)  # that the worker trains
    _waits: bool = field(default=False, repr=False)  # at an evaluation

    def go_on(self, trial: StartedTrial, after: Point) -> Report:
        """Train a trial up to the next evaluation; see `Trainer.go_on`."""
        run = RunDir(Path(trial.run))
        if not run.config_file.exists():
            raise TrainingError(
                f"{trial.run} is not on this machine: all machines of a cluster need the folder of the "
                "runs, under the same path"
            )
        if self._trial is not None and self._trial.run != trial.run:
            self.leave()
        while True:
            if (known := self._known(run, after)) is not None:
                point = Point(after.evaluation + 1, known[0])
                return Report(point, known[1], ended=self._has_ended(run, point))
            if self._has_ended(run, after):
                return Report(after, ended=True)
            message = self._advance(trial)
            if "value" in message:
                if message["step"] > after.step:
                    return Report(Point(after.evaluation + 1, message["step"]), message["value"])
            elif message["status"] == "failed":
                return Report(after, ended=True, error=message["error"])

    def _known(self, run: RunDir, after: Point) -> tuple[int, float] | None:
        """Return the first evaluation after a point in the journal of a run that no worker trains now.

        The evaluation at which a worker waits was reported already.
        """
        if self._trial is not None:
            return None
        return next((one for one in curve_of(run, self.metric) if one[0] > after.step), None)

    def _has_ended(self, run: RunDir, at: Point) -> bool:
        """Return whether a run has ended, and has no evaluation after a point."""
        return self._trial is None and run.status() in FINAL and self._known(run, at) is None

    def _advance(self, trial: StartedTrial) -> dict[str, Any]:
        """Let the worker train on, and return what it says next."""
        if self._worker is None:
            self._worker = WorkerProcess.start(
                "serve-stints", self.log_level, directory=self.directory, path=self.path
            )
        if self._trial is None:
            run = Path(trial.run)
            stint = Stint(
                trial.number,
                [run],
                self.study_id,
                self.metric,
                self.mode,
                alike=[self.alike or self._earlier(trial)],
                searches_data=self.searches_data,
                allow_change=self.allow_change,
            )
            self._worker.send(stint.to_json())
            self._trial = trial
        elif self._waits:
            self._worker.send("keep")
        return self._read()

    def _earlier(self, trial: StartedTrial) -> str | None:
        """Return a run of an earlier trial, whose data and code this one must have, if there is any."""
        folder = Path(trial.run).parent
        for other in read_trials(folder / self.study_id)[: trial.number] if self.shares_inputs else ():
            manifest = RunDir(folder / other.run_id).manifest()
            if manifest is not None and manifest.initial is None:  # a fork has another's weights
                return other.run_id
        return None

    def _read(self) -> dict[str, Any]:
        """Return what the worker says next.

        Raises:
            TrainingError: It has died, or was told to stop.
            CheckpointError: The run cannot be trained for now, which is no result of it.
            InputError: The same, and it is the user who can change that: data or code are missing or changed.
        """
        assert self._worker is not None
        message = self._worker.read_whole()
        self._waits = "value" in message
        if not self._waits:
            self._trial = None
        if message.get("is_from_outside"):
            error = InputError if message.get("is_input") else CheckpointError
            raise error(" ".join(message["error"].split()))
        if not message or message.get("status") in STATUS_OF.values():
            how = self._worker.end()
            self._worker = None
            raise TrainingError(f"the process that trains has ended {how}")
        return message

    def commit(self, trial: StartedTrial, at: Point) -> Point:
        """Commit a trial; see `Trainer.commit`."""
        run = RunDir(Path(trial.run))
        if at == trial.start or run.status() in FINAL:
            return at
        if self._trial is None and self._reached(run) < at.step:  # a process has died since the last commit
            while self._advance(trial).get("step", at.step) < at.step:
                pass
        self.leave()
        reached = max(at.step, self._reached(run))
        later = sum(at.step < step <= reached for step, _ in curve_of(run, self.metric))
        return Point(at.evaluation + later, reached)

    @staticmethod
    def _reached(run: RunDir) -> int:
        """Return the step at which a run has paused; 0 if it has not."""
        result = run.result()
        return result.steps if result is not None and run.status() == "paused" else 0

    def leave(self) -> None:
        """Commit the trial that waits; see `Trainer.leave`."""
        while self._trial is not None:
            assert self._worker is not None
            if self._waits:
                self._worker.send("pause")
            self._read()

    def close(self) -> None:
        """Leave, and end the worker; see `Trainer.close`."""
        with contextlib.suppress(TrainingError, CheckpointError, InputError):
            self.leave()
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def _before_python(path: list[str]) -> list[str]:
    standard = sysconfig.get_path("stdlib")
    return path[: path.index(standard)] if standard in path else path[:]


@sharing_data()
def serve(answers: int) -> Ended | None:
    """Do the stints that arrive on stdin; ask on the pipe `answers` at each evaluation whether to continue.

    Returns:
        The status that a signal asked for, if one came.
    """
    messages = received()

    def say(message: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(answers, json.dumps(message).encode() + b"\n")

    def asked(stint: Stint, _: RunDir) -> VerdictFunction:
        def verdict(step: int, metrics: Mapping[str, float]) -> Answer:
            say({"step": step, "value": metrics.get(stint.metric)})
            return cast("Answer", next(messages, "pause"))  # if the other side is gone

        return verdict

    for message in messages:
        stint = Stint.from_json(message)
        try:
            status = _unlocked(lambda stint=stint: train(stint, judge=asked))  # type: ignore[misc]
        except Stopped as stopped:
            return stopped.status
        except (TrainwrightError, OSError) as error:
            say(failure(stint, error))
            continue
        say({"status": status})
        if status in STATUS_OF.values():
            return cast("Ended", status)
    return None


def _unlocked(do: Callable[[], str]) -> str:
    """Do something with a run; one that another process owns is tried again for a while."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return do()
        except RunLockedError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.1)
