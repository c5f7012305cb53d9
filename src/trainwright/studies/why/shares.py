"""Shapley shares: how much each change adds to a value, on average over the orders in which to make them.

Method: Shapley, "A value for n-person games" (1953); for many changes, orders are sampled (Castro, Gomez and
Tejada, 2009), each with its reverse.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Changes = frozenset[str]
Value = Callable[[Changes], float | None]
MOST_EXACT = 5  # changes, of which all subsets are computed: 32
_SAMPLED = 4  # orders, and as many reverse ones


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
