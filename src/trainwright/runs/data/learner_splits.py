"""The data as a learner gets them: with transformed targets, and the weights of their classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import (
    ArraySplit,
    ClassSplit,
    DataBundle,
    Draw,
    KnownSplit,
    ReadFromFiles,
    Reading,
    SampleSplit,
    Split,
    known_arrays,
    unnoted,
)
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import Framework
from trainwright.inference.original_units import transformed
from trainwright.plugins import task_for
from trainwright.tasks.support.class_weights import of_classes
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import TARGET, WEIGHT, Array, Batch, DataInfo, Ids, SplitName

_KEY = "training.class_weights"
# Options of models that weight classes by themselves, and the values that mean that they do not.
_OWN_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "class_weight": (None,),
    "class_weights": (None,),
    "auto_class_weights": (None, "None"),
    "scale_pos_weight": (None, 1, 1.0),
    "is_unbalance": (None, False),
}


def learner_splits(
    config: RunConfig, bundle: DataBundle, framework: type[Framework], model: Any = None
) -> Mapping[SplitName, Split]:
    """Return the splits as the learner gets them.

    Raises:
        ModelError: The framework, the model or the task takes no weights, or the model weights classes, too;
            or it weights the class that is not the positive one.
        InputError: The class weights do not fit the data, or targets cannot be transformed.
    """
    _refuse_weight_of_other_class(config, bundle.info, model)
    splits, weights = _with_transformed_targets(bundle), config.training.class_weights
    arrays = known_arrays(splits["train"]) or {}
    by_name = config.data is not None and config.data.weight is not None
    given = WEIGHT in arrays and WEIGHT not in bundle.info.inputs
    has_weights = by_name or given  # as data.weight, or with (X, y, w)
    if not has_weights and weights is None:
        return splits
    _check_takes_weights("data.weight" if has_weights else _KEY, config, bundle.info, framework)
    if weights is None:
        return splits
    _refuse_own_options(config, model)
    return {**splits, "train": _weighted_by_class(splits["train"], weights, bundle.info)}


def _with_transformed_targets(bundle: DataBundle) -> Mapping[SplitName, Split]:
    """Return the splits with the targets that a model learns.

    Raises:
        InputError: Targets cannot be transformed.
    """
    if (transform := transform_of(bundle.info)) is None:
        return bundle.splits
    for name, split in bundle.splits.items():
        if isinstance(split, ArraySplit):
            transform.check(split.arrays[TARGET], f"{name} targets")
    return {name: transformed(split, transform) for name, split in bundle.splits.items()}


def _weighted_by_class(train: Split, weights: str | Mapping[str, float], info: DataInfo) -> Split:
    """Return the training split with the weight of its class in that of each row.

    Raises:
        InputError: The class weights do not fit the data.
    """
    arrays = known_arrays(train) or {}
    if not task_for(info).has_classes():
        raise InputError(f"{_KEY}: the task is {info.task}, which has no classes; leave it out")
    if WEIGHT in info.inputs:
        raise InputError(f"{_KEY}: the model takes an array named {WEIGHT!r}; leave it out")
    if getattr(train, "mixes", False):
        raise InputError(f"{_KEY}: data.transforms blends the classes of two images; leave one of them out")
    targets = arrays[TARGET] if TARGET in arrays else _codes(train)
    by_row = _by_class(weights, targets, info)[targets] * arrays.get(WEIGHT, 1.0)
    if not by_row.any():
        raise InputError(
            f"{_KEY}: the weights of all training rows are 0, so that none counts; give "
            "some of them a weight above 0"
        )
    if TARGET not in arrays:
        assert isinstance(train, SampleSplit), "the targets of others are known"
        return WeightedSamples(train, by_row)
    weighted = {**arrays, WEIGHT: by_row}
    return train.with_known(weighted) if isinstance(train, KnownSplit) else Arrays(weighted)


def _codes(train: Split) -> Array:
    """Return the classes of samples that are read one by one."""
    if not isinstance(train, ClassSplit):
        raise InputError(
            f"{_KEY}: the classes of the training samples are not known beforehand; leave it out"
        )
    return train.codes(_KEY)[0]


def _by_class(weights: str | Mapping[str, float], targets: Array, info: DataInfo) -> Array:
    """Return the weight of each class, (classes,) float64; of classes without one it is 1.

    Raises:
        InputError: A label is not a class, or a weight is negative.
    """
    if isinstance(weights, str):
        counts = np.bincount(targets, minlength=info.outputs)
        present = counts > 0
        balanced = np.zeros(len(counts))
        balanced[present] = len(targets) / (present.sum() * counts[present])
        return balanced
    return of_classes(weights, info, _KEY)


def _check_takes_weights(key: str, config: RunConfig, info: DataInfo, framework: type[Framework]) -> None:
    if not framework.capabilities.weights:
        raise ModelError(f"{key}: {config.model.type} takes no weights of samples; leave it out")
    if task_for(info).sums:
        raise ModelError(f"{key}: the task {info.task} takes no weights of samples; leave it out")


def _options(config: RunConfig, model: Any) -> dict[str, Any]:
    return config.model.params | (model.get_params() if hasattr(model, "get_params") else {})


def _is_set(name: str, options: Mapping[str, Any]) -> bool:
    return name in options and not any(
        options[name] is one or options[name] == one for one in _OWN_OPTIONS[name]
    )


def _refuse_weight_of_other_class(config: RunConfig, info: DataInfo, model: Any) -> None:
    """Refuse a weight that boosting libraries apply to the second class, if the first is positive."""
    name, options = "scale_pos_weight", _options(config, model)
    if info.positive == 0 and info.classes is not None and _is_set(name, options):
        first, second = info.classes
        raise ModelError(
            f"{name}: {options[name]} given, which weights the second class, {second}, but the positive "
            f"class is {first}; write training.class_weights: {{{first}: {options[name]}}}, or "
            f"evaluation.positive: {second}"
        )


def _refuse_own_options(config: RunConfig, model: Any) -> None:
    options = _options(config, model)
    for name in _OWN_OPTIONS:
        if _is_set(name, options):
            raise ModelError(
                f"{_KEY}: the model also weights classes, by {name}: {options[name]!r}; give only one of them"
            )


class WeightedSamples:
    """A `KnownSplit`: the samples of another split, and their weights, (rows,) float64."""

    def __init__(self, split: SampleSplit, weights: Array) -> None:
        self._split = split
        self.known: Batch = {WEIGHT: weights}

    def __len__(self) -> int:
        return len(self._split)

    @property
    def reading(self) -> Reading:
        """The reading of the samples."""
        return self._split.reading

    def with_known(self, known: Batch) -> WeightedSamples:
        """Return the same samples with other weights."""
        return WeightedSamples(self._split, known[WEIGHT])

    def take(self, ids: Ids) -> Batch:
        """Return the samples `ids`, with their weights."""
        return {**self._split.take(ids), WEIGHT: self.known[WEIGHT][ids]}

    def read(self, ids: Ids, draw: Draw, note: Callable[[int], None] = unnoted) -> Batch:
        """Return the same, with random numbers of each sample's own."""
        return {**self._split.read(ids, draw, note), WEIGHT: self.known[WEIGHT][ids]}

    @property
    def files_read(self) -> list[str]:
        """The files of the samples; see `ReadFromFiles`."""
        return list(self._split.files_read) if isinstance(self._split, ReadFromFiles) else []

    def fingerprint(self) -> str:
        """Return that of the samples: their weights follow from their classes and the config."""
        return self._split.fingerprint()
