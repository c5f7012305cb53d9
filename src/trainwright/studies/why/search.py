"""The search for the changes that moved a metric: which sets of changes to measure, under how many seeds.

It knows no runs: `measure` returns the metric under a set of changes and a seed. The changes are narrowed
down as in delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002):
groups of them are made alone, and left out alone, and groups that matter in neither way are dropped. The few
that are left get Shapley shares (Shapley, "A value for n-person games", 1953; of many changes, orders are
sampled, each with its reverse: Castro, Gomez and Tejada, 2009), one under each seed, and a t-test over the
seeds says which stand out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from trainwright.evaluation.significance import holm, student_p, student_quantile

Changes = frozenset[str]
Measure = Callable[[Changes, int], float | None]
Value = Callable[[Changes], float | None]
ALPHA = 0.05  # the probability of naming a change although nothing but the seed moves the metric
LOOKS = (3, 5, 8, 12)  # numbers of seeds after which it is asked whether something stands out
SMALL = 0.05  # a change with a smaller part of the whole difference is not among the few that matter
_NONE: Changes = frozenset()
Verdict = Literal["moved", "none", "unsettled"]
MOST_EXACT = 5  # changes, of which all subsets are computed: 32
_SAMPLED = 4  # orders, and as many reverse ones


class BudgetSpentError(Exception):
    """The runs that may be trained are used up."""


@dataclass(frozen=True)
class Effect:
    """The mean of a difference over seeds, its 95% interval, and the probability of it being noise.

    `low` and `high` are None where there is no noise to judge by.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Share:
    """The part of a change in the difference.

    `alone` is the effect of this change alone, `last` that of adding it to the others that matter, and
    `effect` its Shapley share; None where that could not be measured. `p` is that of the share, corrected.
    """

    name: str
    effect: Effect | None
    alone: float | None
    last: float | None
    p: float | None

    @property
    def stands_out(self) -> bool:
        """True if the share is more than noise."""
        return self.p is not None and self.p < ALPHA


