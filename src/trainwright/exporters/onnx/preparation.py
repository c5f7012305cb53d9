"""The preparation of a table's rows as nodes of ONNX: each column is an input, and the features come out.

All arithmetic is in float64, as in `datasets.tables.encoders`, so that features have the same bits. A column
of numbers or booleans is an input of float64, where NaN is a missing value. Categories and texts are strings,
and the empty one is a missing value. Times are int64: microseconds since 1970-01-01 (of the local time that
the rows give), and the least int64, NumPy's NaT, is a missing value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.encoders.categories import Categories, CategoryColumn
from trainwright.datasets.tables.encoders.many_categories import FrequencyColumn, TargetMeanColumn
from trainwright.datasets.tables.encoders.numbers import NumberColumn
from trainwright.datasets.tables.encoders.times import DAY_US, DAYS, FIRST, TimeColumn, waves_of
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import InputError
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.types import Array

NAT = np.iinfo(np.int64).min
_DTYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
INPUTS = {"number": TensorProto.DOUBLE, "text": TensorProto.STRING, "time": TensorProto.INT64}


def add_preparation(graph: Graph, preparation: TabularPreparation) -> Value:
    """Add an input for each column, and return the features, (rows, features).

    Raises:
        InputError: A column cannot be prepared in ONNX.
    """
    blocks = []
    for column in preparation.columns:
        value = graph.input(column.name, INPUTS[column.reads], [1])
        block = _block(column)(graph, value, column)  # (rows, outputs) float64
        blocks.append(graph.named(block, f"{graph.prefix}column/{column.name}"))
    features = blocks[0] if len(blocks) == 1 else graph.add("Concat", *blocks, axis=1)
    return graph.cast(features, _DTYPES[preparation.dtype])


def _block(column: Encoder) -> Callable[[Graph, Value, Any], Value]:
    for kind, block in _BLOCKS.items():
        if isinstance(column, kind):
            return block
    raise InputError(
        f"column {column.name!r} is free text, whose words ONNX cannot split as training did: export with "
        "--format native (boosters), pt2 (PyTorch) or mlflow, or leave the column out (data.exclude)"
    )


def _number(graph: Graph, value: Value, column: NumberColumn) -> Value:
    """Return (value - mean) / scale, (rows, 1)."""
    if column.fill is not None:
        absent = graph.add("IsNaN", value)
        value = graph.add("Where", absent, graph.constant(column.fill, np.float64), value)
    return _standardized(graph, value, [column.mean], [column.scale])


def _standardized(graph: Graph, value: Value, means: Sequence[float], scales: Sequence[float]) -> Value:
    """Return (value - mean) / scale of each column, (rows, columns) float64."""
    if any(means):
        value = graph.add("Sub", value, graph.constant(means, np.float64))
    if any(scale != 1.0 for scale in scales):
        value = graph.add("Div", value, graph.constant(scales, np.float64))
    return value


def _positions(graph: Graph, value: Value, column: Categories) -> Value:
    """Return the index of the category, (rows, 1) int64, counted from 2; 0 is a missing, 1 an unseen one."""
    numbers = {category: i + 2 for i, category in enumerate(column.categories)}
    # An empty text stands for a missing value, unless it is a category.
    numbers.setdefault("", numbers.get(column.fill or "", 1) if column.fill is not None else 0)
    keys, values = list(numbers), list(numbers.values())
    return graph.ml("LabelEncoder", value, keys_strings=keys, values_int64s=values, default_int64=1)


def _category(graph: Graph, value: Value, column: CategoryColumn) -> Value:
    """Return one feature for each category, or their codes."""
    positions = _positions(graph, value, column)
    count = len(column.categories)
    if column.onehot:
        own = graph.constant(np.arange(2, count + 2)[None], np.int64)  # (1, categories)
        return graph.cast(graph.add("Equal", positions, own), TensorProto.DOUBLE)
    none = np.nan if column.native else -1.0
    return _looked_up(graph, positions, np.array([none, none, *range(count)])[:, None])


def _looked_up(graph: Graph, positions: Value, table: Array) -> Value:
    """Return the rows of a table, (categories + 2, columns) float64, at positions (rows, 1)."""
    flat = graph.add("Squeeze", positions, graph.constant([1], np.int64))  # (rows,)
    return graph.add("Gather", graph.constant(table, np.float64), flat, axis=0)


def _frequency(graph: Graph, value: Value, column: FrequencyColumn) -> Value:
    """Return the share of the training rows that have the category."""
    shares = np.array([np.nan, 0.0, *column.shares])[:, None]
    found = _looked_up(graph, _positions(graph, value, column), shares)
    return _standardized(graph, found, [column.mean], [column.scale])


def _target_mean(graph: Graph, value: Value, column: TargetMeanColumn) -> Value:
    """Return the mean targets of the category."""
    means = np.array([[np.nan] * len(column.priors), column.priors, *column.means], np.float64)
    found = _looked_up(graph, _positions(graph, value, column), means)
    return _standardized(graph, found, column.centers, column.scales)


def _time(graph: Graph, value: Value, column: TimeColumn) -> Value:
    """Return days since 1970 and the parts of the times, (rows, parts)."""
    nat = graph.constant(NAT, np.int64)
    if column.fill is not None:
        fill = np.datetime64(column.fill, "us").astype(np.int64)
        value = graph.add("Where", graph.add("Equal", value, nat), graph.constant(fill, np.int64), value)
    absent = graph.add("Equal", value, nat)
    moment = graph.add("Where", absent, graph.constant(0, np.int64), value)
    clock = _Clock(graph, moment)
    parts = [clock.part(part) for part in column.parts]
    values = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    encoded = _standardized(graph, values, column.means, column.scales)
    return graph.add("Where", absent, graph.constant(np.nan, np.float64), encoded)


class _Clock:
    """The parts of times, (rows, 1) int64 microseconds, in the Gregorian calendar.

    Months and days: Hinnant, *chrono-compatible low-level date algorithms*, `civil_from_days`.
    """

    def __init__(self, graph: Graph, moment: Value) -> None:
        self._graph = graph
        self._moment = moment
        self._kept: dict[str, Value] = {}

    def part(self, name: str) -> Value:
        """Return a part of `TimeColumn.parts`, (rows, 1) float64."""
        graph = self._graph
        base, _, wave = name.partition("_")
        if wave:
            waves = waves_of(base, wave)[:, None]
            return _looked_up(graph, self._less(self._whole(base), FIRST.get(base, 0)), waves)
        if name == DAYS:
            moment = graph.cast(self._moment, TensorProto.DOUBLE)
            return graph.add("Div", moment, graph.constant(float(DAY_US), np.float64))
        return graph.cast(self._whole(name), TensorProto.DOUBLE)

    def _whole(self, name: str) -> Value:
        """Return a part as a whole number, (rows, 1) int64; it is computed once."""
        if name not in self._kept:
            self._kept[name] = getattr(self, f"_{name}")()
        return self._kept[name]

    def _epoch_day(self) -> Value:
        return self._floor(self._moment, DAY_US)

    def _weekday(self) -> Value:
        return self._modulo(self._plus(self._whole("epoch_day"), 3), 7)  # 1970-01-01 was a Thursday

    def _hour(self) -> Value:
        return self._modulo(self._floor(self._moment, 3_600_000_000), 24)

    def _minute(self) -> Value:
        return self._modulo(self._floor(self._moment, 60_000_000), 60)

    def _era_day(self) -> Value:
        """Return days since 0000-03-01, where years begin in March."""
        return self._plus(self._whole("epoch_day"), 719_468)

    def _day_of_era(self) -> Value:
        return self._modulo(self._whole("era_day"), 146_097)

    def _year_of_era(self) -> Value:
        day = self._whole("day_of_era")
        leap = [self._floor(day, 1460), self._floor(day, 36_524), self._floor(day, 146_096)]
        days = self._minus(self._sum(self._minus(day, leap[0]), leap[1]), leap[2])
        return self._floor(days, 365)

    def _day_of_year(self) -> Value:
        year = self._whole("year_of_era")
        before = self._minus(self._sum(self._times(year, 365), self._floor(year, 4)), self._floor(year, 100))
        return self._minus(self._whole("day_of_era"), before)

    def _march_month(self) -> Value:
        return self._floor(self._plus(self._times(self._whole("day_of_year"), 5), 2), 153)

    def _day(self) -> Value:
        before = self._floor(self._plus(self._times(self._whole("march_month"), 153), 2), 5)
        return self._plus(self._minus(self._whole("day_of_year"), before), 1)

    def _month(self) -> Value:
        return self._plus(self._modulo(self._plus(self._whole("march_month"), 2), 12), 1)

    def _year(self) -> Value:
        eras = self._times(self._floor(self._whole("era_day"), 146_097), 400)
        after = self._floor(self._whole("march_month"), 10)  # 1 in January and February
        return self._sum(self._sum(self._whole("year_of_era"), eras), after)

    def _number(self, value: int) -> Value:
        return self._graph.constant(value, np.int64)

    def _plus(self, value: Value, number: int) -> Value:
        return self._graph.add("Add", value, self._number(number))

    def _less(self, value: Value, number: int) -> Value:
        return self._plus(value, -number) if number else value

    def _times(self, value: Value, number: int) -> Value:
        return self._graph.add("Mul", value, self._number(number))

    def _sum(self, one: Value, other: Value) -> Value:
        return self._graph.add("Add", one, other)

    def _minus(self, one: Value, other: Value) -> Value:
        return self._graph.add("Sub", one, other)

    def _modulo(self, value: Value, number: int) -> Value:
        return self._graph.add("Mod", value, self._number(number))  # has the sign of the divisor

    def _floor(self, value: Value, number: int) -> Value:
        """Return value // number, rounded down, where ONNX's Div rounds toward 0."""
        whole = self._minus(value, self._modulo(value, number))
        return self._graph.add("Div", whole, self._number(number))


_BLOCKS: Mapping[type[Encoder], Callable[[Graph, Value, Any], Value]] = {
    NumberColumn: _number,
    CategoryColumn: _category,
    FrequencyColumn: _frequency,
    TargetMeanColumn: _target_mean,
    TimeColumn: _time,
}
