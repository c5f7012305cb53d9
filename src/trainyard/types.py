"""The values that pass between core, frameworks and datasets."""

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
Metrics: TypeAlias = dict[str, float]

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


class Batch(NamedTuple):
    """Rows of a split, in the order asked for.

    `features`: (rows, ...); `targets`: (rows,) int64 class indices, or (rows,) / (rows, outputs) float32.
    """

    features: Array
    targets: Array


class StepResult(NamedTuple):
    """What one step left behind. `loss` is the mean over the step's samples, still on the device and unread."""

    loss: Any
    samples: int


class Predictions(NamedTuple):
    """The outputs for some rows of a split, on the host.

    `ids`: (rows,) int64 positions in the split; `outputs`: class probabilities (rows, classes) float32, or values
    (rows,) / (rows, outputs) float32; `targets`: as in `Batch`; `loss`: the loss summed over these rows; `measures`: of metrics
    that the model brings itself, by name, over all rows of the split up to here (those of the last part count).
    """

    ids: Ids
    outputs: Array
    targets: Array
    loss: float
    measures: Mapping[str, float] = MappingProxyType({})


class NamedBuffer(NamedTuple):
    """One tensor of a framework's state, on the host.

    `dtype` is safetensors' name for it (`F32`, `BF16`, `I64`, `U8` ...); `buffer` holds the C-contiguous bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: memoryview


class Determinism(NamedTuple):
    """How exactly a run can be repeated, and why not better."""

    tier: Tier
    reason: str


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one evaluation, named `val_loss`, `val_f1` ...; it stands after step `step`."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class DataInfo:
    """What a model has to know of the data.

    `input_shape` is the shape of one sample's features, `classes` the class labels in index order (None for
    regression), `outputs` the number of classes or of regression targets. `target_mean` and `target_scale` (the standard
    deviation) are those of the training split's values, for frameworks that learn better from (value - mean) / scale;
    predictions and targets are in the data's own unit always. `categories` has, for each feature, the number of categories that
    its values are codes of (0 .. n-1, NaN for a missing or unknown one), and 0 for a number; it is empty where all are numbers.
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
        """The same as JSON; class labels that JSON has no value for become strings."""
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
        return DataInfo(**{**data, "input_shape": tuple(data["input_shape"])})
