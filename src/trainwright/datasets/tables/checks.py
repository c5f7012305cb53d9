"""Checks of rows: an error if they cannot be trained on, a warning if they look odd."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from trainwright.config.emit import inline
from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.arrays import Arrays, is_frame
from trainwright.datasets.tables.splitting import Rows
from trainwright.datasets.tables.table import Table, kind_of, missing, nearest
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.records.manifest import RepeatedRows
from trainwright.require import require
from trainwright.types import WEIGHT, Array, SplitName

NUMBERS_ROWS = "only numbers the rows"
GIVES_AWAY = "determines the target all by itself (is it known when you predict?)"
_SAMPLE = 10_000  # rows on which a column is checked first, as most columns fail there
_LARGE = 100  # standardized values are hardly ever as large
_FEW = 200  # numbers of which each class must be one interval, before more are sorted
_ENOUGH = 20  # with fewer rows, a column determines the target by chance too easily
_IDENTIFIERS = 50  # more distinct texts, most of them used once, are identifiers rather than categories


def _suggestion(setting: str, name: str, table: Table) -> str:
    """Return the advice about a missing column; the default target means that the user named none."""
    if (setting, name) == ("data.target", DataConfig.model_fields["target"].default):
        return f"set data.target to the column to predict, one of: {listed(table.columns, 12)}"
    return nearest(name, table.columns)


def feature_columns(table: Table, config: DataConfig) -> list[str]:
    """Return the columns to learn from: all but the target, the columns of the split, and the excluded ones.

    A time that the rows are split by is learned from where there is nothing else.

    Raises:
        DataError: A column that the config names does not exist, or none remain.
    """
    named = {
        "data.target": config.targets,
        "data.features": config.features or [],
        "data.exclude": [name for name in config.exclude if name not in table.unread],
        "data.weight": [config.weight] if config.weight else [],
        "data.sampling.weight": [drawn] if (drawn := sampling_column(config.sampling)) else [],
        "data.columns": list(config.columns),
        "data.missing_values": list(config.missing_values) if isinstance(config.missing_values, dict) else [],
    }
    unknown = [
        f"{setting}: there is no column {name!r}; {_suggestion(setting, name, table)}"
        for setting, names in named.items()
        for name in names
        if name not in table.columns
    ]
    if unknown:
        raise DataError(f"{table.source}: " + "\n  ".join(unknown))
    if both := [name for name in config.targets if name in (config.features or [])]:
        raise DataError(f"{table.source}: data.features names the target {both[0]!r}; leave it out")
    for setting in ("data.weight", "data.sampling.weight"):
        for name in named[setting]:
            if name in [*config.targets, *(config.features or [])]:
                what = "is the target, too" if name in config.targets else "is named by data.features, too"
                raise DataError(f"{table.source}: {setting}: {name!r} {what}; a weight cannot be a feature")
    left_out = {*config.targets, config.weight or "", drawn or "", *config.exclude}
    if config.features is None:
        left_out |= {config.split.group or "", config.split.time or "", *config.split.keys}
    names = [name for name in (config.features or table.columns) if name not in left_out]
    if not names and config.features is None:
        names = [name for name in table.columns if name == config.split.time and name not in config.exclude]
    if not names:
        raise DataError(f"{table.source}: no usable feature column; it has {listed(table.columns)}")
    return names


def refuse_bad_cells(table: Table, names: Sequence[str], config: DataConfig) -> None:
    """Refuse columns with infinite values, or with missing values that are not to be imputed.

    Raises:
        DataError: There are such columns; names all of them.
    """
    problems: list[str] = []
    fillable = False
    for name in names:
        values = table.column(name)
        absent = missing(values)
        if config.impute is None and absent.any():
            problems.append(f"column {name!r} has no value in {table.where(absent)}")
            fillable = True
        if values.dtype.kind == "f" and (infinite := np.isinf(values)).any():
            problems.append(f"column {name!r} is infinite in {table.where(infinite)}")
    if problems:
        advice = "fix these cells, or leave the columns out with data.exclude"
        fill = (
            ", or fill what is missing with data.impute: median (or mean, most_frequent)" if fillable else ""
        )
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise DataError(f"{table.source}: " + "\n  ".join([*problems[:5], *more, advice + fill]))


def refuse_mixtures(table: Table, names: Sequence[str]) -> None:
    """Refuse columns of text that are mostly numbers, in files without types: the rest are probably mistakes.

    Raises:
        DataError: There is such a column; names it, and the rows that hold no number.
    """
    for name in names:
        if (stray := strays(table, name)).any():
            text = table.column(name)[stray][0]
            raise DataError(
                f"{table.source}: column {name!r} holds numbers, but {text!r} in {table.where(stray)}; fix "
                f"it, give data.params.missing: {inline([text])} if it means a missing value, or "
                f"data.params.text: {inline([name])} if the numbers stand for categories"
            )


def strays(table: Table, name: str) -> Array:
    """Return a mask, (rows,) bool, of the texts in a column of numbers; all false for any other column.

    A column counts as numbers if more than half of its cells are numbers, and either few of its cells are not
    (a tenth), or its numbers have too many different values (over ten) to be names of categories.
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
    """Refuse a split that leaves a class without training rows.

    Raises:
        DataError: A class has no training rows; names the class and its rows.
    """
    counts = np.bincount(codes[rows["train"]], minlength=len(labels))
    absent = [label for label, count in zip(labels, counts, strict=True) if not count]
    if absent:
        rows_of_class = table.where(np.isin(codes, np.flatnonzero(counts == 0)))
        split = config.split
        draws = not (split.group or split.time or split.by == "hash")
        cure = "data.split.stratify: true" if draws else "another split"
        raise DataError(
            f"{table.source}: class {listed(map(repr, absent))} of {config.target_name!r} has rows for "
            f"validation or test only ({rows_of_class}); {cure} or another data.split.seed would give it "
            "training rows"
        )


