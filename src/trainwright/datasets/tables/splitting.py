"""Divide rows into training, validation and test splits.

Rows are ordered by counter-based keys of the split's own seed, so equal rows and settings give equal splits
on every machine and with every version of every library. Within a split, rows keep the order of the source.
"""

from __future__ import annotations

import heapq
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

import numpy as np

from trainwright.config.splits import DEFAULT_TEST_SHARE, SplitConfig
from trainwright.datasets.tables.split_keys import HASHED, splits_of_hashes
from trainwright.datasets.tables.table import Table, iso_times, kind_of, missing
from trainwright.errors import DataError
from trainwright.order import SPLIT, permutation, stream_seed
from trainwright.types import Array, Ids, SplitName

Rows = dict[SplitName, Ids]
Kind = Literal["hash", "time", "group", "class", "random"]

# Random streams of the split's seed, apart from that of the ordinary split.
_FOLDS, _FOLD_VAL = 1, 2


class _Criterion(NamedTuple):
    """The criterion of a split: `values` (rows,) are times, groups or class indices; empty for `random`.

    For `hash` they are (rows, 2).
    """

    kind: Kind
    values: Array


def fractions(config: SplitConfig, provided: AbstractSet[SplitName]) -> tuple[float, float]:
    """Return the shares of the training rows to use for validation and test.

    Args:
        config: The section `data.split`.
        provided: The splits that have rows of their own; the share of such a split is 0. With `{"train"}`,
            both shares are taken from the training rows.

    Raises:
        DataError: Nothing would be left for training, or folds are requested of more than one source.
    """
    if config.folds is not None or config.val_folds is not None:
        if provided != {"train"}:
            raise DataError(
                f"data.split.{'folds' if config.folds else 'val_folds'} divides the rows of one source into "
                "training, validation and test; give "
                "them as data.path (in Python: one pair or data frame), without other rows for validation "
                "or test"
            )
        if config.folds is not None:
            return config.val, 0.0
    val = 0.0 if "val" in provided else config.val
    test = 0.0 if "test" in provided else DEFAULT_TEST_SHARE if config.test is None else config.test
    if val + test >= 1:
        raise DataError(
            f"data.split: val {val} and test {test} leave nothing to train on; together they must stay "
            "below 1"
        )
    return val, test


def split_rows(table: Table, config: SplitConfig, val: float, test: float, labels: Array | None) -> Rows:
    """Split the rows of a table.

    With `config.folds`, the test split is fold number `config.fold`, and `val` is a share of the other rows.
    By time, the rows are cut into one block more than there are folds: block i + 1 is fold i, older blocks
    train and validate, and newer rows are in no split (an expanding window). With `config.val_folds`, the
    rows that do not test are cut in the same way, and a fold validates; the test split is left out.

    Args:
        table: The rows; with a column `HASHED` if `config.by` is `hash`.
        config: The section `data.split`.
        val: Share of the rows for validation; 0 for no such split.
        test: Share of the rows for the test; 0 for no such split. Without effect with folds.
        labels: (rows,) int64 class indices, None for regression.

    Returns:
        The positions of each split's rows, ascending. `train` is always present.

    Raises:
        DataError: The settings contradict each other, or a split would be empty.
    """
    _refuse_contradictions(config, labels)
    by, n = _criterion(table, config, labels), len(table)
    is_cut = config.folds is not None or config.val_folds is not None
    if not is_cut and not val and not test and by.kind in ("class", "random"):
        return {"train": np.arange(n)}
    if by.kind == "hash":
        train, vals, tests = map(np.flatnonzero, splits_of_hashes(by.values, config, val, test))
        rows: Rows = {"train": train, "val": vals, "test": tests if config.val_folds is None else tests[:0]}
    elif config.folds is None:
        rows = _split_once(by, n, (_count(n, val), _count(n, test)), config.seed)
    else:
        rows = _fold_rows(table, by, config, val)
    if config.folds is not None:
        val, test = val * (1 - 1 / config.folds), 1 / config.folds
    if config.val_folds is not None:
        if by.kind != "hash":
            rest = np.sort(np.concatenate([rows["train"], rows["val"]]))
            rows = _val_fold_rows(table, by, config, rest)
        val, test = 1 / config.val_folds, 0.0
    _refuse_empty(rows, table, config, val, test)
    return {name: np.sort(ids) for name, ids in rows.items() if name == "train" or len(ids)}


