"""What can be wrong with rows: what forbids training is an error, what only looks odd a warning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from trainyard.config.emit import inline
from trainyard.config.schema import DataConfig
from trainyard.datasets.rows.arrays import Arrays
from trainyard.datasets.rows.splitting import Rows
from trainyard.datasets.rows.table import Table, kind_of, listed, missing, nearest
from trainyard.errors import DataError
from trainyard.types import Array, SplitName

NUMBERS_ROWS = "only numbers the rows"
_SAMPLE = 10_000  # rows on which a suspicion is formed, before all are looked at
_ENOUGH = 20  # rows below which one column tells the target by chance too easily
_IDENTIFIERS = 50  # so many different texts, in most rows another, are no categories


def _instead(setting: str, name: str, table: Table) -> str:
    """What to say of a column that is not there; who may have named no target at all is told how."""
    if (setting, name) == ("data.target", DataConfig.model_fields["target"].default):
        return f"set data.target to the column to predict, one of: {listed(table.columns, 12)}"
    return nearest(name, table.columns)


def feature_columns(table: Table, config: DataConfig) -> list[str]:
    """The columns to learn from: all but the target, what the split goes by, and what is excluded.

    Raises:
        DataError: a column that the config names does not exist, or none remain.
    """
    named = {
        "data.target": [config.target],
        "data.features": config.features or [],
        "data.exclude": config.exclude,
    }
    unknown = [
        f"{setting}: there is no column {name!r}; {_instead(setting, name, table)}"
        for setting, names in named.items()
        for name in names
        if name not in table.columns
    ]
    if unknown:
        raise DataError(f"{table.source}: " + "\n  ".join(unknown))
    if config.target in (config.features or []):
        raise DataError(f"{table.source}: data.features names the target {config.target!r}; leave it out")
    left_out = {config.target, *config.exclude}
    if config.features is None:
        left_out |= {config.split.group or "", config.split.time or ""}
    names = [name for name in (config.features or table.columns) if name not in left_out]
    if not names:
        raise DataError(f"{table.source}: there is no column to learn from; it has {listed(table.columns)}")
    return names


def refuse_bad_cells(table: Table, names: Sequence[str], config: DataConfig) -> None:
    """Names all columns with missing (unless they are to be filled) or infinite values.

    Raises:
        DataError: there are some.
    """
    problems: list[str] = []
    fillable = False
    for name in names:
        values = table.column(name)
        gone = missing(values)
        if config.impute is None and gone.any():
            problems.append(f"column {name!r} has no value in {table.where(gone)}")
            fillable = True
        if values.dtype.kind == "f" and (infinite := np.isinf(values)).any():
            problems.append(f"column {name!r} is infinite in {table.where(infinite)}")
    if problems:
        advice = "mend these cells, or leave the columns out with data.exclude"
        fill = (
            ", or fill what is missing with data.impute: median (or mean, most_frequent)" if fillable else ""
        )
        more = [f"and {len(problems) - 5} more columns"] if len(problems) > 5 else []
        raise DataError(f"{table.source}: " + "\n  ".join([*problems[:5], *more, advice + fill]))


def refuse_mixtures(table: Table, names: Sequence[str]) -> None:
    """Text that is mostly numbers, in a file that does not know types, is numbers with some mistakes.

    Raises:
        DataError: a column is such; names the rows that are no numbers.
    """
    for name in names:
        if (stray := strays(table, name)).any():
            text = table.column(name)[stray][0]
            raise DataError(
                f"{table.source}: column {name!r} holds numbers, but {text!r} in {table.where(stray)}; mend "
                "it, "
                f"give data.params.missing: {inline([text])} if it means a missing value, "
                f"or data.params.text: {inline([name])} if the numbers stand for categories"
            )


def strays(table: Table, name: str) -> Array:
    """(rows,) bool: the texts in a column of numbers; all false for any other column.

    A column is one of numbers if more than half of its cells are, and the others are either few (a tenth), or the numbers
    of too many kinds (over ten) to be names of categories.
    """
    values = table.column(name)
    texts = np.zeros(len(values), dtype=bool)
    if name in table.guessed:
        texts[:] = [value is not None and not _is_number(value) for value in values]
    present, count = len(values) - int(missing(values).sum()), int(texts.sum())
    numbers = 2 * count < present and (10 * count <= present or len(set(values[~texts]) - {None}) > 10)
    return texts if numbers else np.zeros_like(texts)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_untrained_classes(
    table: Table, rows: Rows, codes: Array, labels: Sequence[Any], config: DataConfig
) -> None:
    """Every class must have training rows.

    Raises:
        DataError: a class has rows in other splits only, or training sees but one class.
    """
    counts = np.bincount(codes[rows["train"]], minlength=len(labels))
    absent = [label for label, count in zip(labels, counts, strict=True) if not count]
    if absent:
        here = table.where(np.isin(codes, np.flatnonzero(counts == 0)))
        cure = (
            "data.split.stratify: true" if not (config.split.group or config.split.time) else "another split"
        )
        raise DataError(
            f"{table.source}: class {listed(map(repr, absent))} of {config.target!r} has rows for "
            "validation or test only "
            f"({here}); {cure} or another data.split.seed would give it training rows"
        )


def single_rows(codes: Array, labels: Sequence[Any], config: DataConfig) -> list[str]:
    """Classes that cannot be divided."""
    counts = np.bincount(codes, minlength=len(labels))
    lonely = [repr(label) for label, count in zip(labels, counts, strict=True) if count == 1]
    if not lonely:
        return []
    return [
        f"the target {config.target!r} has one row only of {listed(lonely)}: it trains, and is never "
        "evaluated"
    ]


def odd_columns(table: Table, names: Sequence[str], targets: Array) -> list[str]:
    """Columns of the training rows that are constant, number the rows, identify them, or give the target away."""
    found: dict[str, list[str]] = {}
    for name in names:
        if says := oddity(table.column(name), targets):
            found.setdefault(says, []).append(name)
    return [
        f"{table.source}: column {listed(map(repr, columns))} {says}; to leave it out: data.exclude: "
        f"{inline(columns)}"
        for says, columns in found.items()
    ]


def oddity(values: Array, targets: Array) -> str | None:
    if _constant(values):
        return "holds one value in all training rows, and teaches nothing"
    if _numbers_rows(values):
        return NUMBERS_ROWS
    if _identifies(values):
        return "has another text in most rows, like an identifier"
    if _gives_away(values, targets):
        return "tells the target all by itself (is it known when you predict?)"
    return None


def _constant(values: Array) -> bool:
    return len(values) > 1 and bool((values == values[0]).all())


def _numbers_rows(values: Array) -> bool:
    if kind_of(values) != "number" or len(values) < 3:
        return False
    steps = np.diff(values)
    # Training rows keep their order but not their neighbours, so the steps are small whole numbers above 0.
    return bool(
        (steps >= 1).all() and (steps == np.trunc(steps)).all() and values[-1] - values[0] <= 4 * len(values)
    )


def _identifies(values: Array) -> bool:
    return kind_of(values) == "text" and len(set(values)) > max(_IDENTIFIERS, len(values) // 2)


def _gives_away(values: Array, targets: Array) -> bool:
    if len(values) < _ENOUGH or targets.ndim != 1 or kind_of(values) == "time" or missing(values).any():
        return False
    tells = _tells_class if targets.dtype.kind == "i" else _tells_value
    return tells(values[:_SAMPLE], targets[:_SAMPLE]) and (len(values) <= _SAMPLE or tells(values, targets))


def _tells_class(values: Array, targets: Array) -> bool:
    """Whether each class is one category, or one interval of the numbers."""
    if kind_of(values) == "text":
        classes: dict[str, int] = {}
        alike = all(
            classes.setdefault(value, target) == target
            for value, target in zip(values, targets.tolist(), strict=True)
        )
        return alike and len(classes) <= len(values) // 4
    order = np.lexsort((targets, values))
    ordered, classes_in_order = values[order], targets[order]
    changes = classes_in_order[1:] != classes_in_order[:-1]
    ties = ordered[1:] == ordered[:-1]
    return not (changes & ties).any() and int(changes.sum()) == len(np.unique(targets)) - 1


def _tells_value(values: Array, targets: Array) -> bool:
    if kind_of(values) == "text":
        return False
    x, y = values.astype(np.float64), targets.astype(np.float64)
    x, y = x - x.mean(), y - y.mean()
    # float32 targets agree with their origin to 7 digits.
    return bool(abs(x @ y) >= (1 - 1e-10) * np.sqrt((x @ x) * (y @ y)) > 0)


def repeated_rows(splits: Mapping[SplitName, Arrays], sources: Collection[SplitName]) -> list[str]:
    """Rows (features and target) that stand in two splits.

    Args:
        sources: the splits with rows of their own; the others are cut off the training rows.

    Raises:
        DataError: two sources that should differ hold the same rows.
    """
    hashes = {name: _row_hashes(split) for name, split in splits.items()}
    from_train = np.concatenate([hashes[name] for name in splits if name == "train" or name not in sources])
    for name in splits:
        if name in sources and name != "train" and np.isin(hashes[name], from_train).all():
            raise DataError(
                f"all {len(hashes[name])} {name} rows are also train rows: what is measured on them says "
                "nothing; give other rows"
            )
    warnings = []
    for one, other in combinations(splits, 2):
        if count := int(np.isin(hashes[other], hashes[one]).sum()):
            warnings.append(
                f"{count} of {len(hashes[other])} {other} rows are also {one} rows, which flatters the "
                "metrics"
            )
    return warnings


def _row_hashes(split: Arrays) -> Array:
    """(rows,) uint64. Chance makes two rows alike once in 10^19 pairs."""
    features = split.features.reshape(len(split), -1)
    targets = split.targets.reshape(len(split), -1)
    hashes = np.zeros(len(split), dtype=np.uint64)
    for matrix in (features, targets):
        for column in matrix.T:
            bits = column.astype(np.float64).view(np.uint64)
            hashes = (hashes ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
            hashes ^= hashes >> np.uint64(29)
    return hashes
