"""The rows of the splits as XGBoost takes them: binned in memory, or in files where they do not fit."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainyard.datasets.base import ArraySplit, Split
from trainyard.frameworks.base import FrameworkInputs, loss_sample
from trainyard.frameworks.xgboost.params import XgboostParams
from trainyard.types import Array, DataInfo

if TYPE_CHECKING:
    import xgboost as xgb

_PART_VALUES = 1 << 24  # how many are read at once from a split that is not in memory; the bins depend on it
_FOLDER = "trainyard-xgboost-"
_OWNER = "owner"


class Matrices:
    """Makes the matrix of each split once, so that the library remembers its predictions and adds only new trees to them."""

    def __init__(self, inputs: FrameworkInputs, params: XgboostParams) -> None:
        self._inputs = inputs
        self._params = params
        self._options = _options(inputs)
        self._made: dict[int, xgb.DMatrix] = {}
        self._folder: Path | None = None
        if params.external_memory and inputs.order is not None:
            self._folder, owner = _cache_folder()
            # The matrices remove their own files, and complain if these are gone: they go first.
            weakref.finalize(self, _clean, self._made, self._folder, owner)

    def of(self, split: Split) -> xgb.DMatrix:
        """The features and targets of a split; only the run's own are kept."""
        if not self._inputs.owns(split):
            return self._make(split)
        if id(split) not in self._made:
            self._made[id(split)] = self._make(split)
        return self._made[id(split)]

    @property
    def train(self) -> xgb.DMatrix:
        """The training rows."""
        return self.of(self._inputs.splits["train"])

    def drop_train(self) -> None:
        """Forgets what the library computed of the training rows besides their values: they are made anew."""
        del self._made[id(self._inputs.splits["train"])]

    def sample(self) -> xgb.DMatrix:
        """The training rows that stand for all of them where the loss of a step is computed."""
        split, ids = self._inputs.splits["train"], loss_sample(self._inputs, 100)
        return self._plain(*split.take(np.arange(len(split), dtype=np.int64) if ids is None else ids))

    def _make(self, split: Split) -> xgb.DMatrix:
        train = self._inputs.splits.get("train") if self._inputs.order is not None else None
        if split is train and self._params.grown_by == "hist":
            return self._binned(split)
        if train is not None and self._params.external_memory:
            return self._binned(split, self.train)
        if isinstance(split, ArraySplit):
            return self._plain(split.features, split.targets)
        return self._plain(*split.take(np.arange(len(split), dtype=np.int64)))

    def _plain(self, features: Array, targets: Array) -> xgb.DMatrix:
        import xgboost as xgb

        return xgb.DMatrix(
            _flat(features),
            label=targets,
            nthread=self._inputs.threads,
            enable_categorical=True,
            **self._options,
        )

    def _binned(self, split: Split, like: xgb.DMatrix | None = None) -> xgb.DMatrix:
        """With the bins of another matrix, if there is one."""
        import xgboost as xgb

        how: dict[str, Any] = {"max_bin": self._params.max_bin, "ref": like, "nthread": self._inputs.threads}
        how["enable_categorical"] = True
        if self._params.external_memory:
            return xgb.ExtMemQuantileDMatrix(_parts(split, self._options, str(self._folder / "rows")), **how)  # type: ignore[operator]
        if isinstance(split, ArraySplit):
            return xgb.QuantileDMatrix(_flat(split.features), label=split.targets, **how, **self._options)
        return xgb.QuantileDMatrix(_parts(split, self._options), **how)


def _options(inputs: FrameworkInputs) -> dict[str, Any]:
    """What a matrix is told of its columns.

    Not their names, where there is training: the library fetches them from both sides and compares them in every call.
    """
    categories = inputs.info.categories
    types = ["c" if count else "float" for count in categories] if any(categories) else None
    return {
        "feature_names": feature_names(inputs.info) if inputs.order is None else None,
        "feature_types": types,
    }


def feature_names(info: DataInfo) -> list[str] | None:
    """The names of the columns, if the library would take them."""
    names = [str(name) for name in info.feature_names]
    usable = len(set(names)) == len(names) == int(np.prod(info.input_shape)) and not any(
        set("[]<") & set(name) for name in names
    )
    return names if usable else None


def _flat(features: Array) -> Array:
    return features.reshape(len(features), -1)


def _parts(split: Split, options: dict[str, Any], cache: str | None = None) -> xgb.DataIter:
    """Reads a split part by part; the library does so several times over."""
    import xgboost as xgb

    class Parts(xgb.DataIter):
        def __init__(self) -> None:
            super().__init__(cache_prefix=cache, on_host=False)
            self._size = max(1, _PART_VALUES // max(1, split.take(np.zeros(1, dtype=np.int64)).features.size))
            self._start = 0

        def next(self, input_data: Any) -> bool:
            if self._start >= len(split):
                return False
            stop = min(self._start + self._size, len(split))
            features, targets = split.take(np.arange(self._start, stop, dtype=np.int64))
            input_data(data=_flat(features), label=targets, **options)
            self._start = stop
            return True

        def reset(self) -> None:
            self._start = 0

    return Parts()


def _cache_folder() -> tuple[Path, int]:
    """A new folder, and the lock that says whose it is; those whose owners were killed are removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    owner = os.open(folder / _OWNER, os.O_CREAT | os.O_RDWR)
    fcntl.flock(owner, fcntl.LOCK_EX)
    os.write(owner, b"1")  # from here on, a free lock means that nobody is left to use the folder
    return folder, owner


def _is_abandoned(folder: Path) -> bool:
    try:
        owner = os.open(folder / _OWNER, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(owner, 1) == b"1"
    except OSError:
        return False
    finally:
        os.close(owner)


def _clean(made: dict[int, Any], folder: Path, owner: int) -> None:
    made.clear()
    shutil.rmtree(folder, ignore_errors=True)
    os.close(owner)
