"""The values that the engine, the frameworks and the data sets exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Ids: TypeAlias = NDArray[np.int64]
SplitName: TypeAlias = Literal["train", "val", "test"]
Tier: TypeAlias = Literal["bitwise", "order", "statistical"]
Mode: TypeAlias = Literal["min", "max"]  # whether lower or higher is better
Metrics: TypeAlias = dict[str, float]

T = TypeVar("T")

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


# Rows of a split in the requested order: arrays by name, with the samples on the first axis. The model gets
# every array that `DataInfo.inputs` names; the others (the target, a weight) are for the loss.
Batch: TypeAlias = Mapping[str, Array]

# The names of arrays that have a meaning of their own.
FEATURES = "features"  # (rows, ...): the columns of a table, or an image
# (rows,) or (rows, outputs): what the model is to predict, as its task encodes it; values are float64
TARGET = "target"
WEIGHT = "weight"  # (rows,) float64: how much a sample counts, unless the model takes an array of this name
INPUT_IDS = "input_ids"  # (rows, length) int64: tokens
ATTENTION_MASK = "attention_mask"  # (rows, length) int64: 1 for a token, 0 for padding
LABELS = "labels"  # (rows, length) int64: the token to predict at each position, or NO_LABEL
TEXT_BYTES = "text_bytes"  # (rows,) int64: the bytes of text that the labels of a row stand for
NO_LABEL = -100


class ArraySpec(NamedTuple):
    """An array of a batch: the shape of one sample, and NumPy's name of the dtype."""

    shape: tuple[int, ...]
    dtype: str


class FeatureForm(NamedTuple):
    """The form in which a framework wants the rows of tables.

    Attributes:
        dtype: NumPy's name of the dtype of features.
        frames: Whether the model prepares the columns itself, and gets them as a data frame.
        target: What the model learns of targets that are values. `float64`: the very values. `float32`:
            these, rounded. `centered`: the same, but shifted first where rounding would lose their
            differences. `standardized`: shifted only if they are standardized as well.
        is_own: Whether the model is the user's own, written for the columns that the data have.
        by_gradients: Whether gradients train the model, which then learns badly from large values.
    """

    dtype: str = "float32"
    frames: bool = False
    target: Literal["float64", "float32", "centered", "standardized"] = "float64"
    is_own: bool = False
    by_gradients: bool = False


class StepResult(NamedTuple):
    """The result of a step. `loss` is the mean over the step's samples, still on the device and unread."""

    loss: Any
    samples: int


# What a model logs in a step, by name: the sum over rows, and the number of these.
LoggedValues: TypeAlias = Mapping[str, tuple[float, int]]


class HeadPredictions(NamedTuple):
    """The outputs of one of several heads for some rows.

    Attributes:
        loss: Its own loss, summed over these rows as in `Predictions`, before it is weighted.
        info: The description of the data for its task; None for the first output, whose predictions are
            those of `Predictions`.
        metrics: The metrics to compute; None: the task's own.
        outputs: As in `Predictions`.
        targets: As in `Predictions`.
    """

    loss: float
    info: DataInfo | None = None
    metrics: Sequence[str] | None = None
    outputs: Array | None = None
    targets: Array | None = None


class Predictions(NamedTuple):
    """The outputs for some rows of a split, on the host.

    Attributes:
        ids: (rows,) int64 positions in the split.
        outputs: What the task calls predictions: class probabilities (rows, classes) float32, say.
        targets: The targets, as in the batch.
        loss: The loss summed over these rows, each multiplied by its weight if there are weights.
        measures: The values of the model's own metrics, by name, over all rows of the split so far. Those of
            the last part are the result.
        weights: (rows,) float64 weights of the rows; None if all count the same.
        counts: What a user's own metrics that add up by themselves have counted on these rows, by name.
        logged: What the model's own step has logged of these rows.
        heads: Where the model has several, each by the name of its output; `loss` is that of their sum.
    """

    ids: Ids
    outputs: Array
    targets: Array
    loss: float
    measures: Mapping[str, float] = MappingProxyType({})
    weights: Array | None = None
    counts: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    heads: Mapping[str, HeadPredictions] = MappingProxyType({})
    logged: LoggedValues = MappingProxyType({})


class Block(NamedTuple):
    """The place of a block in its tensor: the index of its first element, and the shape of the tensor."""

    offset: tuple[int, ...]
    whole: tuple[int, ...]