def _criterion(table: Table, config: SplitConfig, labels: Array | None) -> _Criterion:
    if config.by == "hash":
        if HASHED not in table.columns:
            raise DataError(
                "data.split.by: hash needs rows with named columns, and these have none; leave it out, or "
                "give a table (in Python: a data frame)"
            )
        return _Criterion("hash", table.columns[HASHED])
    if config.time is not None:
        return _Criterion("time", _times(table, config.time))
    if config.group is not None:
        return _Criterion("group", group_numbers(table, config.group))
    if labels is not None and config.stratify is not False:
        return _Criterion("class", labels)
    return _Criterion("random", np.empty(0))


def _split_once(by: _Criterion, n: int, wanted: tuple[int, int], seed: int) -> Rows:
    """Split `n` rows, with `wanted` (validation, test) rows."""
    val, test = wanted
    if by.kind == "time":
        return _by_time(by.values, val, test)
    if by.kind == "group":
        return _by_group(by.values, val, test, seed)
    if by.kind == "class":
        return _by_class(by.values, val, test, seed)
    return _cut(_order(seed, n), test, val)


def _count(n: int, share: float) -> int:
    return int(n * share + 0.5)


def _order(seed: int, n: int) -> Ids:
    return permutation(stream_seed(seed, SPLIT), n)


def _cut(order: Ids, test: int, val: int) -> Rows:
    return {"train": order[test + val :], "val": order[test : test + val], "test": order[:test]}


def _refuse_contradictions(config: SplitConfig, labels: Array | None) -> None:
    if config.time and config.group:
        raise DataError("data.split: group and time cannot be combined; give one of them")
    if config.stratify and (config.time or config.group):
        raise DataError(
            f"data.split: stratify cannot be combined with {'time' if config.time else 'group'}; leave one "
            "out"
        )
    if config.stratify and labels is None:
        raise DataError(
            "data.split.stratify: the target holds values, not classes; leave it out, or set data.task: "
            "classification"
        )


def _refuse_empty(rows: Rows, table: Table, config: SplitConfig, val: float, test: float) -> None:
    wanted: dict[SplitName, float] = {"train": 1 - val - test, "val": val, "test": test}
    for name, share in wanted.items():
        if share and not len(rows[name]):
            together = config.group or config.time or ", ".join(config.keys)
            why = f", and rows of one {together!r} stay together" if together else ""
            cure = "" if name == "train" else f", a larger data.split.{name}, or 0 for no such split"
            gets = f"it gets {share:.3g} of {len(table)} rows"
            if config.val_folds is not None:
                gets = f"of {len(table)} rows, in fold {config.val_fold} of {config.val_folds}"
                cure = ", or fewer tuning.folds"
            if config.folds is not None:
                gets = f"of {len(table)} rows, in fold {config.fold} of {config.folds}"
                cure = f", fewer data.split.folds{', or data.split.val: 0' if name == 'val' else ''}"
            raise DataError(
                f"{table.source}: the {name} split would be empty: {gets}{why}; give more rows{cure}"
            )


def _fold_rows(table: Table, by: _Criterion, config: SplitConfig, val: float) -> Rows:
    """Return the rows of one fold as the test split; a share of its training rows validates."""
    assert config.folds is not None, "the caller checks it"
    assert config.fold is not None, "`SplitConfig` checks it"
    tested, rest = _fold(table, by, np.arange(len(table)), config)
    seed = stream_seed(config.seed, SPLIT, _FOLD_VAL, config.fold)
    inner = _split_once(_among(by, rest), len(rest), (_count(len(rest), val), 0), seed)
    return {"train": rest[inner["train"]], "val": rest[inner["val"]], "test": tested}


def _val_fold_rows(table: Table, by: _Criterion, config: SplitConfig, rows: Ids) -> Rows:
    """Return one fold of some rows, ascending, as the validation split, and the others to train on."""
    validated, rest = _fold(table, _among(by, rows), rows, config)
    return {"train": rows[rest], "val": rows[validated], "test": rows[:0]}


