"""NumPy's npz files.

The names of the arrays (in either case) decide between three layouts:

    X, y                                                   rows to be split (or of one split, with train_path
    ...) X_train, y_train [, X_val, y_val] [, X_test, y_test]   rows of each split
    any other names                                        columns, each (rows,), the target among them; or,
                                                           if one has more dimensions, inputs of the model

Pairs of other usual names, such as images and labels, or trainX and trainY, are taken as they are meant; see
`array_names`. A two-dimensional X becomes columns x0, x1 ..., or those named in an array `feature_names`,
which are prepared like any other columns. An X of more dimensions, such as images, named inputs, and the X
beside a y of several columns are used as they are; floats become float32.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import BaseModel

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.array_names import FEATURE_NAMES, with_usual_names
from trainwright.datasets.samples.files import existing_file, paths_by_split
from trainwright.datasets.tables.chunks import TableChunks
from trainwright.datasets.tables.table import Table, tidy
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.types import FEATURES, SPLITS, Array, SplitName

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest

_SEVERAL = "X_train, y_train"


class NpzParams(Section):
    """This format has no options."""


class NpzDataset:
    """npz files: one file to split, one file with its own splits, or one file per split."""

    names: ClassVar[Sequence[str]] = ("npz",)
    Params: ClassVar[type[BaseModel]] = NpzParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, NpzParams)
        self._config = config

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        paths = paths_by_split(self._config)
        arrays = {name: _arrays(path, self._config.target_name) for name, path in paths.items()}
        if "x_train" in {key.lower() for key in arrays["train"]}:
            if len(paths) > 1:
                raise DataError(f"{paths['train']} has its own splits ({_SEVERAL} ...); give no other path")
            arrays = _splits(arrays["train"], paths["train"])
            paths = dict.fromkeys(SPLITS, paths["train"])
        return self._bundle(arrays, paths, request)

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        return [*paths_by_split(self._config).values()]

    def read(self, path: str, text: Collection[str] = ()) -> Table:  # noqa: ARG002
        """Return the rows of a file with X (and y), or with one array per column; for predictions.

        Raises:
            DataError: The file cannot be read, or its arrays differ in length.
        """
        target = self._config.target_name
        return _table(_unsplit(_arrays(path, target), path), path, target)

    def chunks(self, path: str, text: Collection[str] = ()) -> TableChunks:
        """Return the same rows, to be taken chunk by chunk; the file itself is read at once."""
        return TableChunks(self.read(path, text))

    def _bundle(
        self,
        arrays: Mapping[SplitName, Mapping[str, Array]],
        paths: Mapping[SplitName, str],
        request: LoadRequest,
    ) -> DataBundle:
        from trainwright.datasets.samples.objects import from_objects
        from trainwright.datasets.tables.tabular import build

        x, y = _named(arrays["train"], "x"), _named(arrays["train"], "y")
        if not self._config.targets:
            parts = {name: _without_targets(some) for name, some in arrays.items()}
            return from_objects(parts, self._config, request=request)
        if x.ndim > 2 or (x.ndim == 2 and y.ndim == 2 and y.shape[1] > 1):
            pairs = {name: (_named(some, "x"), _named(some, "y")) for name, some in arrays.items()}
            return from_objects(pairs, self._config, request=request)
        if not x.size and any(array.ndim > 1 for array in arrays["train"].values()):
            return from_objects(dict(arrays), self._config, request=request)
        return build(
            {name: _table(some, paths[name], self._config.target_name) for name, some in arrays.items()},
            self._config,
            request.form,
            given=True,
            examine=request.examine,
            examples=request.examples,
        )


def inputs_in(path: str, target: str) -> dict[str, Array]:
    """Return the arrays of a file by the names that a model takes them by.

    X becomes `features`, and y `target`. The arrays of a file without X keep their names.

    Raises:
        DataError: The file cannot be read, or holds the rows of several splits.
    """
    arrays = _unsplit(_arrays(path, target), path)
    if not (x := _named(arrays, "x")).size:
        return arrays
    y = _named(arrays, "y")
    return {FEATURES: x, **({target: y} if y.size else {})}


def _without_targets(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays that a model is called with by name; X alone is `features`."""
    return {
        FEATURES if name.lower() == "x" else name: array
        for name, array in arrays.items()
        if name.lower() != "y" and name != FEATURE_NAMES
    }


