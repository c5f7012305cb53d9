"""The order of a study's stints, and the results of earlier ones that each of them may use.

Stint n is decided when the stints up to n - horizon have ended, from their results and from the parameters of
all trials before it; or, in free order, when a worker is free, from what has ended by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trainwright.engine.rules import TrainingShare
from trainwright.records.trials import Ending, LoggedTrial


class Turn(NamedTuple):
    """A stint that can be decided: its number, and that of its trial."""

    stint: int
    trial: int


class TrialOrder(Protocol):
    """The order of the stints of a study."""

    def next(self, trials: Sequence[LoggedTrial]) -> Turn | None:
        """Return the next stint; None if there is no more, or if it depends on stints that have not ended."""

    def running(self, trials: Sequence[LoggedTrial], stint: int) -> tuple[int, ...] | None:
        """Return the trials whose results a stint does not know, if that depends on the clock; else None."""

    def known(self, trials: Sequence[LoggedTrial], stint: int) -> list[Ending | None]:
        """Return, for each trial, the ending that a stint may depend on; None: none yet."""

    def until(self, stint: int) -> TrainingShare | None:
        """Return after which share of its training a stint pauses; None: it trains to the end."""

    def not_promoted(self, trials: Sequence[LoggedTrial]) -> list[int]:
        """Return the paused trials that will not be promoted."""


class ByHorizon:
    """An order in which a stint knows the results of the stints up to `horizon` before it."""

    horizon: int

    def running(self, trials: Sequence[LoggedTrial], stint: int) -> None:  # noqa: ARG002 - as in `TrialOrder`
        """Return None: the number of the stint says what it knows."""
        return

    def known(self, trials: Sequence[LoggedTrial], stint: int) -> list[Ending | None]:
        """Return the endings that a stint may depend on; see `TrialOrder.known`."""
        return [known_ending(trials, trial, stint - self.horizon) for trial in trials]


class WholeTrials:
    """An order in which each trial is one stint, which has the trial's number."""

    def until(self, stint: int) -> TrainingShare | None:  # noqa: ARG002 - as in `TrialOrder`
        """Return None: a stint trains to the end."""
        return None

    def not_promoted(self, trials: Sequence[LoggedTrial]) -> list[int]:  # noqa: ARG002 - as in `TrialOrder`
        """Return an empty list: no trial pauses."""
        return []


@dataclass(frozen=True)
class InOrder(WholeTrials, ByHorizon):
    """Whole trials, one after the other, each decided when those up to `horizon` before it have ended."""

    count: int
    horizon: int

    def next(self, trials: Sequence[LoggedTrial]) -> Turn | None:
        """Return the next trial if it can be decided; see `TrialOrder.next`."""
        number = len(trials)
        if number >= self.count or not all_ended(trials, up_to=number - self.horizon):
            return None
        return Turn(number, number)


@dataclass(frozen=True)
class Free(WholeTrials):
    """Whole trials, each decided when a worker is free, from all that have ended by then.

    The log says for each trial which others had not ended when it was decided. `recorded` says the same for a
    study that this one repeats: its trials are decided from the same results again.
    """

    count: int
    recorded: Sequence[Sequence[int]] | None = None

    def next(self, trials: Sequence[LoggedTrial]) -> Turn | None:
        """Return the next trial if it can be decided; see `TrialOrder.next`."""
        number = len(trials)
        if number >= self.count:
            return None
        missing = {trial.number for trial in trials if trial.ending is None}
        if self.recorded is not None and not missing <= {*self.recorded[number]}:
            return None
        return Turn(number, number)

    def running(self, trials: Sequence[LoggedTrial], stint: int) -> tuple[int, ...]:
        """Return the trials that had not ended when the stint was decided; see `TrialOrder.running`."""
        if stint < len(trials):
            return trials[stint].running or ()
        if self.recorded is not None:
            return tuple(self.recorded[stint])
        return tuple(trial.number for trial in trials if trial.ending is None)

    def known(self, trials: Sequence[LoggedTrial], stint: int) -> list[Ending | None]:
        """Return the endings that a stint may depend on; see `TrialOrder.known`."""
        hidden = {*self.running(trials, stint), *range(stint, len(trials))}
        return [None if trial.number in hidden else trial.ending for trial in trials]


def all_ended(trials: Sequence[LoggedTrial], *, up_to: int) -> bool:
    """Return whether all stints up to this number have ended; a trial that shares a run has none."""
    stints = (one for trial in trials if trial.same_as is None for one in trial.stints)
    return all(one.ending is not None for one in stints if one.number <= up_to)


def known_ending(trials: Sequence[LoggedTrial], trial: LoggedTrial, stint: int) -> Ending | None:
    """Return how the last stint of a trial up to this number has ended; None if there is none, or it runs."""
    if trial.same_as is not None:
        return known_ending(trials, trials[trial.same_as], stint) if trial.stints[0].number <= stint else None
    endings = [one.ending for one in trial.stints if one.number <= stint]
    return endings[-1] if endings else None