class NamedBuffer(NamedTuple):
    """A tensor of a framework's state, or a block of one, on the host.

    `dtype` is its safetensors name (`F32`, `BF16`, `I64`, `U8` ...); `buffer` holds the C-contiguous bytes of
    the elements of `shape`. `block` says where a block lies in its tensor; None: this is the whole tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: memoryview
    block: Block | None = None


class Determinism(NamedTuple):
    """The exactness with which a run can be repeated, and the reason."""

    tier: Tier
    reason: str


class TableShape(NamedTuple):
    """The size of a table, on which the proposal of a model depends.

    Attributes:
        rows: The number of rows to train on.
        features: The number of columns to learn from.
        classes: The number of classes; 0 for values.
        rarest: The share of the rarest class.
        several: What several targets hold; None for one target.
    """

    rows: int
    features: int
    classes: int = 0
    rarest: float = 1.0
    several: Literal["values", "labels"] | None = None


class Proposal(NamedTuple):
    """The beginning of a config for a table, for one model.

    Attributes:
        model: Options of the model.
        training: Keys of `training`.
        evaluation: Keys of `evaluation`.
        reasons: Why an option has its value, by the option, for comments in the config.
        default_rank: The rank among the models that `trainwright init` takes by itself: the lowest one that
            is installed. None: it is taken only if the user asks for it.
        comparison_rank: The rank among the models that `init --model auto` compares, in the order in which
            they are trained until the time is over. None: it is not compared.
    """

    model: Mapping[str, Any]
    training: Mapping[str, Any] = MappingProxyType({})
    evaluation: Mapping[str, Any] = MappingProxyType({})
    reasons: Mapping[str, str] = MappingProxyType({})
    default_rank: int | None = None
    comparison_rank: int | None = None


class Suggestion(NamedTuple):
    """A parameter that is worth a search: its values as in `tuning.space`, and why."""

    spec: Any
    why: str


@dataclass(frozen=True)
class Evaluation:
    """The metrics of the evaluation after step `step`, named `val_loss`, `val_f1` ..."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class DataInfo:
    """The facts about the data that a model must know.

    Attributes:
        task: The name of the task.
        inputs: The arrays that the model is called with, by name. A single one is passed by position, several
            are passed by name.
        outputs: The number of classes, of labels, of regression targets, or of different tokens.
        classes: The class labels in index order, or the names of the labels of `multilabel`, if there are
            any.
        feature_names: The names of the features, if they have any.
        target: The name of the target; of several targets their names, joined by commas.
        target_mean: The mean of the training split's targets, for frameworks that train on standardized ones.
            Predictions and targets are always in the data's original units.
        target_scale: Their standard deviation.
        categories: For each feature, the number of categories if its values are category codes (0 .. n-1, NaN
            for a missing or unknown category), or 0 if it is a number. Empty if all features are numbers.
        target_names: The names of several targets that are values, in the order of the outputs, if they have
            any.
        target_transform: The transformation of the target, as `tasks.support.transforms` writes it; models,
            `target_mean`, `target_scale` and `target_offset` are then on the transformed scale. None: there
            is none.
        target_offset: What is subtracted from each of the targets before they are rounded to float32, for
            frameworks that learn in it; empty: nothing is. `target_mean` is that of the difference.
        image_shape: The shape of the images that flat rows of features hold, if the data are known to.
        target_shape: The shape of one sample's target where that is a mask: (height, width).
        vocab_size: The number of different tokens of `input_ids`, if they are not the outputs; 0: not known.
        counts_bytes: Of language modeling, whether it is known how many bytes of text tokens stand for.
        positive: The index of the positive one of two classes, which metrics and tables single out; None:
            nothing was said of it. A model depends on it in nothing.
        positive_reason: Why it is that one; empty if the config names it.
    """

    task: str
    inputs: Mapping[str, ArraySpec]
    outputs: int
    classes: Sequence[Any] | None = None
    feature_names: Sequence[str] = field(default=())
    target: str = "target"
    target_mean: float = 0.0
    target_scale: float = 1.0
    categories: Sequence[int] = field(default=())
    target_names: Sequence[str] = field(default=())
    target_transform: Mapping[str, Any] | None = None
    target_offset: Sequence[float] = field(default=())
    image_shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    vocab_size: int = 0
    counts_bytes: bool = True
    positive: int | None = None
    positive_reason: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample's features; of other inputs that of the first."""
        return (self.inputs.get(FEATURES) or next(iter(self.inputs.values()))).shape

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON; class labels that JSON cannot hold become strings."""
        plain = [label.item() if isinstance(label, np.generic) else label for label in self.classes or ()]
        classes = [label if isinstance(label, str | int | float | bool) else str(label) for label in plain]
        several = {"target_names": list(self.target_names)} if self.target_names else {}
        transform = {"target_transform": self.target_transform} if self.target_transform else {}
        offset = {"target_offset": list(self.target_offset)} if self.target_offset else {}
        return {
            "task": self.task,
            "inputs": {name: [list(spec.shape), spec.dtype] for name, spec in self.inputs.items()},
            "outputs": self.outputs,
            "classes": None if self.classes is None else classes,
            "feature_names": list(self.feature_names),
            "target": self.target,
            "target_mean": self.target_mean,
            "target_scale": self.target_scale,
            "categories": list(self.categories),
            **several,
            **transform,
            **offset,
            **({"image_shape": list(self.image_shape)} if self.image_shape else {}),
            **({"target_shape": list(self.target_shape)} if self.target_shape else {}),
            **({"vocab_size": self.vocab_size} if self.vocab_size else {}),
            **({} if self.counts_bytes else {"counts_bytes": False}),
            **({} if self.positive is None else {"positive": self.positive}),
            **({"positive_reason": self.positive_reason} if self.positive_reason else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DataInfo:
        """Read what `to_json` returned."""
        plain = dict(data)
        specs = {name: ArraySpec(tuple(shape), dtype) for name, (shape, dtype) in plain.pop("inputs").items()}
        image_shape, target_shape = (tuple(plain.pop(f"{of}_shape", ())) for of in ("image", "target"))
        return DataInfo(inputs=specs, image_shape=image_shape, target_shape=target_shape, **plain)


def features_spec(shape: tuple[int, ...], dtype: str = "float32") -> dict[str, ArraySpec]:
    """Return the `inputs` of data whose only input is an array of features."""
    return {FEATURES: ArraySpec(shape, dtype)}


def weights_of(batch: Mapping[str, T], info: DataInfo) -> T | None:
    """Return the weights of the samples of a batch, (rows,); None if all count the same."""
    return None if WEIGHT in info.inputs else batch.get(WEIGHT)
