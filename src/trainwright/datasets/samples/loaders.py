"""Data sets of other libraries: torch's DataLoader and Subset, `tf.data`, tables; none is imported."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trainwright.errors import DataError
from trainwright.types import Array, Ids

log = logging.getLogger("trainwright")
_FORWARDED = ("targets", "classes", "num_classes")
_SAMPLERS = ("SequentialSampler", "RandomSampler", "DistributedSampler")  # all rows, in an order of their own
_COLUMNS = ("Value", "ClassLabel")  # types of Hugging Face's columns that hold one value a row
_INFINITE = -1  # tf.data.INFINITE_CARDINALITY


def is_loader(part: Any) -> bool:
    """Return whether this is a torch DataLoader, judged by its attributes."""
    return all(hasattr(part, name) for name in ("dataset", "batch_size", "collate_fn", "sampler"))


def batch_size_of(data: Any) -> int | None:
    """Return the batch size of the first data loader among the splits; None if there is none."""
    parts: Iterable[Any] = data.values() if isinstance(data, Mapping) else data
    if is_loader(data):
        parts = [data]
    elif not isinstance(data, Mapping | tuple | list):
        parts = []
    return next((part.batch_size for part in parts if is_loader(part) and part.batch_size), None)


def unwrapped(part: Any, what: str, collates: bool = False, *, pairs: bool = True) -> Any:
    """Return the data set of a loader, the tensors of a subset, the frame of a table; else the part itself.

    Args:
        part: The rows of a split.
        what: Their name in messages.
        collates: Whether the config names a function that makes batches; a loader's own then has no effect.
        pairs: Whether two tensors are features and targets.

    Raises:
        DataError: A loader's data set cannot be read by position, or its sampler draws rows in another way.
    """
    if is_loader(part):
        log.info(
            "data: %s is a data loader: its data set is used, shuffled by the run's seed; "
            "the loader's own order, workers and drop_last have no effect",
            what,
        )
        part = _dataset_of(part, what, collates)
    indices, inner = getattr(part, "indices", None), getattr(part, "dataset", None)
    tensors = getattr(inner if indices is not None else part, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2 and pairs:
        return tensors if indices is None else tuple(tensor[list(indices)] for tensor in tensors)
    if _is_table(part):
        return part.to_pandas()
    return part


def _is_table(part: Any) -> bool:
    """Return whether this is a table with columns of single values, as of polars, pyarrow or Hugging Face."""
    if not hasattr(part, "to_pandas") or hasattr(part, "iloc"):
        return False
    features = getattr(part, "features", None)
    kinds = features.values() if isinstance(features, Mapping) else ()
    return all(type(kind).__name__ in _COLUMNS for kind in kinds)


def _dataset_of(loader: Any, what: str, collates: bool) -> Any:
    dataset, sampler = loader.dataset, loader.sampler
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{what}: the loader's {type(dataset).__name__} can only be iterated; a run that resumes needs a "
            "map-style data set, with __len__ and __getitem__"
        )
    kind = type(sampler).__name__
    draws_twice = getattr(sampler, "replacement", False)
    batches = type(getattr(loader, "batch_sampler", None)).__name__
    if kind == "SubsetRandomSampler":
        dataset = Rows(dataset, list(sampler.indices))
    elif kind not in _SAMPLERS or draws_twice or batches not in ("BatchSampler", "NoneType"):
        name = kind if kind not in _SAMPLERS or draws_twice else batches
        raise DataError(
            f"{what}: the loader's {name} decides which rows a batch has, which Trainwright "
            "decides itself: give the data set without the loader; data.sampling draws rows by weights, "
            "and data.weight makes them count more or less"
        )
    if collates or getattr(loader.collate_fn, "__name__", "") in ("default_collate", "default_convert"):
        return dataset
    return Collating(dataset, loader.collate_fn)


class _Wrapped:
    """A map-style data set made of another one, whose classes it has."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name not in _FORWARDED:
            raise AttributeError(name)
        return getattr(self._dataset, name)


class Rows(_Wrapped):
    """Some rows of a data set."""

    def __init__(self, dataset: Any, positions: Ids | list[int]) -> None:
        super().__init__(dataset)
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, i: int) -> Any:
        return self._dataset[self._positions[i]]

    @property
    def targets(self) -> list[Any]:
        """The targets of these rows, where the data set lists them."""
        return [self._dataset.targets[i] for i in self._positions]


class Collating(_Wrapped):
    """The samples of a data loader that has a `collate_fn` of its own, which makes the batches of the run."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        super().__init__(dataset)
        self.collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> Any:
        return self._dataset[i]


def is_tf_dataset(part: Any) -> bool:
    """Return whether this is a `tf.data.Dataset`, judged by its methods."""
    return all(hasattr(part, name) for name in ("as_numpy_iterator", "element_spec", "cardinality"))


def from_tf_dataset(part: Any, what: str) -> tuple[Array, Array]:
    """Return features (rows, ...) and targets, (rows,) or (rows, outputs), in the order of the dataset.

    A dataset counts as batched if both first dimensions are unknown, or equal. It is read once: a dataset
    that shuffles without a seed gives other rows to each process, and a run cannot be resumed on other rows.

    Args:
        part: The dataset.
        what: Its name in messages.

    Raises:
        DataError: Its elements are not pairs, their shapes differ, or it never ends.
    """
    spec = part.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 2 and all(hasattr(one, "shape") for one in spec)):
        raise DataError(
            f"{what}: a tf.data.Dataset must yield (features, target) pairs of one tensor each, but yields "
            f"{spec}"
        )
    if int(part.cardinality()) == _INFINITE:
        raise DataError(
            f"{what}: the tf.data.Dataset never ends; remove its repeat(), because Trainwright counts the "
            "epochs"
        )
    pairs = list(part.as_numpy_iterator())
    if not pairs:
        raise DataError(f"{what}: the tf.data.Dataset is empty")
    try:
        join = np.concatenate if _is_batched(*spec) else np.stack
        features, targets = (join([np.asarray(pair[i]) for pair in pairs]) for i in range(2))
    except ValueError as error:
        raise DataError(
            f"{what}: the elements of the tf.data.Dataset differ in shape: {error}; pad or "
            "crop them to one shape"
        ) from error
    return features, _texts(targets)


def _is_batched(features: Any, target: Any) -> bool:
    ranks = [spec.shape.rank for spec in (features, target)]
    if None in ranks or 0 in ranks:
        return False
    first, second = (spec.shape.as_list()[0] for spec in (features, target))
    return bool(first == second)


def _texts(targets: Array) -> Array:
    """Decode class names, which are bytes."""
    return (
        np.array([value.decode() for value in targets], dtype=object)
        if targets.dtype.kind in "OS"
        else targets
    )