def single_rows(codes: Array, labels: Sequence[Any], config: DataConfig) -> list[str]:
    """Return a warning about classes of a single row, which cannot be split."""
    counts = np.bincount(codes, minlength=len(labels))
    lonely = [repr(label) for label, count in zip(labels, counts, strict=True) if count == 1]
    if not lonely:
        return []
    return [
        f"the target {config.target_name!r} has only one row of class {listed(lonely)}: it is trained on, "
        "but never evaluated"
    ]


def odd_columns(
    table: Table, names: Sequence[str], targets: Array, differ: Collection[str] = ()
) -> list[str]:
    """Warn of columns that are constant, number or identify the rows, or give the target away.

    Args:
        table: The training rows.
        names: The columns to learn from.
        targets: The encoded targets.
        differ: Columns that may have a different text in each row.
    """
    by_oddity: dict[str, list[str]] = {}
    for name in names:
        if says := oddity(table.column(name), targets, may_differ=name in differ):
            by_oddity.setdefault(says, []).append(name)
    return [
        f"{table.source}: column {listed(map(repr, columns))} {says}; to leave it out: data.exclude: "
        f"{inline(columns)}"
        for says, columns in by_oddity.items()
    ]


def oddity(values: Array, targets: Array, *, may_differ: bool = False) -> str | None:
    """Return what is odd about a column of the training rows, or None."""
    if is_constant(values):
        return "holds one value in all training rows, so nothing can be learned from it"
    if _numbers_rows(values):
        return NUMBERS_ROWS
    if not may_differ and _identifies(values):
        return "has a different text in most rows, like an identifier"
    if _gives_away(values, targets):
        return GIVES_AWAY
    return None


def is_constant(values: Array) -> bool:
    """Return whether all rows of a column hold one value."""
    return len(values) > 1 and bool((values == values[0]).all())


def _numbers_rows(values: Array) -> bool:
    if kind_of(values) != "number" or len(values) < 3:
        return False
    steps = np.diff(values)
    # Training rows keep their order but lose neighbors to other splits: steps are small integers above 0.
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
    """Return whether each class is one category, or one interval of the numbers."""
    if kind_of(values) == "text":
        classes: dict[str, int] = {}
        alike = all(
            classes.setdefault(value, target) == target
            for value, target in zip(values, targets.tolist(), strict=True)
        )
        return alike and len(classes) <= len(values) // 4
    # The intervals of all rows are those of any of them, so that most columns fail in a moment.
    if len(values) > _FEW and not _tells_class(values[:_FEW], targets[:_FEW]):
        return False
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
    # Targets were rounded to float32, which has 7 digits.
    return bool(abs(x @ y) >= (1 - 1e-10) * np.sqrt((x @ x) * (y @ y)) > 0)


def far_from_standardized(
    features: Array, cure: str = "or give a data frame, which data.standardize scales"
) -> list[str]:
    """Return a warning about floats that are too large for most models that are trained by gradients.

    Args:
        features: The training features, (rows, ...), which may be on disk: only the first are looked at.
        cure: Another way than to scale them.
    """
    if features.dtype.kind != "f":  # whole numbers may be tokens, or the pixels of images
        return []
    first = features[:_SAMPLE]
    largest = float(max(np.fmax.reduce(first, axis=None), -np.fmin.reduce(first, axis=None)))
    if not largest > _LARGE:
        return []
    return [f"the features are taken as they are, with values up to {largest:.6g}: scale them, {cure}"]


def repeated_rows(splits: Mapping[SplitName, Arrays], sources: Collection[SplitName]) -> list[RepeatedRows]:
    """Return how many rows (inputs and target) are in two splits, for each two that share any.

    Args:
        splits: The splits to compare.
        sources: The splits with a source of their own; the others are taken from the training rows.

    Raises:
        DataError: All rows of a source are training rows.
    """
    if len(splits) < 2:
        return []
    hashes = {name: np.sort(_row_hashes(split)) for name, split in splits.items()}
    own = [name for name in splits if name in sources and name != "train"]
    if own:
        from_train = [hashes[name] for name in splits if name not in own]
        for name in own:
            if np.any([_among(hashes[name], others) for others in from_train], axis=0).all():
                raise DataError(
                    f"all {len(hashes[name])} {name} rows are also train rows, so metrics on them mean "
                    "nothing; give other rows"
                )
    return [
        RepeatedRows(split=other, other=one, count=count, rows=len(hashes[other]))
        for one, other in combinations(splits, 2)
        if (count := int(_among(hashes[other], hashes[one]).sum()))
    ]


def _among(values: Array, ascending: Array) -> Array:
    """Return which values are among others in ascending order, (n,) bool; much faster than `numpy.isin`."""
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[places] == values)


def _row_hashes(split: Arrays) -> Array:
    """Return a hash of each row, (rows,) uint64; two rows collide once in 10^19 pairs."""
    matrices = [_matrix(array) for name, array in split.arrays.items() if name != WEIGHT]
    hashes = np.zeros(len(split), dtype=np.uint64)
    for matrix in matrices:
        for column in matrix.T:
            bits = column.astype(np.float64).view(np.uint64)
            hashes = (hashes ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
            hashes ^= hashes >> np.uint64(29)
    return hashes


def _matrix(array: Any) -> Array:
    """Return an array as (rows, n) numbers; of a data frame, hashes of its rows."""
    if not is_frame(array):
        return np.asarray(array).reshape(len(array), -1)
    hashes = require("pandas", "tabular").util.hash_pandas_object(array, index=False).to_numpy()
    halves: Array = hashes.view(np.uint32).reshape(len(array), 2)
    return halves
