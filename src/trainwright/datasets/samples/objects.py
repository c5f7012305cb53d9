"""Data given as Python objects: by a function (`type: module:function`), or passed to `trainwright.train`.

A split may be a pair (X, y), a mapping of named arrays with the target among them, a data frame with the
target among its columns, or a map-style dataset. Data frames, and pairs whose X has columns (see `pairs.py`),
are prepared like files. All else is preprocessed already and is used as it is (floats become float32):
`standardize` has no effect on its features, and settings that need named columns are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import numpy as np

from trainwright.config.checks import OBJECTS
from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN, DataBundle, LoadRequest
from trainwright.datasets.samples import map_style, weights
from trainwright.datasets.samples.array_names import (
    LETTERS,
    TEXT,
    Role,
    refuse_causal,
    roles_of,
    usual_target,
)
from trainwright.datasets.samples.arrays import as_array, is_frame
from trainwright.datasets.samples.lists import without_lists
from trainwright.datasets.samples.loaders import batch_size_of, from_tf_dataset, is_tf_dataset, unwrapped
from trainwright.datasets.samples.preprocessed import Pair, from_arrays, refuse_column_settings
from trainwright.datasets.samples.sampling import SAMPLING
from trainwright.datasets.tables import tabular
from trainwright.datasets.tables.arrow import as_pandas
from trainwright.datasets.tables.expectations import examined_arrays
from trainwright.datasets.tables.pairs import is_whole_numbers, of_bunch, other_orders, tables_of_pairs
from trainwright.datasets.tables.table import Table, as_table, kind_of, nearest
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.plugins import adapters
from trainwright.types import (
    FEATURES,
    SPLITS,
    WEIGHT,
    Array,
    SplitName,
)

log = logging.getLogger("trainwright")
_ALIASES: Mapping[str, SplitName] = {"validation": "val", "valid": "val", "dev": "val"}  # of splits
Form = Literal["arrays", "named", "frame", "items"]
_NUMERIC = ("number", "boolean")


def from_objects(
    data: Any, config: DataConfig | None = None, source: str = "data", request: LoadRequest = PLAIN
) -> DataBundle:
    """Build the data of a run from Python objects.

    Args:
        data: (train, val), (train, val, test), or a mapping of `train`, `val` and `test`. Each is a pair
            (X, y), or with weights (X, y, w), of arrays, or of a frame and series; a mapping of named arrays
            (the target called as `data.target` says, or `X` and `y`); a data frame of pandas or Polars, or an
            Arrow table; a map-style dataset, or a torch DataLoader of one; or a tf.data.Dataset, which is
            read into memory, in its own order. Or all rows as one pair, mapping, data frame, tf.data.Dataset
            or `Bunch` of scikit-learn's, to be split by `data.split`; or one map-style dataset to train on.
        config: The data section; None for the defaults.
        source: The name of `data` in messages.
        request: What the run asks for; see `Dataset.load`.

    Raises:
        DataError: The data cannot be used; says what is wrong, and what to do.
    """
    size = batch_size_of(data)
    bundle = _from_objects(data, config or DataConfig(), source, request)
    return bundle if size is None else replace(bundle, batch_size=size)


def _from_objects(data: Any, config: DataConfig, source: str, request: LoadRequest) -> DataBundle:
    target = config.target_name
    parts = _parts(data, config, source)
    parts, own_weights = _without_weights(parts, config)
    forms = {name: _form(part, name) for name, part in parts.items()}
    if len(set(forms.values())) > 1:
        raise DataError(
            "the splits must be of one form, but are "
            f"{listed(f'{name}: {form}' for name, form in forms.items())}"
        )
    how: Any = {"given": True, "examine": request.examine, "examples": request.examples}
    tables = tables_of_pairs(parts, config) if forms["train"] == "arrays" else None
    if tables is not None:
        _refuse_params(config)
        if own_weights:
            config = config.model_copy(update={"weight": WEIGHT})
            tables = {name: table.with_column(WEIGHT, own_weights[name]) for name, table in tables.items()}
        return tabular.build(tables, config, request.form, **how)
    _refuse_settings(config, forms["train"])
    if forms["train"] == "items":
        if config.standardize:
            log.info("data: the items of map-style data sets are taken as they are, and not standardized")
        return map_style.bundle(parts, config, request)
    if forms["train"] == "frame":
        return tabular.build(
            {name: as_table(part, f"the {name} rows", lists=config.targets) for name, part in parts.items()},
            config,
            request.form,
            **how,
        )
    expectations = examined_arrays(
        {
            name: part if forms["train"] == "named" else dict(zip((FEATURES, target), part, strict=True))
            for name, part in parts.items()
        },
        config,
        request.examine,
    )
    if forms["train"] == "named":
        parts = {
            name: _named(part, name, _one_target(config, "named arrays")) for name, part in parts.items()
        }
        own_weights = _weights(parts, config.weight)
        drawn = _sampling(parts, sampling_column(config.sampling))
    else:
        drawn = {}
        parts = {name: ({FEATURES: features}, targets) for name, (features, targets) in parts.items()}
        if config.standardize:
            log.info("data: %s", _as_they_are(parts["train"]))
    pairs = {name: _pair(part, name, keep=config.impute == "keep") for name, part in parts.items()}
    refuse_causal(*pairs["train"])
    bundle = from_arrays(pairs, config, request.form, sample_weights=own_weights, columns=drawn)
    return replace(bundle, warnings=[*other_orders(parts), *bundle.warnings], expectations=expectations)


def _parts(data: Any, config: DataConfig, source: str) -> dict[SplitName, Any]:
    """Return the rows of each split.

    Without a target, two arrays are two splits, and no pair; an array alone is that of the features.
    """
    collates, target = config.collate is not None, config.target_name
    if not target and isinstance(data, tuple) and len(data) in (2, 3):
        data = dict(zip(SPLITS, data, strict=False))
    data = unwrapped(without_lists(of_bunch(as_pandas(data)), source), source, collates, pairs=bool(target))
    data = _merged(data, target)
    parts = {
        name: _by_role(_merged(_unpacked(part, name, collates, bool(target)), target), target)
        for name, part in _by_split(_by_role(data, target), source).items()
        if part is not None
    }
    if "train" not in parts:
        raise DataError(f"{source} has no training rows; give them as the split train")
    if target:
        return parts
    return {
        name: {FEATURES: part} if hasattr(part, "shape") and not _is_frame(part) else part
        for name, part in parts.items()
    }


def _sampling(parts: Mapping[SplitName, tuple[dict[str, Any], Any]], name: str | None) -> dict[str, Array]:
    """Remove the sampling weights from the inputs of each split, and return those of the training samples.

    Raises:
        DataError: The training split has no such array, or nothing else to learn from.
    """
    if name is None:
        return {}
    inputs = parts["train"][0]
    if name not in inputs or set(inputs) == {name}:
        what = f"no array {name!r}" if name not in inputs else f"no array to learn from besides {name!r}"
        raise DataError(f"the train split has {what} ({SAMPLING}); {nearest(name, inputs)}")
    return {name: [some.pop(name, None) for some, _ in parts.values()][[*parts].index("train")]}


def _weights(
    parts: Mapping[SplitName, tuple[dict[str, Any], Any]], name: str | None
) -> dict[SplitName, Array]:
    """Take the sample weights out of the inputs of each split.

    Raises:
        DataError: A split has no such array, or nothing else to learn from; or these are no weights.
    """
    if name is None:
        return {}
    for split, (inputs, _) in parts.items():
        if name not in inputs:
            raise DataError(f"the {split} split has no array {name!r} (data.weight); {nearest(name, inputs)}")
        if set(inputs) == {name} or (name != WEIGHT and WEIGHT in inputs):
            what = "no array to learn from" if set(inputs) == {name} else f"another array named {WEIGHT!r}"
            raise DataError(f"the {split} split has {what} beside data.weight: {name}; rename or add arrays")
    taken = {
        split: weights.checked(inputs.pop(name), f"the {split} array {name!r} (data.weight)")
        for split, (inputs, _) in parts.items()
    }
    for split, (_, targets) in parts.items():
        if len(taken[split]) != len(targets):
            raise DataError(f"the {split} split has {len(targets)} rows, but {len(taken[split])} weights")
    return taken


def _by_split(data: Any, source: str) -> Mapping[SplitName, Any]:
    if isinstance(data, Mapping) and not any(key in SPLITS for key in data) and _is_named(data):
        return {"train": data}
    if isinstance(data, Mapping):
        names: Mapping[str, SplitName] = {} if "val" in data else _ALIASES
        data = {names.get(str(key), key): part for key, part in data.items()}
        if unknown := [str(key) for key in data if key not in SPLITS]:
            raise DataError(
                f"{source} has a split {listed(map(repr, unknown))}; the splits are called {listed(SPLITS)}; "
                "for named inputs, give a mapping of NumPy arrays or tensors"
            )
        return {name: data[name] for name in data}
    if _is_pair(data) or _is_triple(data) or _is_frame(data) or is_tf_dataset(data):
        return {"train": data}
    if isinstance(data, tuple) and len(data) in (2, 3):
        return dict(zip(SPLITS, data, strict=False))
    if not isinstance(data, tuple | list | str) and is_map_style(data):
        return {"train": data}
    what = f"a tuple of {len(data)}" if isinstance(data, tuple) else type(data).__name__
    raise DataError(
        f"{source} is {what}; it must be (X, y), (train, val), (train, val, test) or a mapping of "
        f"{listed(SPLITS)}{_instead(data)}"
    )


def _instead(data: Any) -> str:
    """Return what to give instead of data in a form that people have; nothing of any other."""
    if isinstance(data, str | PathLike):
        return f'; name a file in the config: {{"data": {{"path": {str(data)!r}}}}}'
    if isinstance(data, tuple | list) and len(data) == 4:  # as train_test_split returns them
        return "; of X_train, X_test, y_train, y_test, give ((X_train, y_train), (X_test, y_test))"
    package, name = type(data).__module__.partition(".")[0], type(data).__name__
    if any(
        package in one.library.modules and name in one.library.data_classes
        for _, one in adapters("framework")
    ):
        return "; give the arrays or the data frame that it was made of, as (X, y)"
    if isinstance(data, Iterator):
        return "; an iterator can be read only once: give a list, or a map-style data set"
    if hasattr(data, "__iter__") and not hasattr(data, "__len__"):
        return (
            "; it can only be iterated, and an exact resume reads samples by their positions: give a "
            "map-style data set, files of samples (data.type: webdataset or tfrecord; Parquet with "
            "streaming: true), or the list of a short stream"
        )
    return ""


def _unpacked(part: Any, name: SplitName, collates: bool, pairs: bool) -> Any:
    """Return what a loader or a table holds, two tensors or a tf.data.Dataset as a pair; else the part."""
    if is_tf_dataset(part):
        return from_tf_dataset(part, f"the {name} split")
    if any(type(one).__module__.startswith("scipy.sparse") for one in _arrays_of(part)):
        raise DataError(
            f"the {name} split holds a sparse matrix, which is not taken: give an array (.toarray()), or "
            "texts and categories as columns of a frame"
        )
    return unwrapped(part, f"the {name} split", collates, pairs=pairs)


def _arrays_of(part: Any) -> Sequence[Any]:
    return part if isinstance(part, tuple) else (part,)


def _is_frame(part: Any) -> bool:
    return hasattr(part, "iloc") or isinstance(part, Table)


def is_map_style(part: Any) -> bool:
    """Return whether this is a data set that is read by position, or a class of such data sets."""
    return hasattr(part, "__len__") and hasattr(part, "__getitem__")


def _is_pair(part: Any) -> bool:
    """Return whether this is (X, y) rather than a dataset."""
    return (
        isinstance(part, tuple)
        and len(part) == 2
        and all(hasattr(array, "shape") and len(array.shape) for array in part)
    )


def _is_triple(part: Any) -> bool:
    """Return whether this is (X, y, w) rather than three splits: a weight for each row."""
    if not (isinstance(part, tuple) and len(part) == 3 and _is_pair(part[:2])):
        return False
    is_column = not is_frame(part[2]) and np.ndim(part[2]) == 1
    return is_column and np.ndim(part[0]) > 1 and len(part[0]) == len(part[1]) == len(part[2])


def _without_weights(
    parts: Mapping[SplitName, Any], config: DataConfig
) -> tuple[dict[SplitName, Any], dict[SplitName, Array]]:
    """Return triples (X, y, w) as pairs, and the weights of their rows.

    Raises:
        DataError: Some splits have weights and others have none, `data.weight` names others, or these are no
            weights.
    """
    own = {name: part[2] for name, part in parts.items() if _is_triple(part)}
    if not own:
        return dict(parts), {}
    if config.weight is not None:
        raise DataError("data.weight: (X, y, w) has weights of its own: leave it out, or give (X, y)")
    if without := [name for name in parts if name not in own]:
        raise DataError(f"the {without[0]} split has no weights, but others are (X, y, w); give them to each")
    checked = {name: weights.checked(one, f"the {name} weights") for name, one in own.items()}
    return {name: part[:2] for name, part in parts.items()}, checked


def _is_named(part: Any) -> bool:
    """Return whether this is a mapping of arrays rather than of columns of a table."""
    return isinstance(part, Mapping) and all(hasattr(array, "shape") for array in part.values())


def _merged(data: Any, target: str) -> Any:
    """Return a pair of named arrays and the target of their rows as one mapping; all else unchanged."""
    if not (isinstance(data, tuple) and len(data) == 2 and _is_named(data[0]) and data[0]):
        return data
    inputs, targets = data
    if is_frame(targets) or not np.ndim(targets) or isinstance(targets, Mapping) or target in inputs:
        return data
    is_of_rows = all(len(array) == len(targets) for array in inputs.values())
    return {**inputs, target: targets} if is_of_rows else data


def _by_role(data: Any, target: str) -> Any:
    """Return arrays that are named as inputs and targets usually are by what they are; all else unchanged.

    `X` and `y` become a pair, and those of several splits pairs by split. Another input keeps its name, as
    the model takes it by that.
    """
    if not isinstance(data, Mapping) or not _is_named(data) or target in data or not target:
        return data
    if (usual := usual_target(data, target)) is not None and not roles_of(map(str, data)):
        log.info("data: the array %r is the target (data.target names another)", usual)
        return {target if name == usual else name: array for name, array in data.items()}
    arrays = {str(name): array for name, array in data.items()}
    names = {role: name for name, role in roles_of(arrays).items()}
    splits = {role.split for role in names}
    if None not in splits:
        pairs = {split: tuple(arrays[names[Role(letter, split)]] for letter in LETTERS) for split in splits}
        return pairs or data
    x, y = (names[Role(letter, None)] for letter in LETTERS)
    return (arrays[x], arrays[y]) if x.lower() == "x" else {x: arrays[x], target: arrays[y]}


def _named(part: Mapping[Any, Any], name: SplitName, target: str) -> tuple[dict[str, Any], Any]:
    """Return the inputs and the target of named arrays.

    Raises:
        DataError: There is no target, or no other array.
    """
    arrays = {str(key): array for key, array in part.items()}
    if not target:
        return arrays, np.empty((len(next(iter(arrays.values()))), 0))
    if target not in arrays:
        raise DataError(
            f"the {name} split has no array {target!r} (give one as data.target, or call the arrays X and "
            f"y); {nearest(target, arrays)}"
        )
    if len(arrays) == 1:
        raise DataError(f"the {name} split has only the target {target!r}: there is nothing to learn from")
    return {key: array for key, array in arrays.items() if key != target}, arrays[target]


def _form(part: Any, name: SplitName) -> Form:
    if _is_pair(part):
        return "arrays"
    if _is_named(part):
        return "named"
    if _is_frame(part):
        return "frame"
    if hasattr(part, "shape"):
        raise DataError(
            f"the {name} split is a single array; give a pair (X, y), or, for several inputs, one mapping of "
            f"named arrays that also holds the target{f'; {TEXT}' if _are_tokens(part) else ''}"
        )
    if is_map_style(part) and not isinstance(part, str | Mapping):
        return "items"
    raise DataError(
        f"the {name} split is {type(part).__name__}; give a pair of arrays (X, y), a mapping of named arrays "
        "with the target, a data frame, or a dataset with __len__ and __getitem__ that returns (features, "
        f"target){_instead(part)}"
    )


def _are_tokens(array: Any) -> bool:
    """Return whether an array may hold the tokens of a text: whole numbers, in a row or in blocks."""
    return np.ndim(array) in (1, 2) and str(array.dtype).rpartition(".")[2].lstrip("u").startswith("int")


def _as_they_are(part: tuple[Mapping[str, Any], Any]) -> str:
    """Return a line that says why features are not standardized."""
    features = part[0][FEATURES]
    shape = np.shape(features)
    if len(shape) != 2:
        what = f"have the shape {shape[1:]} a row"
    elif is_whole_numbers(features):
        what = "are whole numbers in an array, such as tokens"
    else:
        what = "belong to several targets"
    return f"the features {what}: they are taken as they are, and not standardized"


def _refuse_params(config: DataConfig) -> None:
    if config.type == OBJECTS and config.params:
        key = next(iter(config.params))
        raise DataError(
            f"data.{key}: there is no such setting for data given as objects; "
            f"{nearest(key, DataConfig.model_fields)}"
        )


def _refuse_settings(config: DataConfig, form: Form) -> None:
    _refuse_params(config)
    if form == "frame":
        return
    if form == "named":
        config = config.model_copy(update={"weight": None, "sampling": None})
    plain = config.model_copy(update={"sampling": None}) if form == "items" else config
    refuse_column_settings(plain, f"these {form} are", "Leave it out, or give data frames")
    if form == "items":
        _one_target(config, "the items of map-style datasets")
        map_style.refuse_division(config.split)
        if config.target_transform is not None:
            raise DataError(
                "data.target_transform is fitted on all training rows, but a map-style dataset is never read "
                "as a whole; leave it out, and transform the targets in the dataset"
            )


def _pair(part: tuple[Mapping[str, Any], Any], name: SplitName, *, keep: bool) -> Pair:
    inputs = {key: _input(array, f"the {name} {key}", keep=keep) for key, array in part[0].items()}
    targets = np.asarray(part[1].detach().cpu().numpy() if hasattr(part[1], "detach") else part[1])
    for key, array in inputs.items():
        if len(array) != len(targets):
            are_blocks = _are_tokens(array) and _are_tokens(targets) and array.ndim == targets.ndim
            raise DataError(
                f"the {name} split has {len(array)} rows of {key}, but {len(targets)} targets"
                f"{f'; {TEXT}' if are_blocks else ''}"
            )
    if not len(targets):
        raise DataError(f"the {name} split is empty")
    return inputs, targets


def _input(given: Any, what: str, *, keep: bool) -> Array:
    """Return an input as an array of numbers; booleans become float32."""
    array = as_array(_numbers(given, what), what)
    bad = (
        np.asarray(np.isinf(array) if keep else ~np.isfinite(array))
        if array.dtype.kind == "f"
        else np.zeros(0)
    )
    if bad.any():
        rows = Table({}).where(np.asarray(bad.reshape(len(array), -1).any(axis=1)))
        raise DataError(
            f"{what} hold {'' if keep else 'NaN or '}infinite values in {rows}; fix these "
            "rows, or leave them out"
        )
    return array.astype(np.float32) if array.dtype.kind == "b" else array


def _numbers(features: Any, what: str) -> Any:
    """Return the values of a data frame with columns of several kinds; anything else unchanged.

    Raises:
        DataError: A column does not hold numbers.
    """
    if not hasattr(features, "iloc") or np.ndim(features) != 2 or np.asarray(features).dtype.kind in "biuf":
        return features
    columns = as_table(features, what).columns
    if other := [
        f"{column!r} ({kind_of(values)})"
        for column, values in columns.items()
        if kind_of(values) not in _NUMERIC
    ]:
        raise DataError(
            f"{what}: a pair (X, y) must hold numbers, but these columns do not: {listed(other)}. Give one "
            "data frame with the target among its columns and name that in data.target: its text is encoded"
        )
    return np.stack([values.astype(np.float32) for values in columns.values()], axis=1)


def _one_target(config: DataConfig, what: str) -> str:
    """Return the name of the target, of data that hold it in one array.

    Raises:
        DataError: The config names several.
    """
    if len(config.targets) > 1:
        raise DataError(
            f"data.target: {listed(config.targets)}: {what} hold several targets in one array, "
            "(rows, targets); name that one"
        )
    return config.target_name
