"""NumPy's npz files.

Three layouts are read, told apart by the names of the arrays (capital or not):

    X, y                                                   rows to be divided (or of one split, with train_path ...)
    X_train, y_train [, X_val, y_val] [, X_test, y_test]   rows of each split
    any other names                                        columns, each (rows,), the target among them

X of two dimensions makes columns x0, x1 ..., or those named in an array `feature_names`, which are prepared as any
other; X of more (images, say) is served as it is, floats as float32.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import DataConfig, Section
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.files import existing_file
from trainyard.datasets.rows.objects import from_objects
from trainyard.datasets.rows.table import Table, listed, tidy
from trainyard.datasets.rows.tabular import build, given_paths
from trainyard.errors import DataError
from trainyard.types import SPLITS, Array, SplitName

_SEVERAL = "X_train, y_train"


class NpzParams(Section):
    """There are no options."""


class NpzDataset:
    """One file that is divided or brings its splits, or one file for each split."""

    names: ClassVar[Sequence[str]] = ("npz",)
    Params: ClassVar[type[BaseModel]] = NpzParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, NpzParams)
        self._config = config

    def load(self) -> DataBundle:
        """See `Dataset.load`."""
        paths = given_paths(self._config)
        found = {name: _arrays(path) for name, path in paths.items()}
        if "x_train" in {key.lower() for key in found["train"]}:
            if len(paths) > 1:
                raise DataError(
                    f"{paths['train']} brings its own splits ({_SEVERAL} ...); give no other path beside it"
                )
            return self._bundle(
                _splits(found["train"], paths["train"]), dict.fromkeys(SPLITS, paths["train"])
            )
        return self._bundle(found, paths)

    def read(self, path: str, text: Collection[str] = ()) -> Table:  # noqa: ARG002
        """The rows of a file with X (and y), or with one array for each column; for predictions.

        Raises:
            DataError: the file cannot be read, or its arrays are not of one length.
        """
        return _table(_arrays(path), path, self._config.target)

    def _bundle(
        self, arrays: Mapping[SplitName, Mapping[str, Array]], paths: Mapping[SplitName, str]
    ) -> DataBundle:
        if _named(arrays["train"], "x").ndim > 2:
            pairs = {name: (_named(some, "x"), _named(some, "y")) for name, some in arrays.items()}
            return from_objects(pairs, self._config)
        return build(
            {name: _table(some, paths[name], self._config.target) for name, some in arrays.items()},
            self._config,
        )


def _arrays(path: str) -> dict[str, Array]:
    """Opens the file; objects are refused, since reading them would execute what the file says."""
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
                f"{path} holds pickled objects or is no npz file; pickles are never read, as they can "
                "execute code. "
                "Save arrays of numbers or of fixed-length text (array.astype(str)) with numpy.savez"
            ) from error
        raise DataError(f"{path} cannot be read as npz: {error or type(error).__name__}") from error
    if not arrays:
        raise DataError(f"{path} holds no arrays; save them with numpy.savez(path, X=..., y=...)")
    return arrays


def _named(arrays: Mapping[str, Array], name: str) -> Array:
    """The array of this name, capital or not; an empty one where there is none."""
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
            splits[name] = parts | {key: array for key, array in arrays.items() if key == "feature_names"}
    return splits


def _table(arrays: Mapping[str, Array], path: str, target: str) -> Table:
    x, y = _named(arrays, "x"), _named(arrays, "y")
    names = arrays.get("feature_names")
    columns = {
        key: array
        for key, array in arrays.items()
        if key.lower() not in ("x", "y") and key != "feature_names"
    }
    if x.ndim == 2:
        if columns:
            raise DataError(
                f"{path}: beside X, y and feature_names there is {listed(columns)}; leave it out of the file"
            )
        if names is not None and len(names) != x.shape[1]:
            raise DataError(f"{path}: feature_names has {len(names)} names, but X {x.shape[1]} columns")
        columns = {str(names[i]) if names is not None else f"x{i}": x[:, i] for i in range(x.shape[1])}
        columns |= {target: y.reshape(-1) if y.shape[1:] == (1,) else y} if y.size else {}
    else:
        columns = dict(arrays)
    lengths = {key: len(array) if array.ndim else 0 for key, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{path}: the arrays differ in length: "
            f"{listed(f'{key} {length}' for key, length in lengths.items())}"
        )
    return Table({key: tidy(array, key, path) for key, array in columns.items()}, path)
