"""Data frames as matrices of numbers, so that models that take frames can be explained as all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.evaluation.explained import Column, Floats
from trainwright.require import require
from trainwright.types import FEATURES, Array, Predictions


class FrameMatrix:
    """A sample of rows of a data frame as numbers: numeric columns as they are, others as codes.

    Args:
        frame: The rows.
    """

    def __init__(self, frame: Any) -> None:
        self._empty = frame.iloc[:0]
        self._levels: dict[int, Any] = {}
        columns = [self._encode(i, frame.iloc[:, i]) for i in range(frame.shape[1])]
        self.matrix: Floats = np.stack(columns, axis=1) if columns else np.empty((len(frame), 0))

    @property
    def columns(self) -> list[Column]:
        """The columns, for explanations."""
        return [
            Column(str(name), (i,), tuple(str(level) for level in self._levels.get(i, ())))
            for i, name in enumerate(self._empty.columns)
        ]

    def _encode(self, position: int, values: Any) -> Floats:
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
            return np.asarray(values.to_numpy(np.float64))
        pandas: Any = require("pandas", "tabular")
        codes, self._levels[position] = pandas.factorize(values)  # a missing value is -1
        return np.asarray(codes, np.float64)

    def frame(self, matrix: Array) -> Any:
        """Return the rows of a matrix, whose values occur in the sample, as a data frame of its types."""
        pandas: Any = require("pandas", "tabular")
        return pandas.concat([self._decode(i, matrix[:, i]) for i in range(matrix.shape[1])], axis=1)

    def _decode(self, position: int, values: Array) -> Any:
        pandas: Any = require("pandas", "tabular")
        name, dtype = self._empty.columns[position], self._empty.dtypes.iloc[position]
        if position not in self._levels:
            return pandas.Series(values.astype(dtype), name=name)
        codes = np.nan_to_num(values, nan=-1).astype(np.int64)
        levels = pandas.Series(self._levels[position], dtype=dtype)
        return levels.reindex(codes).reset_index(drop=True).rename(name)

    def predicting(
        self, predict: Callable[[Split], Iterable[Predictions]]
    ) -> Callable[[Split], Iterable[Predictions]]:
        """Return a prediction function for splits of such matrices, from one for splits of frames."""

        def decoded(split: Split) -> Iterable[Predictions]:
            batch = dict(split.take(np.arange(len(split))))
            return predict(Arrays({**batch, FEATURES: self.frame(batch[FEATURES])}))

        return decoded
