"""Pruners: rules that end a trial by the curves of others, and successive halving and Hyperband.

A rule decides at each evaluation of a trial. Of halving, a bracket begins with some trials: all of them train
up to its first rung, the best up to the second one, and so on; the last rung is the end of the training. The
stints of all brackets are in one order, which depends on the options and the number of trials alone: a rung
is decided `horizon` stints after the last one of the rung before it, and the next bracket begins meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainwright.config.tuning import AshaPruner, MedianPruner, PatientPruner, PercentilePruner, Pruner
from trainwright.engine.rules import TrainingShare
from trainwright.records.trials import LoggedTrial
from trainwright.studies.tuning.trial_order import ByHorizon, Turn, all_ended
from trainwright.types import Mode

Curve = Sequence[tuple[int, float]]  # the metric at each evaluation, as (step, value)
ShouldPrune = Callable[[int, float], bool]  # called with step and value at each evaluation, in order


def pruning_rule(pruner: Pruner, curves: Mapping[str, Sequence[Curve]], mode: Mode) -> ShouldPrune:
    """Return the function that says, evaluation by evaluation, whether to prune a trial.

    Args:
        pruner: The options.
        curves: The curves of the trials that it may know, by status.
        mode: Whether the metric is minimized or maximized.
    """
    sign = 1.0 if mode == "min" else -1.0
    completed = [_signed(curve, sign) for curve in curves.get("completed", ())]
    pruned = [_signed(curve, sign) for curve in curves.get("pruned", ())]
    match pruner:
        case MedianPruner():  # or PercentilePruner
            should_prune = _percentile_rule(pruner, completed)
        case AshaPruner():
            should_prune = _asha_rule(pruner, [*completed, *pruned])
        case PatientPruner():
            should_prune = _patient_rule(pruner)
        case _:
            return lambda *_: False
    return lambda step, value: should_prune(step, sign * value)


def _signed(curve: Curve, sign: float) -> dict[int, float]:
    """Return a curve whose lower values are better."""
    return {step: sign * value for step, value in curve}


def _percentile_rule(pruner: MedianPruner, curves: Sequence[Mapping[int, float]]) -> ShouldPrune:
    """Compare with the values of other trials at the same step, as Optuna's PercentilePruner does."""
    percentile = pruner.percentile if isinstance(pruner, PercentilePruner) else 50.0
    best = math.inf

    def should_prune(step: int, value: float) -> bool:
        nonlocal best
        if not math.isnan(value):
            best = min(best, value)
        if len(curves) < max(1, pruner.n_startup_trials) or step < pruner.n_warmup_steps:
            return False
        others = [curve[step] for curve in curves if not math.isnan(curve.get(step, math.nan))]
        if math.isinf(best):
            return True  # every value so far was NaN
        return bool(others) and best > float(np.percentile(others, percentile))

    return should_prune


