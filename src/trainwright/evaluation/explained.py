"""A model to explain, with a sample of rows and the data columns that their features were made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.datasets.base import Preparation, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.evaluation.metrics import evaluate_predictions, without_prefix
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.tasks.base import ExplainedOutput, Task
from trainwright.types import FEATURES, TARGET, Array, DataInfo, Predictions

Floats = NDArray[np.float64]
Json = dict[str, Any]

MAX_OUTPUTS = 20  # explained classes or values; if there are more classes, those with the most rows


@dataclass(frozen=True)
class Column:
    """A column of the data and the features that were made from it.

    `features` are the positions of its features. `categories` are the names of its category codes 0 .. n-1,
    or of its one-hot features if `onehot`. The value of a numeric column is its first feature * scale + mean,
    and NaN where no number stands for it.
    """

    name: str
    features: tuple[int, ...]
    categories: tuple[str, ...] = ()
    onehot: bool = False
    mean: float = 0.0
    scale: float = 1.0

    def values(self, features: Array) -> Floats:
        """Return the column's values.

        Args:
            features: (rows, n) features of all columns.

        Returns:
            (rows,) float64 numbers in the column's original units, or category codes; NaN if missing.
        """
        own = features[:, self.features].astype(np.float64)  # (rows, features of this column)
        if self.onehot:
            return np.where(own.any(axis=1), own.argmax(axis=1), np.nan)
        return (
            own[:, 0] * self.scale + self.mean
            if not self.categories
            else np.where(own[:, 0] < 0, np.nan, own[:, 0])
        )


def data_columns(info: DataInfo, preparation: Preparation | None) -> list[Column]:
    """Return the columns of the data; without a tabular preparation, each feature counts as a column."""
    if isinstance(preparation, TabularPreparation) and len(preparation.feature_names) == info.input_shape[0]:
        return _prepared(preparation)
    count = info.input_shape[0]
    names = info.feature_names if len(info.feature_names) == count else [f"feature {i}" for i in range(count)]
    codes = info.categories or [0] * count
    return [Column(str(names[i]), (i,), tuple(str(code) for code in range(codes[i]))) for i in range(count)]


def _prepared(preparation: TabularPreparation) -> list[Column]:
    columns, start = [], 0
    for one in preparation.columns:
        features = tuple(range(start, start := start + len(one.outputs)))
        categories, (mean, scale) = tuple(one.shown_categories), one.shown_scaling
        columns.append(Column(one.name, features, categories, one.is_onehot, mean, scale))
    return columns


@dataclass(frozen=True)
class ExplainedModel:
    """A model and a sample of rows: `features` (rows, n) in random order, `targets` as in `Batch`.

    `predict` is called with splits whose rows have the features and targets of this data set.
    """

    predict: Callable[[Split], Iterable[Predictions]]
    info: DataInfo
    columns: Sequence[Column]
    features: Array
    targets: Array
    seed: int

    @cached_property
    def task(self) -> Task:
        """The task of the model."""
        return task_for(self.info)

    @cached_property
    def shown_outputs(self) -> list[ExplainedOutput]:
        """The outputs to explain; of two classes only the second, since the first is its complement."""
        return self.task.explained_outputs(self.targets, MAX_OUTPUTS)

    def most_frequent(self, count: int) -> set[int]:
        """Return the positions of the outputs to show where there is room for `count`."""
        return {output.position for output in self.task.explained_outputs(self.targets, count)}

    def spread(self, outputs: Floats) -> float:
        """Return the unit of gaps in outputs: 1 for probabilities, else the standard deviation."""
        return 1.0 if self.task.gives_probabilities else float(outputs.std()) or 1.0

    def all_outputs(self, features: Array) -> Floats:
        """Return (rows, outputs) float64: all outputs of the model for `features` (rows, n)."""
        # A split must have targets; they do not affect the outputs.
        targets = np.zeros((len(features), *self.targets.shape[1:]), self.targets.dtype)
        parts = [
            np.asarray(part.outputs, np.float64)
            for part in self.predict(Arrays({FEATURES: features, TARGET: targets}))
        ]
        return np.concatenate(parts).reshape(len(features), self.info.outputs)

    def outputs(self, features: Array) -> Floats:
        """Return (rows, shown outputs) float64: the outputs to explain, for `features` (rows, n)."""
        return self.all_outputs(features)[:, [output.position for output in self.shown_outputs]]

    def score(self, features: Array, metric: str) -> float:
        """Return a metric (or `loss`) of the outputs for `features` (rows, n) and the sample's targets."""
        # Drop the model's own measures: computing them may take longer than the predictions.
        parts = (
            part._replace(measures={})
            for part in self.predict(Arrays({FEATURES: features, TARGET: self.targets}))
        )
        result = evaluate_predictions(parts, [metric], self.info, "test")
        return result.metrics[f"test_{without_prefix(metric)}"]


def rounded(value: float) -> float | str:
    """Round a number to six significant digits for JSON; numbers that are not finite become strings."""
    return finite(float(f"{value:.6g}"))


def rounded_all(values: Array) -> list[float | str]:
    """Apply `rounded` to each value of (n,)."""
    return [rounded(float(value)) for value in values]
