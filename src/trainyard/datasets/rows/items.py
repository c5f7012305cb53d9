"""Map-style datasets of the user: `len(dataset)`, and `dataset[i]` returns (features, target).

They are never read as a whole, so a run starts as fast with 10^8 items as with 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from trainyard.config.schema import DataConfig, SplitConfig
from trainyard.datasets.base import DataBundle, Split
from trainyard.datasets.rows.table import kind_of, listed, tidy
from trainyard.datasets.rows.target import class_indices, labels_in
from trainyard.digest import array_buffer, digest, sha256_json, tensor_records
from trainyard.errors import DataError
from trainyard.types import Array, Batch, DataInfo, Ids, SplitName, Task

READ_THROUGH = 100_000  # items whose targets are read to find the classes; a larger dataset must name them
_SAMPLE = 64  # items that a fingerprint covers


def as_array(value: Any, what: str) -> Array:
    """Convert an array, tensor, number, image or nested list to NumPy; floats become float32.

    Args:
        value: What to convert.
        what: Its name in messages.

    Raises:
        DataError: The value is of another type.
    """
    try:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is not an array: {error}") from error
    if array.dtype.kind not in "biufU":
        raise DataError(f"{what} is {type(value).__name__}; give an array, a tensor or a number")
    return array.astype(np.float32) if array.dtype.kind == "f" else array


class Items:
    """A split whose samples are fetched on demand.

    Args:
        dataset: Map-style; its `__getitems__(list of positions)` is used if it has one.
        name: Its name in messages.
        classes: The labels in the order of their indices; None for regression.
        indices: Whether targets are indices of `classes` rather than labels.
    """

    def __init__(
        self, dataset: Any, name: str, classes: Sequence[Any] | None = None, indices: bool = False
    ) -> None:
        self._dataset = dataset
        self._name = name
        self._classes = classes
        self._indices = indices

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, ids: Ids) -> Batch:
        """Fetch the samples and stack them.

        Raises:
            DataError: An item cannot be read, is not (features, target), or has another shape; names its
                position.
        """
        features, targets = zip(*self.items(ids.tolist()), strict=True)
        shapes = {array.shape for array in features}
        if len(shapes) > 1:
            odd = next(
                i for i, array in zip(ids.tolist(), features, strict=True) if array.shape != features[0].shape
            )
            raise DataError(
                f"{self._name}: item {ids[0]} has features of shape {features[0].shape}, "
                f"item {odd} others; pad or cut them to one shape"
            )
        return Batch(np.stack(features), self._encode(np.stack(targets), ids))

    def items(self, positions: Sequence[int]) -> list[tuple[Array, Array]]:
        """Return the items of the dataset as arrays."""
        if hasattr(self._dataset, "__getitems__"):
            items = self._fetch(positions, lambda: self._dataset.__getitems__(list(positions)))
        else:
            items = [self._fetch([i], lambda i=i: self._dataset[i]) for i in positions]
        return [self._pair(i, item) for i, item in zip(positions, items, strict=True)]

    def _fetch(self, positions: Sequence[int], read: Any) -> Any:
        try:
            return read()
        except Exception as error:
            which = f"item {positions[0]}" if len(positions) == 1 else f"items {listed(positions)}"
            raise DataError(
                f"{self._name}: {which} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _pair(self, position: int, item: Any) -> tuple[Array, Array]:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{self._name}: item {position} is {type(item).__name__}; it must be a pair (features, "
                "target)"
            )
        what = f"{self._name}: item {position}: "
        features, target = as_array(item[0], what + "features"), as_array(item[1], what + "target")
        for part, array in (("features", features), ("target", target)):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{what}{part} hold NaN or infinite values")
        return features, target

    def _encode(self, targets: Array, ids: Ids) -> Array:
        if self._classes is None:
            return targets.astype(np.float32)
        if self._indices:
            codes = targets.astype(np.int64)
            codes = np.where((codes >= 0) & (codes < len(self._classes)), codes, -1)
        else:
            codes = class_indices(
                targets.astype(object) if targets.dtype.kind == "U" else targets, self._classes
            )
        if (unknown := codes < 0).any():
            raise DataError(
                f"{self._name}: the target of item {ids[unknown][0]} is {targets[unknown][0]!r}, which is "
                f"not a class; there are {len(self._classes)}: {listed(self._classes)}"
            )
        return codes

    def sample(self) -> Ids:
        """Return positions spread evenly over the dataset, including the first and the last."""
        return np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(np.int64))

    def fingerprint(self) -> str:
        """Return the digest over class, length and content.

        The content is the dataset's own `fingerprint` (a text, or a method that returns one), or a sample of
        64 items.
        """
        own = own_fingerprint(self._dataset)
        kind = type(self._dataset)
        return sha256_json([f"{kind.__module__}.{kind.__qualname__}", len(self), own or self.content])

    @cached_property
    def content(self) -> str | None:
        """The digest of a sample of the items; None if they change when read again."""
        content = self._sample_digest()
        return content if content == self._sample_digest() else None

    def _sample_digest(self) -> str:
        arrays = [array for pair in self.items(self.sample().tolist()) for array in pair]
        return digest(tensor_records(array_buffer(f"{i:04}", array) for i, array in enumerate(arrays)))

    def targets(self) -> Array:
        """Return the targets, (rows,): the attribute `targets` if there is one, else read from all items."""
        known = getattr(self._dataset, "targets", None)
        if known is not None and len(known) == len(self):
            return as_array(known, f"{self._name}: targets")
        return np.stack([target for _, target in self.items(range(len(self)))])


def own_fingerprint(dataset: Any) -> str | None:
    """Return the dataset's own `fingerprint`, or None if it has none."""
    own = getattr(dataset, "fingerprint", None)
    own = own() if callable(own) else own
    return own if isinstance(own, str) else None


