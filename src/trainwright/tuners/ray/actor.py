"""The actor of a trial. It keeps nothing: what a trial has learned is in its run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ray import tune

from trainwright.tuners.base import Point, StartedTrial, Trainer

TRIAL = "trial"  # in the config that Ray has of a trial: which one of the study it is
OBJECTIVE, EVALUATION, STEP, ERROR = "objective", "evaluation", "step", "error"
_POINT = "point.json"


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """Train a trial, evaluation by evaluation."""

    def setup(self, config: dict[str, Any], trainer: Trainer | None = None) -> None:
        """Begin with a trial."""
        assert trainer is not None
        self._trainer = trainer
        self._take(config)

    def _take(self, config: dict[str, Any]) -> None:
        self._trial = trial_of(config)
        self._at = self._trial.start
        self._value = math.nan

    def step(self) -> dict[str, Any]:
        """Train up to the next evaluation, and return it."""
        report = self._trainer.go_on(self._trial, self._at)
        self._at = report.point
        if report.value is not None:
            self._value = report.value
        error = {ERROR: report.error} if report.error else {}
        own = {EVALUATION: self._at.evaluation, STEP: self._at.step, "done": report.ended}
        return {OBJECTIVE: self._value, **own, **error}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Commit the run, and say where: Ray keeps no weights."""
        commit = self._trainer.commit(self._trial, self._at)
        point = {"run": self._trial.run, "at": self._at, "commit": commit}
        (Path(checkpoint_dir) / _POINT).write_text(json.dumps(point))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on after the evaluations that Ray knows; another run is the one that this forks."""
        point = json.loads((Path(checkpoint) / _POINT).read_text())
        if point["run"] == self._trial.run:
            self._at = Point(*point["at"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Leave the trial, and begin with another one in the same process."""
        self._trainer.leave()
        self._take(new_config)
        return True

    def cleanup(self) -> None:
        """Leave the trial."""
        self._trainer.close()


def trial_of(config: dict[str, Any]) -> StartedTrial:
    """Return the trial of a config."""
    plain = config[TRIAL]
    return StartedTrial(plain["number"], plain["run"], plain["params"], Point(*plain["start"]))


def config_of(trial: StartedTrial) -> dict[str, Any]:
    """Return the config with which Ray starts a trial."""
    plain = {**trial._asdict(), "params": dict(trial.params), "start": list(trial.start)}
    return {TRIAL: plain}


def commit_of(checkpoint: Any) -> Point:
    """Return the point at which the run of a checkpoint was committed."""
    with checkpoint.as_directory() as folder:
        return Point(*json.loads((Path(folder) / _POINT).read_text())["commit"])
