"""The contract of tasks: what a model is asked, and how its answers are judged.

A task is made from the description of the data. It owns the encoding of targets, the form of outputs, the
default loss, the metrics, the columns of predictions, and the tables of the report. Nothing else asks which
task it is, except an adapter's own table from tasks to the objectives of its library.

Most evaluations keep the predictions of all rows, and compute metrics from them. Where a model's outputs are
too large to keep (a distribution over 256 bytes for each position of a text), the predictions of a row are a
few sums over it, and metrics are computed from these: `Task.sums` names them.

Methods may be called from any thread. They are pure functions of the description and their arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import DataError, InputError, ModelError
from trainwright.numerals import number
from trainwright.tasks.support import positive
from trainwright.tasks.support.positive import PositiveClass
from trainwright.types import TARGET, Array, Batch, DataInfo, Ids, Mode, SplitName

Json = dict[str, Any]
Floats = NDArray[np.float64]
Columns = Mapping[str, Sequence[Any] | Array]  # name -> (rows,) values of a table of predictions
Bounds = tuple[float, float]  # the lowest and the highest value that a metric can have
UNBOUNDED: Bounds = (-np.inf, np.inf)
SHARE: Bounds = (0.0, 1.0)
FROM_0: Bounds = (0.0, np.inf)
UP_TO_1: Bounds = (-np.inf, 1.0)
CORRELATION: Bounds = (-1.0, 1.0)


@dataclass(frozen=True)
class Metric:
    """A metric of one task.

    Attributes:
        mode: Whether it is minimized or maximized; None if a user's own does not say so.
        description: What it measures, in a few words.
        function: Computes it from the scores of at least one row; NaN where it is undefined.
        by_row: Where the metric is a mean over rows, returns the (rows,) float64 values; None otherwise. If
            all values are 0 or 1, two models are compared by McNemar's test, else by sign flips.
        parts: Where the metric is a ratio of two sums over rows, returns what each row adds to it: (rows,)
            float64 values whose mean it is.
        paired: Returns (rows,) float64 values whose mean decides which of two models is better by this
            metric, if the targets are the same; None where there are no such values. Default: `by_row`.
        share: Where the metric is a share of certain rows, as recall is of those of a class, returns how many
            they are: the denominator. None where it is no such share (a mean over classes).
        bounds: The lowest and the highest value that it can have. Intervals end there, and the better of the
            two is perfection.
    """

    mode: Mode | None
    description: str
    function: Callable[[Scores], float]
    by_row: Callable[[Scores], Floats] | None = None
    paired: Callable[[Scores], Floats | None] | None = None
    parts: Callable[[Scores], Floats] | None = None
    share: Callable[[Scores], int | None] | None = None
    bounds: Bounds = UNBOUNDED

    @property
    def best(self) -> float | None:
        """The value of a perfect model; None if it is not known."""
        best = self.bounds[1] if self.mode == "max" else self.bounds[0]
        return best if self.mode is not None and np.isfinite(best) else None


@dataclass(frozen=True, eq=False)
class Scores:
    """The basis of metrics: the predictions and targets of at least one row; all are finite.

    Attributes:
        task: The task, whose `scores` method states the shapes and dtypes.
        outputs: The predictions, (rows, ...).
        targets: The targets, (rows, ...).
        weights: The weights of the rows, (rows,) float64, whose sum is above 0; None if all count the same.
        labels: The labels of the classes in index order, if the data have any.
        positive: The index of the positive one of two classes.
    """

    task: type[Task]
    outputs: Array
    targets: Array
    weights: Floats | None = None
    labels: Sequence[Any] | None = None
    positive: int = 1

    def take(self, ids: Ids) -> Scores:
        """Return the scores of the rows `ids`, (n,) int64; a row may be repeated."""
        weights = None if self.weights is None else self.weights[ids]
        return replace(self, outputs=self.outputs[ids], targets=self.targets[ids], weights=weights)

    def mean(self, values: Array) -> Any:
        """Return the mean of (rows, ...) values over the rows, by their weights: (...) float64."""
        if self.weights is None:
            return np.mean(values, axis=0)
        return np.average(values, axis=0, weights=self.weights)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(rows,) int64: the most probable class of each row; of equally probable ones the first."""
        best: NDArray[np.int64] = np.argmax(self.outputs, axis=1)
        return best

    @cached_property
    def confusion(self) -> NDArray[np.int64] | Floats:
        """(classes, classes): `[i, j]` counts the rows of class i that were predicted as class j.

        It is int64; or float64, the sums of the weights of these rows, where there are weights.
        """
        classes = self.outputs.shape[1]
        cells = self.targets * classes + self.predicted  # (rows,)
        counts = np.bincount(cells, weights=self.weights, minlength=classes * classes)
        if self.weights is None:
            counts = counts.astype(np.int64, copy=False)
        return counts.reshape(classes, classes)

    @cached_property
    def true_probability(self) -> Array:
        """(rows,), in the dtype of the outputs: the predicted probability of the true class."""
        return np.take_along_axis(self.outputs, self.targets[:, None], axis=1)[:, 0]