def _among(by: _Criterion, rows: Ids) -> _Criterion:
    """Return the criterion of some of the rows; their groups are numbered anew."""
    values = by.values[rows] if len(by.values) else by.values
    if by.kind == "group":
        values = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return by._replace(values=values)


def _fold(table: Table, by: _Criterion, rows: Ids, config: SplitConfig) -> tuple[Ids, Ids]:
    """Return the positions of one fold among the rows, and those that may train for it.

    Args:
        table: The table, for messages.
        by: The criterion of these rows.
        rows: The rows that are cut.
        config: The section `data.split`; `folds` and `fold`, or `val_folds` and `val_fold`.
    """
    folds, fold, n = config.folds or config.val_folds or 0, config.fold or config.val_fold or 0, len(rows)
    most = n - (by.kind == "time")
    if folds > most:
        key = "data.split.folds" if config.folds else "tuning.folds"
        raise DataError(f"{table.source}: {key}: {folds} folds of {n} rows; allowed: 2 to {most}")
    if by.kind == "time":
        return _block_of_time(by.values, folds, fold)
    own = stream_seed(config.seed, SPLIT, _FOLDS)
    if by.kind == "group":
        if (groups := int(by.values.max()) + 1) < folds:
            raise DataError(
                f"{table.source}: data.split.group has {groups} groups, too few for {folds} folds; ask for "
                "fewer"
            )
        numbers = folds_of_groups(by.values, folds, own)
    else:
        order = permutation(own, n)
        if by.kind == "class":
            _refuse_lonely(table, by.values, rows)
            order = order[np.argsort(by.values[order], kind="stable")]
        numbers = np.empty(n, dtype=np.int64)
        numbers[order] = np.arange(n) % folds  # like dealing cards: folds differ by one row at most
    return np.flatnonzero(numbers == fold), np.flatnonzero(numbers != fold)


def _refuse_lonely(table: Table, labels: Array, rows: Ids) -> None:
    """Refuse classes of one of the rows, which cannot be both trained and tested."""
    alone = np.isin(labels, np.flatnonzero(np.bincount(labels) == 1))
    if alone.any():
        mask = np.zeros(len(table), dtype=bool)
        mask[rows[alone]] = True
        raise DataError(
            f"{table.source}: data.split.folds: the class of {table.where(mask)} has no other row, so the "
            "fold that tests it could not train it; leave such rows out, or give more of them"
        )


def folds_of_groups(groups: Array, folds: int, seed: int) -> Ids:
    """Return fold numbers, (rows,): largest groups first, each to the fold with the fewest rows so far."""
    sizes = np.bincount(groups)
    order = permutation(seed, len(sizes))  # random among groups of equal size
    loads = [(0, fold) for fold in range(folds)]
    fold_of = np.empty(len(sizes), dtype=np.int64)
    for group in order[np.argsort(-sizes[order], kind="stable")].tolist():
        rows, fold = heapq.heappop(loads)
        fold_of[group] = fold
        heapq.heappush(loads, (rows + int(sizes[group]), fold))
    return fold_of[groups]


def _block_of_time(times: Array, folds: int, fold: int) -> tuple[Ids, Ids]:
    """Return a block of rows, and all older rows. Rows of equal time stay together, in the older block."""
    order = np.argsort(times, kind="stable").astype(np.int64)
    size = len(times) // (folds + 1)
    first = len(times) - (folds - fold) * size
    start, stop = _after(times[order], first), _after(times[order], first + size)
    return order[start:stop], order[:start]