@dataclass(frozen=True)
class Findings:
    """The answer: `shares` of the changes that matter, largest first, and what the `others` add together.

    `total` is the effect of all changes, `noise` the standard deviation between seeds, `seeds` their number.
    `exact` says that seeds change nothing, and `spent` that the budget ended the search.
    """

    verdict: Verdict
    total: Effect | None
    noise: float
    seeds: int
    shares: Sequence[Share] = ()
    others: Effect | None = None
    other_names: Sequence[str] = ()
    exact: bool = False
    spent: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the findings for JSON."""
        stands_out = [share.stands_out for share in self.shares]
        plain = asdict(self)
        plain["noise"] = None if math.isnan(self.noise) else self.noise  # of a single seed
        plain["shares"] = [
            share | {"stands_out": stands} for share, stands in zip(plain["shares"], stands_out, strict=True)
        ]
        return plain


def effect_of(values: Sequence[float], resolution: float = 0.0, *, exact: bool = False) -> Effect:
    """Return the effect that paired differences show, by Student's t.

    Args:
        values: The difference under each seed.
        resolution: The step of a metric that has steps, such as an accuracy. Equal differences are no proof
            then, and the variance counts as at least that of two roundings.
        exact: Whether seeds change nothing: then the difference is what it is.
    """
    mean, count = float(np.mean(values)), len(values)
    if exact or count < 2:
        return Effect(mean, None, None, float(mean == 0) if exact else 1.0, list(values))
    variance = max(float(np.var(values, ddof=1)), resolution**2 / 6)
    error = math.sqrt(variance / count)
    if error == 0:
        return Effect(mean, mean, mean, float(mean == 0), list(values))
    half = student_quantile(count - 1) * error
    return Effect(mean, mean - half, mean + half, student_p(mean / error, count - 1), list(values))


class Search:
    """The search for the changes that moved the metric.

    Args:
        changes: The names of the changes.
        seeds: The seeds, at least as many as the last of `LOOKS`.
        measure: Returns the metric, or None if that config cannot be trained; for no change and for all
            changes it has a value.
        exact: Returns whether seeds change nothing; asked after all ends were measured under two seeds.
    """

    def __init__(
        self, changes: Sequence[str], seeds: Sequence[int], measure: Measure, exact: Callable[[], bool]
    ) -> None:
        self._changes, self._seeds, self._measure, self._ask_exact = list(changes), seeds, measure, exact
        self._all: Changes = frozenset(changes)
        self._exact = False
        self._values: dict[tuple[Changes, int], float | None] = {}
        self._findings = Findings("unsettled", None, math.nan, 0)

    def run(self) -> Findings:
        """Measure until it is settled, or the budget is spent."""
        try:
            self._search()
        except BudgetSpentError:
            self._note(spent=True)
        return self._findings

    def _search(self) -> None:
        for seed in self._seeds[:2]:
            self._value(_NONE, seed)
            self._value(self._all, seed)
        self._exact = self._ask_exact()
        if not self._changes:
            self._conclude_without_changes()
            return
        count = self._seeds_that_show()
        if count is None:
            self._note(verdict="none")
            return
        kept = self._narrow(count)
        for look in [look for look in LOOKS if look >= count] if not self._exact else [1]:
            self._share(kept, look)
            if all(share.stands_out for share in self._findings.shares):
                return

    def _note(self, **values: Any) -> None:
        self._findings = replace(self._findings, exact=self._exact, **values)

    def _conclude_without_changes(self) -> None:
        count = 2 if self._exact else LOOKS[1]
        for seed in self._seeds[:count]:
            self._value(_NONE, seed)
        self._note(verdict="none", noise=self._noise(count), seeds=count)

    def _seeds_that_show(self) -> int | None:
        """Return the number of seeds under which all changes together stand out; None if none does."""
        for count in (1,) if self._exact else LOOKS:
            total = self._paired(self._all, _NONE, count)
            assert total is not None, "both ends have values"
            self._note(total=total, noise=self._noise(count), seeds=count)
            if total.p < ALPHA / self._looks:
                return count
            if count >= LOOKS[1] and not any(total.values):
                return None
        return None

    @property
    def _looks(self) -> int:
        return 1 if self._exact else len(LOOKS)

    # -- narrowing

    def _narrow(self, count: int) -> list[str]:
        """Return the changes that matter: delta debugging with sets that are measured from both ends."""
        kept, parts = list(self._changes), 2
        while len(kept) > 1:
            self._note(other_names=[name for name in self._changes if name not in kept])
            groups = _split(kept, parts)
            idle = self._idle(groups, kept, count)
            if idle:
                kept = [name for name in kept if not any(name in group for group in idle)]
                parts = max(2, min(parts - len(idle), len(kept)))
            elif parts >= len(kept):
                break
            else:
                parts = min(2 * parts, len(kept))
        return kept

    def _idle(self, groups: Sequence[Sequence[str]], kept: Sequence[str], count: int) -> list[Sequence[str]]:
        """Return the groups that can be dropped from those that are kept."""
        sizes = {index: self._size(group, kept, count) for index, group in enumerate(groups)}
        idle = [index for index, size in sizes.items() if size < 1]
        if len(idle) == len(groups):  # something moved the metric
            idle.remove(max(idle, key=lambda index: sizes[index]))
        together = [name for index in idle for name in groups[index]]
        if len(idle) > 1 and self._size(together, kept, count) >= 1:
            idle = [min(idle, key=lambda index: sizes[index])]
        return [groups[index] for index in idle]

    def _size(self, group: Sequence[str], kept: Sequence[str], count: int) -> float:
        """Return how much a group matters; less than 1: neither alone nor with the others kept.

        A group that could not be measured matters.
        """
        everything, changes = frozenset(kept), frozenset(group)
        effects = [
            self._paired(changes, _NONE, count),
            self._paired(everything, everything - changes, count),
        ]
        return max(math.inf if effect is None else self._weight(effect) for effect in effects)

    def _weight(self, effect: Effect) -> float:
        """Return the size of an effect in the smallest size that matters; below 1 if it is noise."""
        assert self._findings.total is not None
        least = SMALL * abs(self._findings.total.mean)
        weight = abs(effect.mean) / least
        return weight if effect.p < ALPHA else min(weight, 1 - 1 / (2 + weight))

    # -- shares

    def _share(self, kept: Sequence[str], count: int) -> None:
        """Compute the shares under the first seeds, and record them."""
        orders = orders_of(kept)
        for seed in self._seeds[:count]:
            for changes in [_NONE, self._all, *subsets_of(orders)]:
                self._value(changes, seed)
        by_seed = [shares(orders, partial(self._value, seed=seed)) for seed in self._seeds[:count]]
        complete = [one for one in by_seed if one is not None]
        effects = {
            name: self._effect([one[name] for one in complete]) if len(complete) == count else None
            for name in kept
        }
        self._note(
            verdict="unsettled",
            total=self._paired(self._all, _NONE, count),
            noise=self._noise(count),
            seeds=count,
            shares=self._judged(effects, count),
            others=self._paired(self._all, frozenset(kept), count) if len(kept) < len(self._all) else None,
            other_names=[name for name in self._changes if name not in kept],
        )
        if any(share.stands_out for share in self._findings.shares):
            self._note(verdict="moved")

    def _judged(self, effects: Mapping[str, Effect | None], count: int) -> list[Share]:
        """Return the shares, largest first.

        Their p-values are corrected for all changes, as these were chosen among them by the same runs
        (Holm), and for the number of looks (Bonferroni).
        """
        raw = [math.nan if effect is None else effect.p for effect in effects.values()]
        dropped = [1.0] * (len(self._changes) - len(effects))
        adjusted = holm([*raw, *dropped])
        everything = frozenset(effects)
        judged = []
        for (name, effect), p in zip(effects.items(), adjusted, strict=False):
            alone = self._paired(frozenset([name]), _NONE, count)
            last = self._paired(everything, everything - {name}, count)
            judged.append(
                Share(
                    name,
                    effect,
                    None if alone is None else alone.mean,
                    None if last is None else last.mean,
                    None if math.isnan(p) else min(1.0, p * self._looks),
                )
            )
        return sorted(judged, key=lambda share: -abs(share.effect.mean) if share.effect else 0.0)

    # -- values

    def _value(self, changes: Changes, seed: int) -> float | None:
        if (changes, seed) not in self._values:
            self._values[changes, seed] = self._measure(changes, seed)
        return self._values[changes, seed]

    def _paired(self, one: Changes, other: Changes, count: int) -> Effect | None:
        """Return the effect of one set of changes against another, seed by seed; None if one has no value."""
        differences = []
        for seed in self._seeds[:count]:
            first, second = self._value(one, seed), self._value(other, seed)
            if first is None or second is None:
                return None
            differences.append(first - second)
        return self._effect(differences)

    def _effect(self, differences: Sequence[float]) -> Effect:
        return effect_of(differences, self._resolution(), exact=self._exact)

    def _resolution(self) -> float:
        """Return the smallest step between two values that were measured."""
        values = np.unique([value for value in self._values.values() if value is not None])
        steps = np.diff(values)
        steps = steps[steps > 1e-9 * np.abs(values).max(initial=0.0)]
        return float(steps.min(initial=math.inf)) if len(steps) else 0.0

    def _noise(self, count: int) -> float:
        """Return the standard deviation between the seeds, of the config before and the one after."""
        ends = [
            [value for seed in self._seeds[:count] if (value := self._values.get((end, seed))) is not None]
            for end in {_NONE, self._all}
        ]
        variances = [float(np.var(values, ddof=1)) for values in ends if len(values) > 1]
        return math.sqrt(float(np.mean(variances))) if variances else 0.0


def _split(names: Sequence[str], parts: int) -> list[list[str]]:
    """Cut names into parts whose lengths differ by one at most."""
    ends = [round(len(names) * index / parts) for index in range(parts + 1)]
    return [list(names[start:end]) for start, end in itertools.pairwise(ends) if end > start]


def orders_of(changes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the orders to average over: all, or a sample if there are more than `MOST_EXACT` changes."""
    if len(changes) <= MOST_EXACT:
        return list(itertools.permutations(changes))
    generator = np.random.default_rng(0)
    sample = [tuple(str(name) for name in generator.permutation(list(changes))) for _ in range(_SAMPLED)]
    return [order for one in sample for order in (one, one[::-1])]


def subsets_of(orders: Iterable[Sequence[str]]) -> list[Changes]:
    """Return the sets of changes whose values the shares are computed from, small ones first."""
    sets = {frozenset(order[:count]) for order in orders for count in range(len(order) + 1)}
    return sorted(sets, key=lambda one: (len(one), sorted(one)))


def shares(orders: Sequence[Sequence[str]], value: Value) -> dict[str, float] | None:
    """Return the mean of what each change adds, over the orders.

    An order that leads through a set of changes without a value is left out: its config cannot be trained.

    Args:
        orders: The orders; all have the same changes.
        value: Returns the value of a set of changes; None if it has none.

    Returns:
        The shares, which add up to the value of all changes minus that of none; None if no order is left.
    """
    sums = dict.fromkeys(orders[0], 0.0) if orders else {}
    count = 0
    for order in orders:
        values = [value(frozenset(order[:end])) for end in range(len(order) + 1)]
        known = [one for one in values if one is not None]
        if len(known) < len(values):
            continue
        count += 1
        for name, before, after in zip(order, known, known[1:], strict=False):
            sums[name] += after - before
    return {name: total / count for name, total in sums.items()} if count else None
