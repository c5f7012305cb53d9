"""The trials of a study whose decisions a tuner makes: Ray Tune, for one.

The log is as in any study: a trial is in it before its run is trained, and how it has ended before anything
follows from that. What a process of the study leaves unfinished, the next one hands to the tuner again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.engine.signals import Signals
from trainwright.errors import InputError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import TIME_LIMIT, Ending, LoggedStint, LoggedTrial, TrialLog
from trainwright.runs.children.config import child_config
from trainwright.runs.children.create import ChildRequest, create_child
from trainwright.runs.pruning import prune_paused
from trainwright.runs.run_config import read_config
from trainwright.runs.trust import of_own_config
from trainwright.runs.workdir import creation_of
from trainwright.samplers.base import Observation, Sampler, Space
from trainwright.studies.study import Json, Study
from trainwright.studies.tuning.checks import forkable_keys, tuner_of
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.inputs import TrialInputs
from trainwright.studies.tuning.plan import DEFAULT_TRIALS
from trainwright.studies.tuning.search_space import read_space
from trainwright.studies.tuning.stints import (
    Stint,
    do,
    ending_of,
    failed,
    unfinished,
)
from trainwright.studies.tuning.trial_configs import TrialConfigs, most_threads
from trainwright.studies.tuning.tuner_worker import WorkerTrainer
from trainwright.studies.tuning.tuning_view import FORK, resume_command
from trainwright.tuners.base import Point, StartedTrial
from trainwright.types import Mode

log = logging.getLogger("trainwright")
_OVER = ("completed", "stopped", "pruned")


@dataclass
class StudyTrials:
    """The trials of a study, for a tuner (`tuners.base.Trials`).

    Args:
        log: The log of the study.
        configs: The configs of its runs.
        goals: What is sought: one metric.
        record: Writes down how a trial has ended.
        signals: What may stop the study.
        inputs: What its trials share.
    """

    log: TrialLog
    configs: TrialConfigs
    goals: Goals
    record: Callable[[int, Ending], None]
    signals: Signals
    inputs: TrialInputs
    # Trials that do not go on, with their error.
    _leaving: dict[int, str | None] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    @property
    def study(self) -> Study:
        """The study that the trials belong to."""
        return self.inputs.study

    # -- what a tuner asks for

    @cached_property
    def space(self) -> Space:
        """The space of the search."""
        return read_space(self.configs.tuning.space)

    @property
    def mode(self) -> Mode:
        """The mode of the metric: the lowest or the highest value is best."""
        return self.goals.modes[0]

    @property
    def seed(self) -> int:
        """The seed of the search."""
        return self.configs.base.resolved.config.experiment.seed

    @cached_property
    def forkable(self) -> Sequence[str]:
        """The keys that a fork may change."""
        return forkable_keys(self.space, self.configs.base.resolved.config)

    @property
    def folder(self) -> Path:
        """The folder of the study."""
        return self.study.path

    @property
    def resources(self) -> Mapping[str, float]:
        """The processors and GPUs that a trial takes."""
        tuning, config = self.configs.tuning, self.configs.base.resolved.config
        return {"cpu": most_threads(tuning, config), "gpu": tuning.resources.gpu}

    @cached_property
    def trainer(self) -> WorkerTrainer:
        """The trainer of a trial, in any process."""
        return WorkerTrainer(
            self.study.id,
            self.goals.metrics[0],
            self.mode,
            str(Path.cwd()),
            log.getEffectiveLevel(),
            self.inputs.newest(),
            self.inputs.are_shared,
            self.inputs.searches_data,
            self.inputs.allow_change,
        )

    @cached_property
    def _random(self) -> Sampler:
        cls = plugins.adapter("sampler", "random")
        sampler: Sampler = cls(cls.Params(), self.space, self.mode, self.seed)
        return sampler

    @property
    def wanted(self) -> int:
        """The number of trials that are still to begin."""
        return 0 if self._is_enough() else self._count - (len(self.log.trials) - len(self._forks))

    @property
    def _count(self) -> int:
        return self.configs.tuning.trials or DEFAULT_TRIALS

    @property
    def _forks(self) -> list[Json]:
        return [note for note in self.log.notes if note["kind"] == FORK]

    def _is_enough(self) -> bool:
        """Return whether no trial begins any more, by the target or the time limit."""
        tuning = self.configs.tuning
        values = [one.ending.value for one in self.log.trials if one.ending is not None]
        if any(self.goals.is_reached(tuning.target, value) for value in values) or self.log.is_over_time:
            return True
        if tuning.max_minutes is None or time.monotonic() - self._started < 60 * tuning.max_minutes:
            return False
        self.log.note(kind=TIME_LIMIT, before=len(self.log.trials))
        return True

    def begun(self) -> list[StartedTrial]:
        """Return the trials that an earlier process has begun; see `Trials.begun`."""
        replaced = {note["instead_of"] for note in self._forks}
        left = [one for one in self.log.trials if one.ending is None]
        self._leaving |= {one.number: None for one in left if one.number in replaced}
        return [self._handed(one) for one in left if one.number not in replaced]

    def ended(self) -> list[Observation]:
        """Return what came of the trials that have ended; see `Trials.ended`."""
        endings = [(one.params, one.ending) for one in self.log.trials if one.ending is not None]
        return [Observation(params, end.status, end.value, end.curve) for params, end in endings]

    def begin(self, params: Mapping[str, Any] | None = None) -> StartedTrial | None:
        """Begin a trial; see `Trials.begin`."""
        if self.wanted <= 0:
            return None
        number = len(self.log.trials)
        proposed = dict(self._random.propose(number, []) if params is None else params)
        (resolved,) = self.configs.of(proposed)
        folder = self.study.path.parent
        run = RunDir.create(
            folder.parent,
            folder.name,
            resolved.dump(),
            created=creation_of(resolved),
        )
        return self._begin(LoggedTrial(number, proposed, run.id, stints=(LoggedStint(number),)))

    def fork(
        self, donor: StartedTrial, at: Point, params: Mapping[str, Any], instead_of: int
    ) -> StartedTrial:
        """Begin a trial as a fork of another one's run; see `Trials.fork`."""
        number, parent = len(self.log.trials), RunDir(Path(donor.run))
        config = read_config(parent)
        changed = {key: value for key, value in params.items() if value != donor.params.get(key)}
        with of_own_config(parent, config):
            resolved = child_config(parent, changed)
            run = create_child(ChildRequest(parent, config, resolved, "fork", at.step))
        self.log.note(kind=FORK, trial=number, of=donor.number, instead_of=instead_of, start=list(at))
        self._leaving[instead_of] = None
        return self._begin(LoggedTrial(number, dict(params), run.id, stints=(LoggedStint(number),)))

    def _begin(self, trial: LoggedTrial) -> StartedTrial:
        self.log.begin(trial)
        return self._handed(trial)

    def _handed(self, trial: LoggedTrial) -> StartedTrial:
        starts = {note["trial"]: Point(*note["start"]) for note in self._forks}
        path = (self.study.path.parent / trial.run_id).absolute()
        return StartedTrial(trial.number, str(path), trial.params, starts.get(trial.number, Point()))

    def end(self, number: int, error: str | None = None) -> None:
        """Say that a trial does not go on; see `Trials.end`."""
        if self.log.trials[number].ending is None:
            self._leaving.setdefault(number, error)

    def cannot_go_on(self, number: int, error: str, *, is_input: bool = False) -> None:
        """End the study for now; see `Trials.cannot_go_on`."""
        raise unfinished(self._stint(number), error, is_input=is_input)

    def tend(self) -> bool:
        """Write down what has ended; see `Trials.tend`."""
        for number in [*self._leaving]:
            self._settle(number)
        return self.signals.status is not None

    # -- how trials end

    def _stint(self, number: int) -> Stint:
        run = self.study.path.parent / self.log.trials[number].run_id
        return Stint(number, [run], self.study.id, self.goals.metrics[0], self.mode)

    def _settle(self, number: int) -> bool:
        """Write down how a trial has ended, if the process that trained it has left it; return whether."""
        stint, error = self._stint(number), self._leaving[number]
        run = RunDir(stint.runs[0])
        status = run.status()
        if error is not None:
            ending = failed(error)
        elif status == "failed":
            ending = failed(self._error(run))
        elif status == "paused":
            prune_paused(run, [item.type for item in self.configs.base.resolved.config.tracking])
            ending = ending_of(stint)
        elif status in _OVER:
            ending = ending_of(stint)
        else:
            return False  # its process is still at it, or has died
        del self._leaving[number]
        self.record(number, ending)
        return True

    @staticmethod
    def _error(run: RunDir) -> str:
        return next((one.error for one in reversed(run.attempts()) if one.error), "it has failed")

    def finish(self) -> None:
        """Write down what has ended; no other process trains any more.

        Where one died before it could commit a trial that does not go on, the run is trained to its next
        evaluation here, and pruned there.
        """
        for number in [*self._leaving]:
            if not self._settle(number):
                stint = self._stint(number)
                self._leaving[number] = do(stint, judge=lambda *_: lambda *_: "pause").error
                self._settle(number)


def make_by_tuner(trials: StudyTrials) -> None:
    """Let the tuner of a study make its trials.

    Raises:
        InputError: The tuner is not installed.
        TrainingError: It has failed, or the first trials have.
        Stopped: A signal has come.
    """
    tuner, signals = tuner_of(trials.configs.tuning), trials.signals
    assert tuner is not None, "the study has one"
    wake, signals.wake = signals.wake, lambda: None  # `tend` looks for a signal
    try:
        tuner.run(trials)
        signals.check()
        trials.finish()
    finally:
        signals.wake = wake
    left = [one.number for one in trials.log.trials if one.ending is None]
    if left:
        raise InputError(
            f"trial {left[0]} has not ended: the tuner has given it up; resume the study: "
            f"{resume_command(trials.study.path)}"
        )