def _by_class(labels: Array, val: int, test: int, seed: int) -> Rows:
    """Split each class in proportion, by largest remainders, with at least one row per class to train on."""
    sizes = np.bincount(labels)
    tests = _apportion(sizes, test, np.maximum(sizes - 1, 0))
    vals = _apportion(sizes, val, np.maximum(sizes - tests - 1, 0))
    order = _order(seed, len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rank = np.arange(len(labels)) - np.repeat(starts, sizes)  # of a row within its class; the order is random
    in_test = rank < np.repeat(tests, sizes)
    in_val = ~in_test & (rank < np.repeat(tests + vals, sizes))
    return {"train": by_class[~in_test & ~in_val], "val": by_class[in_val], "test": by_class[in_test]}


def _apportion(sizes: Array, total: int, room: Array) -> Array:
    """Distribute `total` in proportion to `sizes`, by largest remainders, with at most `room` for each."""
    # In integers, because floating point would break ties differently from one library to the next.
    quotas, remainders = np.divmod(sizes.astype(np.int64) * total, max(1, int(sizes.sum())))
    shares = np.minimum(quotas, room)
    while (left := total - int(shares.sum())) > 0 and (open_ := np.flatnonzero(shares < room)).size:
        owed = open_[np.argsort(-(remainders[open_] + (quotas - shares)[open_] * sizes.sum()), kind="stable")]
        shares[owed[:left]] += 1
    return shares


def group_numbers(table: Table, name: str) -> Array:
    """Return group numbers, (rows,) int64, in the order of the groups' first rows."""
    values = table.column(name, "data.split.group")
    if (absent := missing(values)).any():
        raise DataError(
            f"{table.source}: column {name!r} (data.split.group) has no value in {table.where(absent)}"
        )
    numbers: dict[object, int] = {}
    return np.fromiter(
        (numbers.setdefault(value, len(numbers)) for value in values.tolist()),
        dtype=np.int64,
        count=len(values),
    )


def _by_group(groups: Array, val: int, test: int, seed: int) -> Rows:
    """Draw whole groups in random order until a split has its rows; the rest train."""
    sizes = np.bincount(groups)
    free = [int(group) for group in _order(seed, len(sizes))]
    rows: Rows = {}
    wanted: tuple[tuple[SplitName, int], ...] = (("test", test), ("val", val))
    for name, rows_wanted in wanted:
        later = 1 + (name == "test" and val > 0)  # splits that still need a group
        drawn = _draw(free, sizes, rows_wanted, len(free) - later)
        free = [group for group in free if group not in drawn]
        rows[name] = np.flatnonzero(np.isin(groups, list(drawn)))
    rows["train"] = np.flatnonzero(np.isin(groups, free))
    return rows


def _draw(free: list[int], sizes: Array, wanted: int, most: int) -> set[int]:
    """Return at most `most` groups with at most `wanted` rows; the smallest group if all are larger."""
    drawn: set[int] = set()
    total = 0
    for group in free:
        if total + sizes[group] <= wanted and len(drawn) < most:
            drawn.add(group)
            total += int(sizes[group])
    if not drawn and wanted and most > 0:
        drawn.add(min(free, key=lambda group: int(sizes[group])))
    return drawn


def _times(table: Table, name: str) -> Array:
    """Return sortable times, (rows,): numbers, or datetime64 in UTC."""
    values = table.column(name, "data.split.time")
    if (absent := missing(values)).any():
        raise DataError(
            f"{table.source}: column {name!r} (data.split.time) has no value in {table.where(absent)}"
        )
    if kind_of(values) != "text":
        return values
    times = iso_times(values)
    if (bad := missing(times)).any():
        raise DataError(
            f"{table.source}: column {name!r} (data.split.time): {values[bad][0]!r} is not a time, in "
            f"{table.where(bad)}; give numbers, or dates as 2026-01-31 or 2026-01-31T12:00:00"
        )
    return times


def _by_time(times: Array, val: int, test: int) -> Rows:
    """Test on the newest rows and validate on those before. Rows of equal time stay in the older split."""
    order = np.argsort(times, kind="stable").astype(np.int64)
    in_order, n = times[order], len(times)

    first_test = _after(in_order, n - test)
    first_val = min(_after(in_order, n - test - val), first_test)
    return {"train": order[:first_val], "val": order[first_val:first_test], "test": order[first_test:]}


def _after(in_order: Array, position: int) -> int:
    """Return where to cut ascending times so that equal times stay together, at `position` or after."""
    inside = 0 < position < len(in_order)
    return int(np.searchsorted(in_order, in_order[position - 1], side="right")) if inside else position