class Answers(NamedTuple):
    """Targets and predictions as scikit-learn's metrics take them, and probabilities where there are any."""

    targets: Array
    predictions: Array
    probabilities: Array | None = None


class Guess(NamedTuple):
    """A baseline of a task whose rows have parts, such as tokens or pixels.

    Attributes:
        name: `constant`, or `table` for one that looks at the tokens.
        words: What it does: `guessing by how often each byte occurs`.
        outputs: Returns its outputs for some rows, given a function that reads these rows, and the outputs of
            the model for them, whose shape they have.
        reads_rows: Whether it reads the rows, of which it then gets a sample.
    """

    name: str
    words: str
    outputs: Callable[[Callable[[], Batch], Array], Array]
    reads_rows: bool = True


class ExplainedOutput(NamedTuple):
    """An output to explain: its position among the model's outputs, and its name."""

    position: int
    name: str


class Task(ABC):
    """The contract of a task, which says what a model is asked.

    The defaults fit a task whose targets are numbers, and whose model gives one value for each of them.
    """

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, Metric]]
    default_metrics: ClassVar[Sequence[str]]  # what is computed if the config names none
    # By which a model is judged against baselines: whether it answers better, and whether it is surer. They
    # need values by row. Default: by `usual_metric`.
    judged_by: ClassVar[Sequence[str]] = ()
    # What it means if a model is `better` or `worse` than a baseline by the second of two such metrics, and
    # not so by the first: sentences for the report.
    judged_in_words: ClassVar[Mapping[str, str]] = {}
    usual_metric: ClassVar[str]  # the metric that compares two models where `loss` is named
    # Losses by the names that frameworks know them by, the default first. A task may name its own loss, as
    # package.module:function, which gets (outputs, batch) and returns the mean over the samples.
    losses: ClassVar[Sequence[str]]
    target: ClassVar[str] = TARGET  # the name of the array in a batch that holds the targets
    sums: ClassVar[Sequence[str]] = ()  # the sums over a row that make up its prediction; empty: none do
    scales_target: ClassVar[bool] = False  # whether a framework may train on standardized targets
    gives_probabilities: ClassVar[bool] = False
    generates_text: ClassVar[bool] = False  # whether a model gives the tokens that follow a text
    # Whether a prediction is a mask, a class for each pixel. `sums` then only stand for the predictions of
    # an evaluation, and rows without targets have predictions, too.
    gives_masks: ClassVar[bool] = False
    gives_amounts: ClassVar[bool] = False  # whether predictions are values in the unit of the target
    # Whether targets and outputs may have any form, as the loss is the user's own, and predictions are what
    # the model returns. `sums` then only stand for the predictions of an evaluation, as with masks.
    is_open: ClassVar[bool] = False
    has_inner_labels: ClassVar[bool] = False  # whether each part of a row, such as a token, has a class
    # Whether several targets are labels, 0 or 1 each, whose names are `DataInfo.classes`; else they are
    # values, whose names are `DataInfo.target_names`.
    targets_are_labels: ClassVar[bool] = False
    samples: ClassVar[str] = "rows"  # what the splits consist of, for the report
    noun: ClassVar[str] = "targets"  # what `DataInfo.outputs` counts, for messages
    hub_tag: ClassVar[str] = (
        ""  # what model hubs call the task of a table's columns; empty: they have no name
    )

    def __init__(self, info: DataInfo) -> None:
        self.info = info

    @property
    def metrics_by_default(self) -> Sequence[str]:
        """Those of the default metrics that these data have."""
        return self.default_metrics

    # -- targets

    wants: ClassVar[str] = "numbers"  # what the targets must be, for messages
    mistaken: ClassVar[str] = ""  # the advice if data were taken for this task by mistake

    @classmethod
    def accepts(cls, targets: Array) -> bool:
        """Return whether raw targets, (rows, ...), are of a dtype and shape that this task can encode."""
        return targets.dtype.kind in "biuf"

    @classmethod
    def check_column(cls, values: Array, where: str) -> None:
        """Check that a column can be the target.

        Args:
            values: (rows,) values without gaps.
            where: The column, for messages.

        Raises:
            DataError: Its values cannot be targets of this task.
        """
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"{where} holds text, but the task is {cls.name}; give numbers, or data.task: classification"
            )

    @classmethod
    def labels(cls, values: Array) -> list[Any] | None:  # noqa: ARG003 - most tasks have none
        """Return the class labels of a column in index order; None if it holds values.

        Splits are stratified by them.
        """
        return None

    @classmethod
    def encode_arrays(
        cls,
        targets: Mapping[SplitName, Array],
        ignored: int | None,  # noqa: ARG003 - only masks have pixels
    ) -> tuple[list[Any] | None, dict[SplitName, Array]]:
        """Encode raw targets of several values a row, (rows, ...) each, as batches hold them.

        Args:
            targets: Those of each split, the training rows first.
            ignored: `data.ignore_index`.

        Returns:
            The labels of their classes in index order, or None if they are values; and the targets.

        Raises:
            DataError: They cannot be learned.
        """
        dtype = np.float32 if cls.targets_are_labels else np.float64
        return None, {name: one.astype(dtype) for name, one in targets.items()}

    @classmethod
    def has_classes(cls) -> bool:
        """Return whether a target is one of the class labels that `labels` returns."""
        return cls.labels(np.zeros(1)) is not None

    @classmethod
    def inner_labels(cls, targets: Array) -> list[Any]:
        """Return the classes of the parts of rows; asked only where `has_inner_labels`.

        Args:
            targets: Raw targets of the training rows, (rows, parts).

        Raises:
            DataError: No part has a class.
        """
        raise NotImplementedError

    @classmethod
    def encode_inner(cls, targets: Array, labels: Sequence[Any], where: str) -> Array:
        """Return the targets of the parts of rows, (rows, parts), as int64 indices of the classes.

        Args:
            targets: Raw targets, (rows, parts).
            labels: What `inner_labels` returned.
            where: The rows, for messages.

        Raises:
            DataError: A target is not one of the classes.
        """
        raise NotImplementedError

    def positive_class(
        self,
        named: Any,
        counts: Callable[[], Array | None],  # noqa: ARG002 - only two classes have one
    ) -> PositiveClass | None:
        """Return the positive one of two classes; None where there are no two classes.

        Args:
            named: `evaluation.positive`, or None.
            counts: Returns the number of training rows of each class, (classes,); None: they are not known.

        Raises:
            InputError: It is named, but is no class, or there are no two classes.
        """
        if named is not None:
            raise InputError(
                f"{positive.KEY}: {named} given, which is for a target of two classes, but the task is "
                f"{self.name}; leave it out"
            )
        return None

    def blank_targets(self, rows: int) -> Array:
        """Return placeholders for the targets of rows of which only the features are known."""
        return np.zeros((rows,) if self.info.outputs == 1 else (rows, self.info.outputs))

    # -- outputs

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a model's raw outputs for one sample."""
        return (self.info.outputs,)

    def predictions(self, outputs: Array) -> Array:
        """Convert a model's raw outputs to predictions, for adapters that have no conversion of their own.

        Args:
            outputs: (rows, outputs) float32, as the loss gets them.
        """
        return outputs

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check the shape of the predictions of all rows.

        Raises:
            ModelError: It does not fit the data.
        """
        expected = (len(targets), self.info.outputs)
        if outputs.shape != expected and not (outputs.size == targets.size == np.prod(expected)):
            raise self._shape_error(outputs, expected, "one value per target")

    def _shape_error(self, outputs: Array, expected: tuple[int, ...], what: str) -> ModelError:
        return ModelError(
            f"the model returned outputs of shape {outputs.shape}; expected {expected}: {what} for each row"
        )

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return predictions and targets as the metrics need them: here both (rows, outputs) float64."""
        shape = (len(targets), self.info.outputs)
        return Scores(
            type(self), outputs.astype(np.float64).reshape(shape), targets.astype(np.float64).reshape(shape)
        )

    def by_target(self, scores: Scores) -> Mapping[str, Scores]:
        """Return the scores of each of several targets alone, by its name; empty if they have no names."""
        return {
            name: Scores(scores.task, scores.outputs[:, [i]], scores.targets[:, [i]], scores.weights)
            for i, name in enumerate(self.info.target_names)
        }

    def loss(self, scores: Scores) -> float | None:  # noqa: ARG002 - the framework's own, in most tasks
        """Return the loss of a whole split; None if it is the mean of what the framework reports by row."""
        return None

    @classmethod
    def answers(cls, scores: Scores) -> Answers:
        """Return targets and predictions as a user's own metric gets them; no task with `sums` is asked.

        Here both are values in the data's original units, float64: (rows,) of one target, else (rows,
        outputs).
        """
        targets, outputs = scores.targets, scores.outputs
        return Answers(targets[:, 0], outputs[:, 0]) if targets.shape[1] == 1 else Answers(targets, outputs)

    # -- baselines

    def as_values(self, targets: Array) -> Floats | None:
        """Return targets as (rows, outputs) float64 whose mean is the best constant prediction.

        None if the task has no constant prediction. Here they are the targets themselves.
        """
        return targets.astype(np.float64).reshape(len(targets), -1)

    @property
    def has_parts(self) -> bool:
        """True if rows have parts with a class each, so that `guesses` returns the baselines."""
        return self.has_inner_labels

    def guesses(self, batch: Batch) -> Sequence[Guess]:  # noqa: ARG002 - most rows have no parts
        """Return the baselines of a task whose rows have parts, fitted to some training rows.

        The first one looks at nothing and is called `constant`.
        """
        return ()

    def constant_in_words(self, constant: Floats) -> str:
        """Return what the best constant prediction, (outputs,), answers: `always predicting the mean`."""
        one = f", {number(float(constant[0]), zeros=False)}" if len(constant) == 1 else ""
        return f"always predicting the mean{one}"

    def asked(self) -> str:
        """Return what a model is asked, for people: `predict the value of price`."""
        names = ", ".join(map(str, self.info.target_names)) or self.info.target
        return f"predict the value of {names}"

    # -- tables

    @property
    def _labels(self) -> list[Any]:
        """The labels of the classes in index order; the indices where they have none."""
        return list(self.info.classes if self.info.classes is not None else range(self.info.outputs))

    def columns(self, outputs: Array) -> Columns:
        """Return the columns of a table of predictions, (rows,) each.

        A task that predicts one thing for each row calls its column `prediction`.
        """
        if outputs.ndim == 1 or outputs.shape[1] == 1:
            return {"prediction": outputs.reshape(len(outputs))}
        return {f"prediction_{name}": outputs[:, i] for i, name in enumerate(self._target_names)}

    def columns_at(self, outputs: Array, threshold: float) -> Columns:  # noqa: ARG002 - no default has one
        """Return the same columns, for predictions that are decided by a probability of at least `threshold`.

        Raises:
            InputError: No threshold decides the predictions of this task.
        """
        raise InputError(
            f"a threshold decides between two classes, or on labels; the task is {self.name}: leave it out"
        )

    def target_columns(self, targets: Array) -> Columns:
        """Return the true values as columns, whose names differ from those of `columns`."""
        if targets.ndim == 1 or targets.shape[1] == 1:
            return {"target": targets.reshape(len(targets))}
        return {f"target_{name}": targets[:, i] for i, name in enumerate(self._target_names)}

    @abstractmethod
    def tables(self, scores: Scores, ids: Ids) -> Json:
        """Return the tables and figures of the report for a split; see `evaluation.tables`.

        Args:
            scores: The scores of at least one row.
            ids: (rows,) int64 positions in the split.
        """

    # -- explanations

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:  # noqa: ARG002
        """Return the outputs to explain, at most `limit`; `targets` are those of a sample of rows."""
        names = self._names([self.info.target])
        return [ExplainedOutput(i, name) for i, name in enumerate(names)][:limit]

    def _names(self, single: Iterable[str]) -> list[str]:
        if self.info.outputs == 1:
            return list(single)
        return list(self.info.target_names) or [f"{self.info.target} {i}" for i in range(self.info.outputs)]

    @property
    def _target_names(self) -> Sequence[Any]:
        """The names of several targets, or their numbers."""
        return self.info.target_names or range(self.info.outputs)

    def links(self, *, binary: bool) -> Mapping[str, Callable[[Floats], Floats]]:  # noqa: ARG002
        """Return the usual inverse link functions, from margins to predictions, by the unit of the margins.

        Args:
            binary: Whether one margin stands for two classes.

        Returns:
            Functions of (rows, outputs) float64 margins.
        """
        return {"value": lambda margins: margins, "log of the value": np.exp}