def refuse_division(config: SplitConfig) -> None:
    """Refuse settings that would split a map-style dataset.

    Raises:
        DataError: A share is set (other than 0, which asks for no such split), or `stratify` or `folds`.
    """
    settings = [
        name for name in ("val", "test") if getattr(config, name) not in (0, getattr(SplitConfig(), name))
    ]
    settings += ["stratify"] if config.stratify else []
    settings += ["folds"] if config.folds is not None else []
    if settings:
        raise DataError(
            f"data.split.{settings[0]}: map-style datasets are not split; leave it out, and give a dataset "
            "for each split"
        )


def bundle(datasets: Mapping[SplitName, Any], config: DataConfig) -> DataBundle:
    """Build the data of a run from one map-style dataset per split.

    Raises:
        DataError: A dataset is empty, its items are not (features, target), or its classes are unknown.
    """
    for name, dataset in datasets.items():
        if not len(dataset):
            raise DataError(f"the {name} dataset is empty: its length is 0")
    raw = {name: Items(dataset, f"the {name} dataset") for name, dataset in datasets.items()}
    features, target = raw["train"].items([0])[0]
    task = _task(raw["train"], config)
    classes, indices = _classes(raw, datasets["train"], target) if task == "classification" else (None, False)
    splits: dict[SplitName, Split] = {
        name: Items(dataset, f"the {name} dataset", classes, indices) for name, dataset in datasets.items()
    }
    outputs = len(classes) if classes is not None else (target.shape[0] if target.ndim else 1)
    return DataBundle(
        info=DataInfo(task, features.shape, outputs, classes, target=config.target),
        splits=splits,
        warnings=_warnings(raw, datasets),
        content_hashed=all(own_fingerprint(dataset) is not None for dataset in datasets.values()),
    )


def _task(train: Items, config: DataConfig) -> Task:
    targets = [target for _, target in train.items(train.sample().tolist())]
    continuous = any(target.dtype.kind == "f" or target.ndim for target in targets)
    if config.task == "classification" and continuous:
        raise DataError(
            f"the targets are {targets[0].dtype} of shape {targets[0].shape}, but the task is "
            "classification; give whole numbers or text, one for each item"
        )
    if config.task == "regression" and targets[0].dtype.kind == "U":
        raise DataError("the targets are text, but the task is regression; give numbers")
    return ("regression" if continuous else "classification") if config.task == "auto" else config.task


def _classes(raw: Mapping[SplitName, Items], dataset: Any, target: Array) -> tuple[list[Any], bool]:
    """Return the labels, and whether targets are indices of them."""
    declared = getattr(dataset, "classes", None)
    if declared is None:
        declared = getattr(dataset, "num_classes", None)
    if isinstance(declared, int):
        return list(range(declared)), True
    if declared is not None:
        return list(declared), target.dtype.kind in "iub"
    if len(raw["train"]) > READ_THROUGH:
        raise DataError(
            f"the train dataset has {len(raw['train'])} items, too many to read all for their classes; "
            "give it an attribute `classes` (the labels in order) or `num_classes`"
        )
    classes = _labels(raw["train"])
    for name, items in raw.items():
        if name != "train" and len(items) <= READ_THROUGH and (unknown := set(_labels(items)) - set(classes)):
            raise DataError(
                f"the {name} dataset has class {listed(map(repr, sorted(unknown)))}, which no training item "
                "has"
            )
    return classes, False


def _labels(items: Items) -> list[Any]:
    targets = items.targets()
    values = tidy(targets, "target")
    return labels_in(values.astype(np.int64) if kind_of(values) == "boolean" else values)


def _warnings(raw: Mapping[SplitName, Items], datasets: Mapping[SplitName, Any]) -> list[str]:
    warnings = [
        f"the {name} dataset returns other items when it is read again, so its content cannot be pinned; "
        "give it a `fingerprint`, and derive randomness from the item's position to make runs repeatable"
        for name, items in raw.items()
        if own_fingerprint(datasets[name]) is None and items.content is None
    ]
    if "val" not in raw:
        warnings.append(
            "there is no validation dataset, so there are no validation metrics, and no best model"
        )
    return warnings
