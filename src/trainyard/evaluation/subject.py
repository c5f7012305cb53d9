"""What is explained: a model, some rows, and the columns that their features were made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.datasets.base import Preparation, Split
from trainyard.datasets.rows.arrays import Arrays
from trainyard.datasets.rows.preparation import CategoryColumn, TabularPreparation
from trainyard.evaluation.metrics import evaluate
from trainyard.evaluation.tables import label
from trainyard.records.journal import finite
from trainyard.types import Array, DataInfo, Predictions

Floats = NDArray[np.float64]
Json = dict[str, Any]

MAX_OUTPUTS = 20  # classes or values that are explained; of more classes those with the most rows


@dataclass(frozen=True)
class Source:
    """A column of the data.

    `columns` are the positions of the features that were made of it, `categories` the names behind its codes 0 .. n-1, or
    behind its columns (`onehot`). The value of a number is feature * scale + mean.
    """

    name: str
    columns: tuple[int, ...]
    categories: tuple[str, ...] = ()
    onehot: bool = False
    mean: float = 0.0
    scale: float = 1.0

    def values(self, features: Array) -> Floats:
        """(rows,): numbers in the column's own unit, or codes; NaN where there is none."""
        own = features[:, self.columns].astype(np.float64)
        if self.onehot:
            return np.where(own.any(axis=1), own.argmax(axis=1), np.nan)
        return (
            own[:, 0] * self.scale + self.mean
            if not self.categories
            else np.where(own[:, 0] < 0, np.nan, own[:, 0])
        )


def sources(info: DataInfo, preparation: Preparation | None) -> list[Source]:
    """The columns of the data; each feature is one of its own where nothing is known of how it was made."""
    if isinstance(preparation, TabularPreparation) and len(preparation.feature_names) == info.input_shape[0]:
        return _prepared(preparation)
    count = info.input_shape[0]
    names = info.feature_names if len(info.feature_names) == count else [f"feature {i}" for i in range(count)]
    codes = info.categories or [0] * count
    return [Source(str(names[i]), (i,), tuple(str(code) for code in range(codes[i]))) for i in range(count)]


def _prepared(preparation: TabularPreparation) -> list[Source]:
    found, start = [], 0
    for column in preparation.columns:
        places = tuple(range(start, start := start + len(column.outputs)))
        if isinstance(column, CategoryColumn):
            found.append(Source(column.name, places, tuple(column.categories), column.onehot))
        else:
            found.append(Source(column.name, places, mean=column.mean, scale=column.scale))
    return found


class Output(NamedTuple):
    """An output that is explained: its position among the model's, and what it is called."""

    place: int
    name: str


@dataclass(frozen=True)
class Subject:
    """A model and a sample of rows: `features` (rows, n) in random order, `targets` as in `Batch`."""

    predict: Callable[[Split], Iterable[Predictions]]
    info: DataInfo
    sources: Sequence[Source]
    features: Array
    targets: Array
    seed: int

    @cached_property
    def shown(self) -> list[Output]:
        """The outputs to explain: of two classes the second, as the first is its complement."""
        info = self.info
        if info.task == "regression":
            names = (
                [info.target] if info.outputs == 1 else [f"{info.target} {i}" for i in range(info.outputs)]
            )
            return [Output(i, name) for i, name in enumerate(names)][:MAX_OUTPUTS]
        classes = [Output(i, str(label(name))) for i, name in enumerate(info.classes or range(info.outputs))]
        return classes[1:] if len(classes) == 2 else [classes[i] for i in self.frequent(MAX_OUTPUTS)]

    def frequent(self, count: int) -> list[int]:
        """Of the classes (or values) the `count` with the most rows in the sample, in their own order."""
        if self.info.task == "regression":
            return list(range(self.info.outputs))[:count]
        rows = np.bincount(self.targets, minlength=self.info.outputs)
        return sorted(np.argsort(-rows, kind="stable")[:count].tolist())

    def all_outputs(self, features: Array) -> Floats:
        """(rows, outputs): what the model says to rows like those of the sample."""
        targets = np.zeros(
            (len(features), *self.targets.shape[1:]), self.targets.dtype
        )  # asked for, but of no consequence
        parts = [np.asarray(part.outputs, np.float64) for part in self.predict(Arrays(features, targets))]
        return np.concatenate(parts).reshape(len(features), self.info.outputs)

    def outputs(self, features: Array) -> Floats:
        """(rows, shown): the outputs that are explained."""
        return self.all_outputs(features)[:, [output.place for output in self.shown]]

    def score(self, features: Array, metric: str) -> float:
        """A metric, or `loss`, of the sample's targets and the outputs for `features`, (rows, n)."""
        # What the model measures itself is left aside: it may take longer than the predictions.
        parts = (part._replace(measures={}) for part in self.predict(Arrays(features, self.targets)))
        found = evaluate(parts, [metric], self.info, "test")
        return found.metrics[f"test_{metric}"]


def brief(value: float) -> float | str:
    """A number as it is kept: six digits are enough for a picture, and JSON has none that is not finite."""
    return finite(float(f"{value:.6g}"))


def briefs(values: Array) -> list[float | str]:
    """The same for each of (n,)."""
    return [brief(float(value)) for value in values]