def _unsplit(arrays: dict[str, Array], path: str) -> dict[str, Array]:
    """Return the arrays of a file that holds rows of one kind.

    Raises:
        DataError: They are those of several splits.
    """
    if "x_train" in {key.lower() for key in arrays}:
        raise DataError(
            f"{path} holds several splits ({listed(arrays)}); save the rows that are meant as X, and their "
            "targets as y, or evaluate a split of the run's own: --split test"
        )
    return arrays


def _arrays(path: str, target: str) -> dict[str, Array]:
    """Read the arrays of a file, with the names that are documented above.

    Pickled objects are refused, because reading them would execute code.
    """
    file = existing_file(path)
    try:
        opened = np.load(file, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise DataError(f"{path} is one array (npy); save it with numpy.savez(path, X=..., y=...)")
        with opened:
            arrays = {name: opened[name] for name in opened.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        if "allow_pickle" in str(error) or "pickle" in str(error):
            raise DataError(
                f"{path} holds pickled objects or is not an npz file; pickles are never read, as they can "
                "execute code. Save arrays of numbers or of fixed-length text (array.astype(str)) with "
                "numpy.savez"
            ) from error
        raise DataError(
            f"{path} cannot be read as npz: {error or type(error).__name__}; save it again with numpy.savez"
        ) from error
    except MemoryError as error:
        raise DataError(f"{path} claims to hold more than the memory does: {error}") from error
    if not arrays:
        raise DataError(f"{path} holds no arrays; save them with numpy.savez(path, X=..., y=...)")
    return with_usual_names(arrays, target)


def _named(arrays: Mapping[str, Array], name: str) -> Array:
    """Return the array of this name, in either case; an empty one if there is none."""
    return next((array for key, array in arrays.items() if key.lower() == name), np.empty(0))


def _splits(arrays: Mapping[str, Array], path: str) -> dict[SplitName, dict[str, Array]]:
    splits: dict[SplitName, dict[str, Array]] = {}
    for name in SPLITS:
        parts = {
            letter: array
            for letter in ("x", "y")
            for key, array in arrays.items()
            if key.lower() == f"{letter}_{name}"
        }
        if len(parts) == 1:
            raise DataError(f"{path} has only one of X_{name} and y_{name}; it has {listed(arrays)}")
        if parts:
            splits[name] = parts | {key: array for key, array in arrays.items() if key == FEATURE_NAMES}
    return splits


def _table(arrays: Mapping[str, Array], path: str, target: str) -> Table:
    x, y = _named(arrays, "x"), _named(arrays, "y")
    names = arrays.get(FEATURE_NAMES)
    columns = {
        key: array for key, array in arrays.items() if key.lower() not in ("x", "y") and key != FEATURE_NAMES
    }
    if x.ndim == 2:
        if columns:
            raise DataError(
                f"{path}: there is {listed(columns)} in addition to X, y and feature_names; remove it from "
                "the file"
            )
        if names is not None and len(names) != x.shape[1]:
            raise DataError(
                f"{path}: feature_names has {len(names)} names, but X {x.shape[1]} columns; "
                "give one name for each column"
            )
        columns = {str(names[i]) if names is not None else f"x{i}": x[:, i] for i in range(x.shape[1])}
        columns |= {target: y.reshape(-1) if y.shape[1:] == (1,) else y} if y.size else {}
    else:
        columns = dict(arrays)
    lengths = {key: len(array) if array.ndim else 0 for key, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{path}: the arrays differ in length: "
            f"{listed(f'{key} {length}' for key, length in lengths.items())}; give the same number of "
            "rows in each"
        )
    return Table({key: tidy(array, key, path) for key, array in columns.items()}, path)
