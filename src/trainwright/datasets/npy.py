"""Folders of NumPy's npy files, for samples that do not fit in memory: features stay on disk.

    X.npy, y.npy                                           rows to be split
    X_train.npy, y_train.npy [, X_val.npy, y_val.npy] [, X_test.npy, y_test.npy]

Pairs of other usual names, such as images.npy and labels.npy, are taken where none is called so; see
`array_names`. The samples are used as they are: floats become float32, and no column is prepared. Targets are
held in memory. All files are read once when a run is built, to check for bad values and to hash them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from pydantic import BaseModel

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.samples.array_names import LETTERS, Role, roles_of
from trainwright.datasets.samples.files import existing_file, names_in
from trainwright.datasets.samples.preprocessed import from_arrays, refuse_column_settings
from trainwright.datasets.tables.target import require_target
from trainwright.digest import array_buffer, digest, sha256_json, tensor_records
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.types import FEATURES, SPLITS, TARGET, Array, Batch, Ids, SplitName

_BLOCK_BYTES = 64 << 20


class NpyParams(Section):
    """This format has no options."""


class NpyDataset:
    """A folder of npy files: one pair to split, or one pair per split."""

    names: ClassVar[Sequence[str]] = ("npy",)
    Params: ClassVar[type[BaseModel]] = NpyParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, NpyParams)
        self._config = config

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        require_target(self._config)
        folder, names = self._folder()
        files = _files(names)
        splits = [name for name in SPLITS if ("X", name) in files]
        pairs = {name: _pair(folder, names, files, name) for name in splits} or {
            "train": _pair(folder, names, files, None)
        }
        for name, (features, _) in pairs.items():
            if features.dtype.kind == "f":
                _refuse_bad_values(features, name, keep=self._config.impute == "keep")
        return from_arrays(
            {name: ({FEATURES: features}, targets) for name, (features, targets) in pairs.items()},
            self._config,
            request.form,
            lambda inputs, ids, targets: MappedRows(inputs[FEATURES], ids, targets),
        )

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        folder, names = self._folder()
        return [f"{folder}/{name}" for name in _files(names).values()]

    def _folder(self) -> tuple[str, list[str]]:
        """Return the folder, and the names of the files in it."""
        config = self._config
        if config.path is None or config.train_path is not None:
            raise DataError("data: type npy reads one folder: give data.path")
        refuse_column_settings(config, "arrays in npy files are", "Leave it out")
        if (names := names_in(config.path)) is None:
            raise DataError(
                f"data.path: {config.path} is not a folder; type npy reads a folder of X.npy and y.npy"
            )
        return config.path.rstrip("/"), names


def _files(names: Sequence[str]) -> dict[Role, str]:
    """Return the files of arrays in a folder by what they are, in a fixed order."""
    roles = [Role(letter, split) for letter in LETTERS for split in (None, *SPLITS)]
    exact = {role: f"{role}.npy" for role in roles if f"{role}.npy" in names}
    if any({("X", split), ("y", split)} <= set(exact) for split in (None, *SPLITS)):
        return exact
    stems = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
    usual = {role: f"{stem}.npy" for stem, role in roles_of(stems).items()}
    return {role: usual[role] for role in roles if role in usual} or exact


def _pair(
    folder: str, names: Sequence[str], files: Mapping[Role, str], split: SplitName | None
) -> tuple[Array, Array]:
    roles = [Role(letter, split) for letter in LETTERS]
    x, y = (files.get(role, f"{role}.npy") for role in roles)
    features, targets = (_mapped(folder, names, name) for name in (x, y))
    if features.ndim < 2 or features.dtype.kind not in "iufb":
        raise DataError(
            f"{folder}: {x} is {features.dtype} of shape {features.shape}; numbers (rows, ...) are needed"
        )
    if len(features) != len(targets) or not len(features):
        raise DataError(
            f"{folder}: {x} has {len(features)} rows, {y} {len(targets)}; each needs one row for each sample"
        )
    return features, np.array(targets)


def _mapped(folder: str, names: Sequence[str], name: str) -> Array:
    path = f"{folder}/{name}"
    if name not in names:
        raise DataError(
            f"{path} is missing; the folder holds {listed(names) or 'nothing'}; save the inputs as "
            "X.npy, and the targets as y.npy, with numpy.save"
        )
    try:
        array = np.load(existing_file(path, mapped=True), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as npy: {error}; save arrays of numbers with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an archive of arrays (npz) despite its name; save each with numpy.save")
    if not array.ndim:
        raise DataError(
            f"{path} holds a single value instead of one per row; save an array with one value for each row"
        )
    return array


def _refuse_bad_values(features: Array, name: SplitName, *, keep: bool) -> None:
    for start, stop in _ranges(len(features), features[:1].nbytes):
        with np.errstate(over="ignore"):
            block = features[start:stop].astype(_served(features.dtype))
        bad = np.isinf(block) if keep else ~np.isfinite(block)
        if bad.any():
            index = np.unravel_index(int(bad.argmax()), bad.shape)
            value, row = features[start:stop][index], f"row {start + int(index[0])} (from 0)"
            if np.isfinite(value):
                raise DataError(
                    f"the {name} features hold {value} in {row}: too large for float32, in which "
                    "they are served; scale them down"
                )
            raise DataError(
                f"the {name} features hold {'' if keep else 'NaN or '}infinite values, the "
                f"first in {row}; fix these rows, or leave them out"
            )


def _ranges(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the rows in blocks that fit in memory."""
    step = max(1, _BLOCK_BYTES // max(1, row_bytes))
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _served(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.kind in "fb" else dtype.newbyteorder("=")


class MappedRows:
    """A split whose features are read from disk on demand.

    Args:
        features: (rows of the source, ...), memory-mapped.
        ids: The rows of this split, ascending; None for all rows.
        targets: (rows of the split,) int64, or (rows of the split,) / (rows of the split, outputs) float32.
    """

    def __init__(self, features: Array, ids: Ids | None, targets: Array) -> None:
        self._features = features
        self._ids = np.arange(len(features)) if ids is None else ids
        self.targets = targets

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, ids: Ids) -> Batch:
        """Return the samples `ids`; they are read in the order of the file."""
        rows = self._ids[ids]
        ascending = np.argsort(rows, kind="stable")
        features = np.empty((len(rows), *self._features.shape[1:]), dtype=_served(self._features.dtype))
        features[ascending] = self._features[rows[ascending]]
        return {FEATURES: features, TARGET: self.targets[ids]}

    @property
    def files_read(self) -> list[str]:
        """The file of the features; see `ReadFromFiles`."""
        return [str(name)] if (name := getattr(self._features, "filename", None)) else []

    def fingerprint(self) -> str:
        """Return the digest over the features, as on disk and row by row, and the targets."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        source, content = self._features, hashlib.sha256()
        content.update(f"{source.dtype.str} {(len(self), *source.shape[1:])}".encode())
        for start, stop in _ranges(len(self), source[:1].nbytes):
            content.update(
                np.ascontiguousarray(source[self._ids[start:stop]]).reshape(-1).view(np.uint8).data
            )
        return sha256_json(
            [content.hexdigest(), digest(tensor_records([array_buffer("targets", self.targets)]))]
        )
