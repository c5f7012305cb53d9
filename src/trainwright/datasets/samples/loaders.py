"""Data sets of other libraries: torch's DataLoader and Subset, `tf.data`, tables; none is imported."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trainwright.datasets.samples.drawing import have_moved, preserved
from trainwright.errors import DataError
from trainwright.types import Array, Ids

log = logging.getLogger("trainwright")
_FORWARDED = ("targets", "classes", "num_classes")
_SAMPLERS = ("SequentialSampler", "RandomSampler", "DistributedSampler")  # all rows, in an order of their own
_COLUMNS = ("Value", "ClassLabel")  # types of Hugging Face's columns that hold one value a row
_INFINITE = -1  # tf.data.INFINITE_CARDINALITY
_PROBED = 4  # rows on which a collate_fn is tried


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


def unwrapped(part: Any, what: str, collates: bool = False) -> Any:
    """Return the data set of a loader, the tensors of a subset, the frame of a table; else the part itself.

    Args:
        part: The rows of a split.
        what: Their name in messages.
        collates: Whether the config names a function that makes batches; a loader's own then has no effect.

    Raises:
        DataError: A loader's data set cannot be read by position, its sampler draws rows in another way, or
            its `collate_fn` needs the whole batch.
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
    if isinstance(tensors, tuple) and len(tensors) == 2:
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
    collated = Collated(dataset, loader.collate_fn)
    if loader.batch_size != 1 and (fault := collated.fault()) is not None:
        raise DataError(f"{what}: {fault}")
    log.info("data: the collate_fn of %s is called for each row alone", what)
    return collated


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


class Collated(_Wrapped):
    """The samples of a data set after a `collate_fn`, which gets each of them as a batch of one."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        super().__init__(dataset)
        self._collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> Any:
        return _row(self._collate([self._dataset[i]]), 0)

    @property
    def remedy(self) -> str:
        """The advice for a `collate_fn` that makes something of several rows."""
        module, name = (getattr(self._collate, key, "") for key in ("__module__", "__qualname__"))
        path = "MODULE:FUNCTION" if not name or "<" in name or module == "__main__" else f"{module}:{name}"
        return (
            "the loader's collate_fn is called for each row alone, as the run decides what a batch holds; "
            f'name it in the config, which calls it for each batch: data: {{collate: "{path}"}}'
        )

    def fault(self) -> str | None:
        """Return why the function needs the whole batch, judged by a few rows; None if it seems not to.

        The generators of random numbers are left as they were. What fails is left to the reading of the rows.
        """
        count = min(_PROBED, len(self))
        with preserved():
            try:
                items = [self._dataset[i] for i in range(count)]
                with preserved():
                    alone = [_row(self._collate([copy.deepcopy(item)]), 0) for item in items]
                with preserved() as before:  # so that each row has the random numbers that it had alone
                    batch = self._collate(copy.deepcopy(items))
                    draws = have_moved(before)
                shapes = {tuple(map(np.shape, _arrays(row))) for row in alone}
                is_same = all(_equal(row, _row(batch, i)) for i, row in enumerate(alone))
            except Exception:
                return None
        if len(shapes) > 1:
            return f"its rows differ in shape, and {self.remedy}"
        if draws and not is_same:
            log.warning("data: the collate_fn draws random numbers, but gets each row alone: it mixes none")
        return None if is_same or draws else f"the rows of a batch depend on each other, but {self.remedy}"


def _row(batch: Any, i: int) -> Any:
    """Return one row of a batch: a mapping or tuple of arrays."""
    if isinstance(batch, Mapping):
        return {name: values[i] for name, values in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(values[i] for values in batch)
    raise TypeError(f"collate_fn returned {type(batch).__name__}, not a mapping or tuple of arrays")


def _arrays(row: Any) -> list[Array]:
    return [np.asarray(value) for value in (row.values() if isinstance(row, Mapping) else row)]


def _equal(one: Any, other: Any) -> bool:
    """Return whether two rows hold the same, but for what rounding changes."""
    pairs = list(zip(_arrays(one), _arrays(other), strict=True))
    return all(
        a.shape == b.shape
        and (np.allclose(a, b, 1e-4, 1e-6, equal_nan=True) if a.dtype.kind == "f" else np.array_equal(a, b))
        for a, b in pairs
    )


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
