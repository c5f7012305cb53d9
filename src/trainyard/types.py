"""The values that the engine, the frameworks and the data sets exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Ids: TypeAlias = NDArray[np.int64]
SplitName: TypeAlias = Literal["train", "val", "test"]
Task: TypeAlias = Literal["classification", "regression"]
Tier: TypeAlias = Literal["bitwise", "order", "statistical"]
Mode: TypeAlias = Literal["min", "max"]  # whether lower or higher is better
Metrics: TypeAlias = dict[str, float]

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


class Batch(NamedTuple):
    """Rows of a split, in the requested order.

    `features`: (rows, ...); `targets`: (rows,) int64 class indices, or (rows,) / (rows, outputs) float32.
    """

    features: Array
    targets: Array


class StepResult(NamedTuple):
    """The result of a step. `loss` is the mean over the step's samples, still on the device and unread."""

    loss: Any
    samples: int


class Predictions(NamedTuple):
    """The outputs for some rows of a split, on the host.

    Attributes:
        ids: (rows,) int64 positions in the split.
        outputs: Class probabilities (rows, classes) float32, or values (rows,) / (rows, outputs) float32.
        targets: As in `Batch`.
        loss: The loss summed over these rows.
        measures: The values of the model's own metrics, by name, over all rows of the split so far. Those of
            the last part are the result.
    """

    ids: Ids
    outputs: Array
    targets: Array
    loss: float
    measures: Mapping[str, float] = MappingProxyType({})


class NamedBuffer(NamedTuple):
    """One tensor of a framework's state, on the host.

    `dtype` is its safetensors name (`F32`, `BF16`, `I64`, `U8` ...); `buffer` holds the C-contiguous bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: memoryview


class Determinism(NamedTuple):
    """How exactly a run can be repeated, and the reason."""

    tier: Tier
    reason: str


@dataclass(frozen=True)
class Evaluation:
    """The metrics of the evaluation after step `step`, named `val_loss`, `val_f1` ..."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class DataInfo:
    """What a model must know of the data.

    Attributes:
        task: What the model predicts: classes or values.
        input_shape: The shape of one sample's features.
        outputs: The number of classes, or of regression targets.
        classes: The class labels in index order; None for regression.
        feature_names: The names of the features, if they have any.
        target: The name of the target.
        target_mean: The mean of the training split's targets, for frameworks that train on standardized ones.
            Predictions and targets are in the data's own unit in any case.
        target_scale: Their standard deviation.
        categories: For each feature, the number of categories if its values are category codes (0 .. n-1, NaN
            for a missing or unknown category), or 0 if it is a number. Empty if all features are numbers.
    """

    task: Task
    input_shape: tuple[int, ...]
    outputs: int
    classes: Sequence[Any] | None = None
    feature_names: Sequence[str] = field(default=())
    target: str = "target"
    target_mean: float = 0.0
    target_scale: float = 1.0
    categories: Sequence[int] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON; class labels that JSON cannot hold become strings."""
        plain = [label.item() if isinstance(label, np.generic) else label for label in self.classes or ()]
        classes = [label if isinstance(label, str | int | float | bool) else str(label) for label in plain]
        return {
            "task": self.task,
            "input_shape": list(self.input_shape),
            "outputs": self.outputs,
            "classes": None if self.classes is None else classes,
            "feature_names": list(self.feature_names),
            "target": self.target,
            "target_mean": self.target_mean,
            "target_scale": self.target_scale,
            "categories": list(self.categories),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DataInfo:
        """Read what `to_json` returned."""
        return DataInfo(**{**data, "input_shape": tuple(data["input_shape"])})
