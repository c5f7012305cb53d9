"""The contract of tuners: systems that decide which trials there are, and how long each of them trains.

Without a tuner, a study is a function of its config, as samplers and pruners decide from what a trial may
know. A tuner decides from whatever has ended first. The study keeps the log: it makes the run of each trial,
trains it in the process that the tuner chooses, and records how it has ended. So each trial is a run like any
other, and the log is complete, whatever happens to the tuner.

The library of a tuner is imported when it runs; its options are checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel

from trainwright.samplers.base import Observation, Space
from trainwright.types import Mode


class Point(NamedTuple):
    """The progress of a trial: the number of its last evaluation, from 1, and its step; both 0 at first."""

    evaluation: int = 0
    step: int = 0


class StartedTrial(NamedTuple):
    """A trial that has started, and is to be trained.

    Attributes:
        number: Its number in the study.
        run: The path of its run.
        params: Its parameters, by dotted key.
        start: Where it begins; for a fork, the point of its parent.
    """

    number: int
    run: str
    params: Mapping[str, Any]
    start: Point = Point()


class Report(NamedTuple):
    """The result of training a trial up to its next evaluation.

    Attributes:
        point: How far it is.
        value: The metric; None if there is none.
        ended: Whether there is nothing left to train.
        error: Why it failed, if it did; it has ended then.
    """

    point: Point
    value: float | None = None
    ended: bool = False
    error: str | None = None


class Trainer(Protocol):
    """Train trials, one after the other, in a process of the tuner's, which gets a pickled copy of it.

    All its state is in the run: if its process dies, another trainer, in another process, continues.
    """

    def go_on(self, trial: StartedTrial, after: Point) -> Report:
        """Train a trial up to the first evaluation after a point, and wait there.

        An evaluation that is in the run already is reported at once.

        Raises:
            TrainingError: The process that trains has died; another call continues from the last checkpoint.
            CheckpointError: A file of the run cannot be written or read, which is no result of the trial.
            InputError: Nor is this: data or code of the run are missing, or have changed.
        """

    def commit(self, trial: StartedTrial, at: Point) -> Point:
        """Commit a trial that is at a point, and return the point of the commit: the same, or a later one.

        Raises:
            TrainingError: The process that trains has died.
            CheckpointError: A file of the run cannot be written or read.
        """

    def leave(self) -> None:
        """Commit the trial that waits at an evaluation, if there is one, so that another can begin."""

    def close(self) -> None:
        """Leave, and end the process that trains."""


class Trials(Protocol):
    """The trials of a study, as a tuner sees them; all calls come from the thread that runs the tuner."""

    @property
    def space(self) -> Space:
        """The space that is searched."""

    @property
    def mode(self) -> Mode:
        """The direction of the metric: `min` or `max`."""

    @property
    def seed(self) -> int:
        """The seed of the search."""

    @property
    def forkable(self) -> Sequence[str]:
        """The keys of the space that a fork may change."""

    @property
    def folder(self) -> Path:
        """A folder for files that the tuner needs while it runs."""

    @property
    def resources(self) -> Mapping[str, float]:
        """The needs of a trial: `cpu` processors and `gpu` GPUs."""

    @property
    def trainer(self) -> Trainer:
        """The function that trains a trial, in any process."""

    @property
    def wanted(self) -> int:
        """The number of trials that are still to start, without forks."""

    def begun(self) -> list[StartedTrial]:
        """Return the trials of an earlier process of this study that have not ended."""

    def ended(self) -> list[Observation]:
        """Return the results of the trials that have ended."""

    def begin(self, params: Mapping[str, Any] | None = None) -> StartedTrial | None:
        """Begin a trial; None: no trial begins any more.

        Args:
            params: Its parameters; None: drawn at random.
        """

    def fork(
        self, donor: StartedTrial, at: Point, params: Mapping[str, Any], instead_of: int
    ) -> StartedTrial:
        """Begin a trial with the state that another one has at a point, and with parameters of its own.

        Args:
            donor: The other trial.
            at: A point of it that `Trainer.commit` has returned.
            params: The parameters of the new trial.
            instead_of: The trial that this one replaces, which ends.
        """

    def end(self, number: int, error: str | None = None) -> None:
        """Say that a trial has ended: it is complete, is pruned where it waits, or has failed."""

    def cannot_go_on(self, number: int, error: str, *, is_input: bool = False) -> None:
        """Say that a trial cannot be trained now, as a disk is full, which is no result of it.

        Args:
            number: The trial.
            error: What has happened.
            is_input: Whether it is something that the user gave, such as data that are gone.

        Raises:
            InputError: The same, if `is_input`.
            TrainingError: The study ends. It goes on with this trial when it is resumed.
        """

    def tend(self) -> bool:
        """Log the trials that have ended meanwhile; return whether the tuner is to stop.

        A tuner that stops ends no trial: the unfinished ones continue when the study is resumed.
        """


class Tuner(Protocol):
    """A system that searches."""

    Params: ClassVar[type[BaseModel]]

    def __init__(self, params: BaseModel) -> None: ...

    def refusal(self, space: Space, forkable: Sequence[str]) -> str | None:
        """Return why a space cannot be searched with these options, or None."""

    def run(self, trials: Trials) -> None:
        """Make the trials, until all have ended or `tend` says to stop.

        Raises:
            MissingExtraError: The library is not installed.
            TrainingError: The system cannot be started, or has failed.
        """
