"""The rows of one table and their counterparts in another, by key or by content."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from trainwright.types import Array, Ids


@dataclass(frozen=True)
class Keyed:
    """The rows of a table by their hashes, (2, rows) uint64.

    `rows` are of all cells, `keys` of those of the key; None where rows have no key. `keyless` (rows,) bool
    are those whose key is missing.
    """

    rows: Array
    keys: Array | None = None
    keyless: Array | None = None

    def __len__(self) -> int:
        return int(self.rows.shape[1])


@dataclass(frozen=True)
class Matching:
    """The rows of two tables that belong together, by their positions.

    The rows `first` (pairs,) of the first table, which ascend, are the rows `second` (pairs,) of the second
    one. `removed` and `added` have no counterpart. `suspects` are pairs of those that stand at the same place
    between other rows: they may be one row that was changed. `repeated` counts, in each table, the keys that
    more than one of its rows has, and `keyless` the rows without a key.
    """

    first: Ids
    second: Ids
    removed: Ids
    added: Ids
    suspects: tuple[Ids, Ids]
    repeated: tuple[int, int] = (0, 0)
    keyless: tuple[int, int] = (0, 0)


def match(first: Keyed, second: Keyed) -> Matching:
    """Match the rows of two tables: by key, where they have one, else by content.

    A row whose key is missing, or is that of another row of its table, is matched by content, with others of
    that kind. Of rows with the same content, as many are matched as both tables have.
    """
    if first.keys is None or second.keys is None:
        one, two = _same(first.rows, second.rows)
        return _matching(first, second, one, two, by_place=True)
    special, repeated = _specials(first, second)
    if not any(mask.any() for mask in special):
        return _matching(first, second, *_same(first.keys, second.keys))
    one, two = (np.flatnonzero(~mask) for mask in special)
    ours, theirs = _same(first.keys[:, one], second.keys[:, two])
    apart = [np.flatnonzero(mask) for mask in special]
    more = _same(first.rows[:, apart[0]], second.rows[:, apart[1]])
    left = np.concatenate([one[ours], apart[0][more[0]]])
    right = np.concatenate([two[theirs], apart[1][more[1]]])
    order = np.argsort(left, kind="stable")
    keyless = [0 if side.keyless is None else int(side.keyless.sum()) for side in (first, second)]
    return _matching(first, second, left[order], right[order], repeated, (keyless[0], keyless[1]))


def _matching(
    first: Keyed,
    second: Keyed,
    one: Ids,
    two: Ids,
    repeated: tuple[int, int] = (0, 0),
    keyless: tuple[int, int] = (0, 0),
    *,
    by_place: bool = False,
) -> Matching:
    removed, added = _others(one, len(first)), _others(two, len(second))
    none = np.empty(0, dtype=np.int64)
    suspects = _at_same_place(one, np.sort(two), removed, added) if by_place else (none, none)
    return Matching(one, two, removed, added, suspects, repeated, keyless)


def _others(ids: Ids, rows: int) -> Ids:
    mask = np.ones(rows, dtype=bool)
    mask[ids] = False
    return np.flatnonzero(mask)


def _at_same_place(one: Ids, two: Ids, removed: Ids, added: Ids) -> tuple[Ids, Ids]:
    """Return pairs of removed and added rows that have as many matched rows before them."""
    ours, theirs = _numbered(np.searchsorted(one, removed)), _numbered(np.searchsorted(two, added))
    size = max(ours[1].max(initial=0), theirs[1].max(initial=0)) + 1
    _, i, j = np.intersect1d(
        ours[0] * size + ours[1], theirs[0] * size + theirs[1], assume_unique=True, return_indices=True
    )
    return removed[i], added[j]


def _numbered(groups: Ids) -> tuple[Ids, Ids]:
    """Return groups (rows,), and the number of earlier rows of the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    numbers = np.empty(len(groups), dtype=np.int64)
    numbers[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(starts, append=len(groups)))
    return groups, numbers


