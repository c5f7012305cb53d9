"""Pairs (X, y) as tables: the columns of X by name, and y as the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.table import Table, as_table, frame_of, tidy
from trainwright.errors import DataError
from trainwright.types import Array, SplitName

Parts = Mapping[SplitName, Any]


def tables_of_pairs(parts: Parts, config: DataConfig) -> dict[SplitName, Table] | None:
    """Return pairs as tables, which are prepared like files; None if they are to be used as they are.

    Tables are frames, and arrays (rows, columns) of floats, booleans or objects, with one target for each
    row. Whole numbers in an array may be tokens, and what has more dimensions has no columns.
    """
    features, targets = parts["train"]
    if not (is_frame(features) or _has_columns(features)):
        return None
    if len(config.targets) > 1 or (np.ndim(targets) > 1 and np.shape(targets)[1:] != (1,)):
        return None
    tables = {name: _table(part, name, config.target_name) for name, part in parts.items()}
    for name, table in tables.items():
        if len(table.columns) != len(tables["train"].columns):
            raise DataError(
                f"the {name} features have {len(table.columns) - 1} columns, but the train features "
                f"{len(tables['train'].columns) - 1}"
            )
    return tables


def of_bunch(data: Any) -> Any:
    """Return what scikit-learn's `load_...` and `fetch_...` give as a pair (X, y); other data as they are."""
    if type(data).__name__ != "Bunch" or not {"data", "target"} <= data.keys():
        return data
    features, names = data["data"], data.get("feature_names")
    if names is not None and not is_frame(features) and np.shape(features)[1:] == (len(names),):
        features = frame_of({str(name): features[:, i] for i, name in enumerate(names)})
    return features, data["target"]


def column_names(count: int) -> list[str]:
    """Return the names of the columns of an array, which has none of its own."""
    return [f"x{i}" for i in range(count)]


def _has_columns(features: Any) -> bool:
    shape = np.shape(features)
    return len(shape) == 2 and shape[1] > 0 and not is_whole_numbers(features)


def is_whole_numbers(features: Any) -> bool:
    """Return whether an array or tensor holds integers."""
    return as_numpy(features).dtype.kind in "iu"


def as_numpy(value: Any) -> Array:
    """Return an array, a tensor or a series as a NumPy array."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _table(part: Any, name: SplitName, target: str) -> Table:
    features, targets = part
    source = f"the {name} rows"
    if len(features) != len(targets):
        raise DataError(f"the {name} split has {len(features)} rows of features, but {len(targets)} targets")
    if not len(targets):
        raise DataError(f"the {name} split is empty")
    if is_frame(features):
        columns = dict(as_table(features, source).columns)
    else:
        array = as_numpy(features)
        columns = {
            column: tidy(array[:, i], column, source) for i, column in enumerate(column_names(array.shape[1]))
        }
    if target in columns:
        raise DataError(
            f"{source}: X has a column {target!r}, which is also the name of y (data.target): leave it out "
            "of X if it is the target, or give y another name with data.target"
        )
    columns[target] = tidy(as_numpy(targets).reshape(-1), target, source)
    remarks = _other_order(features, targets, source)
    return Table(columns, source, frame=features if is_frame(features) else None, remarks=remarks)


def other_orders(parts: Mapping[SplitName, tuple[Mapping[str, Any], Any]]) -> list[str]:
    """Return a warning for each split with pandas objects that have one index in two orders."""
    lines = [
        line
        for name, (inputs, targets) in parts.items()
        for features in inputs.values()
        for line in _other_order(features, targets, f"the {name} rows")
    ]
    return list(dict.fromkeys(lines))


def _other_order(features: Any, targets: Any, source: str) -> list[str]:
    """Return a warning if X and y are pandas objects with one index in two orders."""
    if not (hasattr(features, "iloc") and hasattr(targets, "iloc")):
        return []
    index, other = features.index, targets.index
    if len(index) != len(other) or index.equals(other) or not (index.is_unique and index.isin(other).all()):
        return []
    return [
        f"{source}: X and y have the same index in two orders; they are paired by position, as in "
        "scikit-learn: if the index says which belong together, give y.loc[X.index]"
    ]