def _asha_rule(pruner: AshaPruner, curves: Sequence[Mapping[int, float]]) -> ShouldPrune:
    passed = 0  # rungs

    def should_prune(step: int, value: float) -> bool:
        nonlocal passed
        while step >= (rung := pruner.min_steps * pruner.reduction_factor**passed):
            passed += 1
            reached = [_first_at(curve, rung) for curve in curves]
            others = [other for other in reached if other is not None and not math.isnan(other)]
            kept = max(1, (len(others) + 1) // pruner.reduction_factor)
            if math.isnan(value) or sum(other < value for other in others) >= kept:
                return True
        return False

    return should_prune


def _first_at(curve: Mapping[int, float], step: int) -> float | None:
    """Return the value at the first evaluation at or after a step, or None if there is none."""
    return next((curve[at] for at in sorted(curve) if at >= step), None)


def _patient_rule(pruner: PatientPruner) -> ShouldPrune:
    best, since = math.inf, 0  # evaluations without improvement

    def should_prune(step: int, value: float) -> bool:  # noqa: ARG001
        nonlocal best, since
        if value < best - pruner.min_delta:
            best, since = value, 0
        else:
            since += 1
        return since > pruner.patience

    return should_prune


class Bracket(NamedTuple):
    """Successive halving of some trials.

    Attributes:
        first: The number of its first trial.
        sizes: How many trials train up to each rung.
        resources: How long they have trained there, in epochs (or steps, rounds).
    """

    first: int
    sizes: Sequence[int]
    resources: Sequence[int]


class Slot(NamedTuple):
    """A stint: the trial with this rank in a bracket, counted from 0, trains up to a rung of it."""

    bracket: int
    rung: int
    rank: int


def hyperband(least: int, most: int, factor: int) -> list[Bracket]:
    """Return the brackets of Hyperband, in the order of Li et al. (2018), Algorithm 1.

    Args:
        least: The resource of the first rung of the first bracket, at least.
        most: The resource of a whole trial.
        factor: The length of the next rung, as a multiple of this one; one trial in this many reaches it.
    """
    top = 0
    while least * factor ** (top + 1) <= most:
        top += 1
    brackets = []
    for rungs in range(top, -1, -1):
        size = -(-(top + 1) * factor**rungs // (rungs + 1))
        resources = [most // factor**left for left in range(rungs, -1, -1)]
        brackets.append(Bracket(0, _sizes(size, rungs + 1, factor), resources))
    return brackets


def _sizes(size: int, rungs: int, factor: int) -> list[int]:
    """Return how many trials of a bracket train up to each rung; at least one reaches the end."""
    return [max(1, size // factor**rung) for rung in range(rungs)]


def brackets_of(cycle: Sequence[Bracket], limits: Sequence[int], factor: int) -> list[list[Bracket]]:
    """Return the brackets of all trials; those of one limit, the number of trials, after those of the last.

    The last bracket of a limit has as many trials as are left.
    """
    groups: list[list[Bracket]] = []
    number = first = 0
    for limit in limits:
        groups.append([])
        while first < limit:
            kind = cycle[number % len(cycle)]
            size = min(kind.sizes[0], limit - first)
            groups[-1].append(Bracket(first, _sizes(size, len(kind.sizes), factor), kind.resources))
            number, first = number + 1, first + size
    return groups


def schedule(groups: Sequence[Sequence[Bracket]], horizon: int) -> list[Slot | None]:
    """Return the stints by their numbers; None where none may begin, as the results of a rung are not known.

    Of those that may, that of the oldest bracket comes first.
    """
    slots: list[Slot | None] = []
    begun = 0
    for group in groups:
        left = [_slots(begun + number, bracket) for number, bracket in enumerate(group)]
        upcoming = [next(one) for one in left]
        ready = [len(slots)] * len(group)  # the number of the first stint that may be that of the bracket
        while upcoming:
            at = next((at for at, number in enumerate(ready) if number <= len(slots)), None)
            if at is None:
                slots.append(None)
                continue
            slot = upcoming[at]
            slots.append(slot)
            following = next(left[at], None)
            if following is None:
                del left[at], upcoming[at], ready[at]
                continue
            upcoming[at] = following
            if following.rung > slot.rung:
                ready[at] = len(slots) - 1 + horizon
        begun += len(group)
    return slots


def _slots(number: int, bracket: Bracket) -> Iterator[Slot]:
    for rung, size in enumerate(bracket.sizes):
        for rank in range(size):
            yield Slot(number, rung, rank)


@dataclass(frozen=True)
class Rungs(ByHorizon):
    """The stints of a study with rungs, and the decisions that follow from the results so far.

    `mode` says which values are better.
    """

    brackets: Sequence[Bracket]
    slots: Sequence[Slot | None]
    horizon: int
    mode: Mode

    @staticmethod
    def plan(cycle: Sequence[Bracket], limits: Sequence[int], factor: int, horizon: int, mode: Mode) -> Rungs:
        """Return the stints of a study; see `brackets_of` and `schedule`."""
        groups = brackets_of(cycle, limits, factor)
        return Rungs([one for group in groups for one in group], schedule(groups, horizon), horizon, mode)

    def next(self, trials: Sequence[LoggedTrial]) -> Turn | None:
        """Return the next stint if it can be decided; see `TrialOrder.next`."""
        begun = max((stint.number for trial in trials for stint in trial.stints), default=-1)
        for number in range(begun + 1, len(self.slots)):
            slot = self.slots[number]
            if slot is None:
                continue
            if not all_ended(trials, up_to=number - self.horizon):
                return None
            trial = self._trial(slot, trials)
            if trial is not None:
                return Turn(number, trial)
        return None

    def until(self, stint: int) -> TrainingShare | None:
        """Return after which share of its training a stint pauses; None: it trains to the end."""
        slot = self.slots[stint]
        assert slot is not None
        resources = self.brackets[slot.bracket].resources
        return None if slot.rung == len(resources) - 1 else (resources[slot.rung], resources[-1])

    def not_promoted(self, trials: Sequence[LoggedTrial]) -> list[int]:
        """Return the trials that wait at a completed rung and are not among its best."""
        found = []
        for bracket in self.brackets:
            members: list[int] | None = self._first_members(bracket, trials)
            for rung in range(len(bracket.sizes) - 1):
                if members is None or not _have_ended(members, rung, trials):
                    break
                best = self._best(members, rung, bracket, trials)
                found += [number for number in members if number not in best and _is_paused(trials[number])]
                members = best
        return found

    def _trial(self, slot: Slot, trials: Sequence[LoggedTrial]) -> int | None:
        """Return the number of the trial of a stint; None if there is none of this rank."""
        bracket = self.brackets[slot.bracket]
        if slot.rung == 0:
            return bracket.first + slot.rank
        members = self._first_members(bracket, trials) or []
        for rung in range(slot.rung):
            members = self._best(members, rung, bracket, trials)
        return members[slot.rank] if slot.rank < len(members) else None

    def _first_members(self, bracket: Bracket, trials: Sequence[LoggedTrial]) -> list[int] | None:
        """Return the trials of a bracket that are trained for it; None before all are known."""
        numbers = range(bracket.first, bracket.first + bracket.sizes[0])
        if numbers.stop > len(trials):
            return None
        return [number for number in numbers if trials[number].same_as is None]

    def _best(
        self, members: Sequence[int], rung: int, bracket: Bracket, trials: Sequence[LoggedTrial]
    ) -> list[int]:
        """Return the trials that a rung promotes, best first; of equals, the one that began first."""
        sign = 1.0 if self.mode == "min" else -1.0
        ranked = []
        for number in members:
            ending = trials[number].stints[rung].ending
            if ending is not None and ending.status != "failed" and ending.value is not None:
                ranked.append((sign * ending.value, number))
        return [number for _, number in sorted(ranked)[: bracket.sizes[rung + 1]]]


def _have_ended(members: Sequence[int], rung: int, trials: Sequence[LoggedTrial]) -> bool:
    stints = [trials[number].stints for number in members]
    return all(len(one) > rung and one[rung].ending is not None for one in stints)


def _is_paused(trial: LoggedTrial) -> bool:
    return trial.ending is not None and trial.ending.status == "paused"