def _specials(first: Keyed, second: Keyed) -> tuple[tuple[Array, Array], tuple[int, int]]:
    """Return masks of the rows that are matched by content, and how many keys each table repeats."""
    masks = [
        np.zeros(len(one), dtype=bool) if one.keyless is None else one.keyless.copy()
        for one in (first, second)
    ]
    assert first.keys is not None
    assert second.keys is not None
    if not any(
        may_repeat(keys[0, ~mask]) for keys, mask in zip((first.keys, second.keys), masks, strict=True)
    ):
        return (masks[0], masks[1]), (0, 0)
    codes = _codes(first.keys, second.keys)
    counts = [
        np.bincount(code[~mask], minlength=int(max(one.max(initial=0) for one in codes)) + 1)
        for code, mask in zip(codes, masks, strict=True)
    ]
    repeated = (counts[0] > 1) | (counts[1] > 1)
    masks = [mask | repeated[code] for code, mask in zip(codes, masks, strict=True)]
    return (masks[0], masks[1]), (int((counts[0] > 1).sum()), int((counts[1] > 1).sum()))


def may_repeat(lane: Array) -> bool:
    """Return whether the first halves of hashes, (rows,), repeat, as all do that repeat."""
    lane = np.sort(lane)
    return bool((lane[1:] == lane[:-1]).any())


def _same(first: Array, second: Array) -> tuple[Ids, Ids]:
    """Return the positions of equal hashes, (2, rows) each, in both; those of the first ascend."""
    before = _alike(first, second)
    after = _alike(first[:, before:][:, ::-1], second[:, before:][:, ::-1])
    inner = [one[:, before : one.shape[1] - after] for one in (first, second)]
    ours, theirs = map(_numbered, _codes(*inner))
    size = max(ours[1].max(initial=0), theirs[1].max(initial=0)) + 1
    _, i, j = np.intersect1d(
        ours[0] * size + ours[1], theirs[0] * size + theirs[1], assume_unique=True, return_indices=True
    )
    order = np.argsort(i, kind="stable")
    start, end = np.arange(before), np.arange(after)
    one = [start, before + i[order], first.shape[1] - after + end]
    two = [start, before + j[order], second.shape[1] - after + end]
    return np.concatenate(one), np.concatenate(two)


def _alike(first: Array, second: Array) -> int:
    """Return the number of rows at the beginning that are equal."""
    count = min(first.shape[1], second.shape[1])
    other = differ(first[:, :count], second[:, :count])
    return int(other.argmax()) if other.any() else count


def differ(first: Array, second: Array) -> Array:
    """Return a mask, (rows,) bool, of the hashes, (2, rows), that differ."""
    other: Array = (first[0] != second[0]) | (first[1] != second[1])
    return other


def _codes(first: Array, second: Array) -> tuple[Ids, Ids]:
    """Return a number for each hash, (rows,) int64: the same one for the same hash of 128 bits."""
    low, high = (np.concatenate([first[lane], second[lane]]) for lane in range(2))
    order = np.argsort(low)
    new = np.diff(low[order], prepend=np.uint64(0)) != 0
    if ((np.diff(high[order], prepend=np.uint64(0)) != 0) & ~new)[1:].any():
        order = np.lexsort((high, low))
        new = np.diff(low[order], prepend=np.uint64(0)) != 0
        new |= np.diff(high[order], prepend=np.uint64(0)) != 0
    codes = np.empty(len(low), dtype=np.int64)
    codes[order] = np.cumsum(new)
    return codes[: first.shape[1]], codes[first.shape[1] :]


def moved(positions: Ids) -> int:
    """Return how many rows, at least, must be moved to bring positions (rows,) into ascending order.

    These are all but a longest ascending subsequence (Schensted 1961).
    """
    drops = np.flatnonzero(np.diff(positions) < 0)
    if not len(drops):
        return 0
    first, last = drops[0] + 1, drops[-1] + 1
    # What is in its place before and after all others needs no search.
    start = np.searchsorted(positions[:first], positions[first:].min())
    stop = last + np.searchsorted(positions[last:], positions[:last].max())
    ends: list[int] = []  # the least last position of the ascending subsequences of each length
    for position in positions[start:stop].tolist():
        if not ends or position > ends[-1]:
            ends.append(position)
        else:
            ends[bisect_left(ends, position)] = position
    return int(stop - start) - len(ends)
