"""The user's own map-style datasets: `len(dataset)`, and `dataset[i]` giving (features, target).

They are never read through: a dataset of 10^8 items costs a start no more than one of 100.
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

READ_THROUGH = 100_000  # items whose targets are read to learn the classes; beyond, the dataset must say them
_SAMPLE = 64  # items that a fingerprint covers


def as_array(value: Any, what: str) -> Array:
    """A NumPy array of an array, tensor, number, image or nested list; floats become float32.

    Raises:
        DataError: it is none of these; `what` names it.
    """
    try:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is no array: {error}") from error
    if array.dtype.kind not in "biufU":
        raise DataError(f"{what} is {type(value).__name__}; give an array, a tensor or a number")
    return array.astype(np.float32) if array.dtype.kind == "f" else array


class Items:
    """A split whose samples are fetched one by one.

    Args:
        dataset: map-style; `__getitems__(list of positions)` is used where there is one.
        name: how messages call it.
        classes: the labels in index order; None for regression.
        indices: whether targets are indices of `classes` already, rather than labels.
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
        """Fetches the samples and stacks them.

        Raises:
            DataError: an item cannot be read, is no (features, target), or does not fit the others; names its position.
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
        """The items as the dataset gives them, as arrays."""
        if hasattr(self._dataset, "__getitems__"):
            found = self._fetch(positions, lambda: self._dataset.__getitems__(list(positions)))
        else:
            found = [self._fetch([i], lambda i=i: self._dataset[i]) for i in positions]
        return [self._pair(i, item) for i, item in zip(positions, found, strict=True)]

    def _fetch(self, positions: Sequence[int], read: Any) -> Any:
        try:
            return read()
        except Exception as error:
            place = f"item {positions[0]}" if len(positions) == 1 else f"items {listed(positions)}"
            raise DataError(
                f"{self._name}: {place} cannot be read: {type(error).__name__}: {error}"
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
                "no class; "
                f"there are {len(self._classes)}: {listed(self._classes)}"
            )
        return codes

    def sample(self) -> Ids:
        """Positions spread evenly over the dataset, the first and the last among them."""
        return np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(np.int64))

    def fingerprint(self) -> str:
        """Over class, length, and the dataset's own `fingerprint` (a text, or a method that returns one), or 64 items."""
        own = own_fingerprint(self._dataset)
        kind = type(self._dataset)
        return sha256_json([f"{kind.__module__}.{kind.__qualname__}", len(self), own or self.content])

    @cached_property
    def content(self) -> str | None:
        """The digest of a sample of the items; None where they change from one reading to the next."""
        content = self._sample_digest()
        return content if content == self._sample_digest() else None

    def _sample_digest(self) -> str:
        arrays = [array for pair in self.items(self.sample().tolist()) for array in pair]
        return digest(tensor_records(array_buffer(f"{i:04}", array) for i, array in enumerate(arrays)))

    def targets(self) -> Array:
        """(rows,) the targets as the dataset gives them; reads it through, unless it has them in `targets`."""
        known = getattr(self._dataset, "targets", None)
        if known is not None and len(known) == len(self):
            return as_array(known, f"{self._name}: targets")
        return np.stack([target for _, target in self.items(range(len(self)))])


def own_fingerprint(dataset: Any) -> str | None:
    """What a dataset says that its content is, if it does."""
    own = getattr(dataset, "fingerprint", None)
    own = own() if callable(own) else own
    return own if isinstance(own, str) else None


def refuse_division(config: SplitConfig) -> None:
    """Map-style datasets are never divided, so whoever asks for it is told.

    Raises:
        DataError: a share is set (0 is not: there is no such split then), or `stratify` is on.
    """
    asked = [
        name for name in ("val", "test") if getattr(config, name) not in (0, getattr(SplitConfig(), name))
    ]
    asked += ["stratify"] if config.stratify else []
    asked += ["folds"] if config.folds is not None else []
    if asked:
        raise DataError(
            f"data.split.{asked[0]}: map-style datasets are not divided; leave it out, and give a dataset "
            "for each split"
        )


def bundle(datasets: Mapping[SplitName, Any], config: DataConfig) -> DataBundle:
    """What a run trains on, of one map-style dataset for each split.

    Raises:
        DataError: a dataset is empty, its items are no (features, target), or the classes cannot be learned from it.
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
            "classification; "
            "give whole numbers or text, one for each item"
        )
    if config.task == "regression" and targets[0].dtype.kind == "U":
        raise DataError("the targets are text, but the task is regression; give numbers")
    return ("regression" if continuous else "classification") if config.task == "auto" else config.task


def _classes(raw: Mapping[SplitName, Items], dataset: Any, target: Array) -> tuple[list[Any], bool]:
    """The labels, and whether targets are indices of them."""
    said = getattr(dataset, "classes", None)
    if said is None:
        said = getattr(dataset, "num_classes", None)
    if isinstance(said, int):
        return list(range(said)), True
    if said is not None:
        return list(said), target.dtype.kind in "iub"
    if len(raw["train"]) > READ_THROUGH:
        raise DataError(
            f"the train dataset has {len(raw['train'])} items, too many to read through for their classes; "
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
        f"the {name} dataset gives other items when it is read again, so its content cannot be pinned; "
        "give it a `fingerprint`, and draw randomness from the item's position to make runs repeatable"
        for name, items in raw.items()
        if own_fingerprint(datasets[name]) is None and items.content is None
    ]
    if "val" not in raw:
        warnings.append(
            "there is no validation dataset, so there are no validation metrics, and no best model"
        )
    return warnings
