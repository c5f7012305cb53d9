"""The splits as XGBoost matrices: binned in memory, or in files where they do not fit."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainwright.datasets.base import ArraySplit, Split
from trainwright.frameworks.base import LearnerInputs, ModelInputs
from trainwright.frameworks.support.inputs import arrays_of, loss_sample
from trainwright.frameworks.xgboost.params import XgboostParams
from trainwright.tasks.support.precision import learned
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo

if TYPE_CHECKING:
    import xgboost as xgb

_PART_VALUES = 1 << 24  # values read at once from a split that is not in memory; the bins depend on it
_FOLDER_PREFIX = "trainwright-xgboost-"
_LOCK_FILE = "owner"


class Rows(NamedTuple):
    """The matrix of some rows, and their targets as the data hold them, (rows,) or (rows, outputs)."""

    matrix: xgb.DMatrix
    targets: Array


class Matrices:
    """The matrix of each split, built once: XGBoost caches the margins and adds only new trees to them."""

    def __init__(self, inputs: LearnerInputs, params: XgboostParams) -> None:
        self._inputs = inputs
        self._params = params
        self._cache: dict[int, Rows] = {}
        self._folder: Path | None = None
        if params.external_memory:
            self._folder, lock = _create_folder()
            # Matrices remove their own files and fail if these are gone, so they are released first.
            weakref.finalize(self, _clean_up, self._cache, self._folder, lock)

    def of(self, split: Split) -> Rows:
        """Return the rows of a split; only those of the run's own splits are cached."""
        if not self._inputs.owns(split):
            return self._build(split)
        if id(split) not in self._cache:
            self._cache[id(split)] = self._build(split)
        return self._cache[id(split)]

    @property
    def train(self) -> xgb.DMatrix:
        """The matrix of the training split."""
        return self.of(self._inputs.splits["train"]).matrix

    def drop_train(self) -> None:
        """Discard the training matrix and what XGBoost cached in it; it is built again when needed."""
        del self._cache[id(self._inputs.splits["train"])]

    def sample(self) -> xgb.DMatrix:
        """Return a matrix of the training rows on which the loss of a step is computed."""
        split, ids = self._inputs.splits["train"], loss_sample(self._inputs, 100)
        return _plain(self._inputs, arrays_of(split, ids), names=None).matrix

    def _build(self, split: Split) -> Rows:
        if split is self._inputs.splits["train"] and self._params.grown_by == "hist":
            return self._binned(split)
        if self._params.external_memory:
            return self._binned(split, self.train)
        # There are no names: XGBoost would compare those of booster and matrix in every call.
        return _plain(self._inputs, arrays_of(split), names=None)

    def _binned(self, split: Split, like: xgb.DMatrix | None = None) -> Rows:
        """Return the rows of a split in a quantile matrix, with the bins of the matrix `like`, if any."""
        import xgboost as xgb

        info, types = self._inputs.info, _feature_types(self._inputs.info)
        kwargs: dict[str, Any] = {
            "max_bin": self._params.max_bin,
            "ref": like,
            "nthread": self._inputs.threads,
            "enable_categorical": True,
        }
        if self._params.external_memory:
            parts = _parts(split, info, str(self._folder / "rows"))  # type: ignore[operator]
            return Rows(xgb.ExtMemQuantileDMatrix(parts, **kwargs), parts.targets)
        if isinstance(split, ArraySplit):
            targets = split.arrays[TARGET]
            matrix = xgb.QuantileDMatrix(
                _flat(split.arrays[FEATURES]),
                label=learned(targets, info),
                weight=split.arrays.get(WEIGHT),
                feature_types=types,
                **kwargs,
            )
            return Rows(matrix, targets)
        parts = _parts(split, info)
        return Rows(xgb.QuantileDMatrix(parts, **kwargs), parts.targets)


def named_matrix(inputs: ModelInputs, split: Split) -> Rows:
    """Return the rows of a split in a matrix with the names of its columns, for a booster that has them."""
    return _plain(inputs, arrays_of(split), feature_names(inputs.info))


def _plain(inputs: ModelInputs, batch: Batch, names: list[str] | None) -> Rows:
    import xgboost as xgb

    matrix = xgb.DMatrix(
        _flat(batch[FEATURES]),
        label=learned(batch[TARGET], inputs.info),
        weight=batch.get(WEIGHT),
        nthread=inputs.threads,
        enable_categorical=True,
        feature_names=names,
        feature_types=_feature_types(inputs.info),
    )
    return Rows(matrix, batch[TARGET])


def _feature_types(info: DataInfo) -> list[str] | None:
    return ["c" if count else "float" for count in info.categories] if any(info.categories) else None


def feature_names(info: DataInfo) -> list[str] | None:
    """Return the names of the columns, or None where XGBoost would refuse them."""
    names = [str(name) for name in info.feature_names]
    usable = len(set(names)) == len(names) == int(np.prod(info.input_shape)) and not any(
        set("[]<") & set(name) for name in names
    )
    return names if usable else None


def _flat(features: Array) -> Array:
    return features.reshape(len(features), -1)


def _parts(split: Split, info: DataInfo, cache: str | None = None) -> Any:
    """Return an iterator that reads a split in parts; XGBoost makes several passes.

    Its `targets` are those of all rows, after a pass.
    """
    import xgboost as xgb

    class Parts(xgb.DataIter):
        def __init__(self) -> None:
            super().__init__(cache_prefix=cache, on_host=False)
            self._size = max(
                1, _PART_VALUES // max(1, split.take(np.zeros(1, dtype=np.int64))[FEATURES].size)
            )
            self._start = 0
            self._targets: dict[int, Array] = {}

        @property
        def targets(self) -> Array:
            return np.concatenate([self._targets[start] for start in sorted(self._targets)])

        def next(self, input_data: Any) -> bool:
            if self._start >= len(split):
                return False
            stop = min(self._start + self._size, len(split))
            batch = split.take(np.arange(self._start, stop, dtype=np.int64))
            self._targets.setdefault(self._start, np.array(batch[TARGET]))
            input_data(
                data=_flat(batch[FEATURES]),
                label=learned(batch[TARGET], info),
                weight=batch.get(WEIGHT),
                feature_types=_feature_types(info),
            )
            self._start = stop
            return True

        def reset(self) -> None:
            self._start = 0

    return Parts()


def _create_folder() -> tuple[Path, int]:
    """Return a new folder and the descriptor of its lock, after removing folders whose owners were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    lock = os.open(folder / _LOCK_FILE, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, b"1")  # from here on, a free lock means that the owner is gone
    return folder, lock


def _is_abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(lock, 1) == b"1"
    except OSError:
        return False
    finally:
        os.close(lock)


def _clean_up(cache: dict[int, Any], folder: Path, lock: int) -> None:
    cache.clear()
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
