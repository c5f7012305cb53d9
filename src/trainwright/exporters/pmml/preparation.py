"""The preparation of a table's rows as fields of PMML: raw columns come in, and the features are derived.

All arithmetic is in double, as in `datasets.tables.encoders`; the features themselves are float where the
model takes float32. A column of times is a number: microseconds since 1970-01-01.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.encoders.categories import Categories, CategoryColumn
from trainwright.datasets.tables.encoders.many_categories import FrequencyColumn, TargetMeanColumn
from trainwright.datasets.tables.encoders.numbers import NumberColumn
from trainwright.datasets.tables.encoders.times import DAY_US, DAYS, FIRST, TimeColumn, waves_of
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import InputError
from trainwright.exporters.base import Input
from trainwright.exporters.pmml.xml import (
    NEAREST,
    Element,
    apply,
    constant,
    derived,
    element,
    field,
    mapped,
)

TYPES = {"float32": "float", "float64": "double"}


class Features(NamedTuple):
    """The raw fields, and the features that are derived from them.

    Attributes:
        data: The DataFields.
        mining: The MiningFields.
        derived: The DerivedFields, in the order in which they depend on each other.
        names: The fields of the features, in the model's order.
        dtype: `float` or `double`: that of the features.
    """

    data: Sequence[Element]
    mining: Sequence[Element]
    derived: Sequence[Element]
    names: Sequence[str]
    dtype: str

    def as_float(self) -> Features:
        """Return the features in float, as libraries take them that compare in float32."""
        if self.dtype == "float":
            return self
        names = [f"float({name})" for name in self.names]
        single = [derived(new, field(old), "float") for new, old in zip(names, self.names, strict=True)]
        return self._replace(derived=[*self.derived, *single], names=names, dtype="float")


def features_of_columns(preparation: TabularPreparation) -> Features:
    """Return the features of raw columns.

    Raises:
        InputError: A column cannot be prepared in PMML.
    """
    dtype = TYPES[preparation.dtype]
    data, mining, names = [], [], []
    fields: list[Element] = []
    for column in preparation.columns:
        data.append(_data_field(column))
        mining.append(_mining_field(column))
        before, features = _block(column)(column)
        outputs = [f"feature({name})" for name in column.outputs]
        fields += before
        fields += [derived(name, one, dtype) for name, one in zip(outputs, features, strict=True)]
        names += outputs
    return Features(data, mining, fields, names, dtype)


def features_of_arrays(one: Input) -> Features:
    """Return the elements of an array of features, (rows, features), as raw fields.

    Raises:
        InputError: It has more axes, or another dtype.
    """
    if one.dtype not in TYPES or len(one.shape) != 1:
        raise InputError(f"PMML takes rows of numbers, but {one.name} has {one.shape} {one.dtype}; {NEAREST}")
    dtype, width = TYPES[one.dtype], one.shape[0]
    names = [one.name] if width == 1 else [f"{one.name}[{i}]" for i in range(width)]
    data = [element("DataField", name=name, optype="continuous", dataType=dtype) for name in names]
    return Features(data, [element("MiningField", name=name) for name in names], [], names, dtype)


def _data_field(column: Encoder) -> Element:
    if not isinstance(column, Categories):
        label = "microseconds since 1970-01-01" if column.reads == "time" else None
        return element(
            "DataField", name=column.name, displayName=label, optype="continuous", dataType="double"
        )
    values = [element("Value", value=one) for one in column.categories]
    return element("DataField", *values, name=column.name, optype="categorical", dataType="string")


def _mining_field(column: Encoder) -> Element:
    """Return a raw column as an input of the model, whose missing values are replaced."""
    fill = getattr(column, "fill", None)
    if isinstance(column, TimeColumn) and fill is not None:
        fill = float(np.datetime64(fill, "us").astype(np.int64))
    # A value that no training row has is no error.
    return element(
        "MiningField", name=column.name, missingValueReplacement=fill, invalidValueTreatment="asIs"
    )


_Block = tuple[Sequence[Element], Sequence[Element]]  # fields to derive first; the features


def _block(column: Encoder) -> Callable[[Any], _Block]:
    for kind, block in _BLOCKS.items():
        if isinstance(column, kind):
            return block
    raise InputError(
        f"column {column.name!r} is free text, whose words PMML cannot split as training did: export with "
        "--format mlflow, or leave the column out of the model (data.exclude)"
    )


def _standardized(value: Element, mean: float, scale: float) -> Element:
    """Return (value - mean) / scale."""
    if mean:
        value = apply("-", value, constant(float(mean)))
    return value if scale == 1.0 else apply("/", value, constant(float(scale)))


def _number(column: NumberColumn) -> _Block:
    return [], [_standardized(field(column.name), column.mean, column.scale)]


def _category(column: CategoryColumn) -> _Block:
    """Return one feature for each category, or their codes."""
    if not column.onehot:
        codes = [(category, float(i)) for i, category in enumerate(column.categories)]
        none = {} if column.native else {"defaultValue": -1.0, "mapMissingTo": -1.0}
        return [], [_looked_up(column, codes, **none)]
    return [], [
        element(
            "NormDiscrete", field=column.name, value=one, mapMissingTo=float(_stands_for_missing(column, one))
        )
        for one in column.categories
    ]


def _stands_for_missing(column: Categories, category: str) -> bool:
    """Return whether a missing value is taken for a category: for the empty one, if there is one."""
    return category == "" and column.fill is None


def _looked_up(column: Categories, rows: Sequence[tuple[str, float]], **attributes: Any) -> Element:
    """Return the number of a category."""
    for category, number in rows:
        if _stands_for_missing(column, category):
            attributes["mapMissingTo"] = float(number)
    return mapped(column.name, rows, **attributes)


def _frequency(column: FrequencyColumn) -> _Block:
    """Return the share of the training rows that have the category."""
    rows = list(zip(column.categories, column.shares, strict=True))
    return [], [_standardized(_looked_up(column, rows, defaultValue=0.0), column.mean, column.scale)]


def _target_mean(column: TargetMeanColumn) -> _Block:
    """Return the mean targets of the category."""
    means = np.asarray(column.means, np.float64).reshape(len(column.categories), -1)
    features = []
    for i, prior in enumerate(column.priors):
        rows = list(zip(column.categories, means[:, i].tolist(), strict=True))
        found = _looked_up(column, rows, defaultValue=float(prior))
        features.append(_standardized(found, column.centers[i], column.scales[i]))
    return [], features


def _time(column: TimeColumn) -> _Block:
    """Return days since 1970 and the parts of the times."""
    clock = _Clock(column.name)
    features = []
    for part, mean, scale in zip(column.parts, column.means, column.scales, strict=True):
        value = _standardized(clock.part(part), mean, scale)
        # Without another argument, a condition that is not met gives a missing value.
        features.append(apply("if", apply("isNotMissing", field(column.name)), value))
    return clock.fields, features


class _Clock:
    """The parts of times in the Gregorian calendar, from microseconds that a double holds exactly.

    Months and days: Hinnant, *chrono-compatible low-level date algorithms*, `civil_from_days`. Quotients of
    whole numbers below 2**53 by those used here never round up to a whole number. A missing time is taken for
    0, as functions may refuse missing values.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._kept: dict[str, Element] = {}

    def _moment(self) -> Element:
        return apply("if", apply("isMissing", field(self._column)), constant(0.0), field(self._column))

    @property
    def fields(self) -> Sequence[Element]:
        """The fields that the parts stand on, each after those that it needs."""
        return list(self._kept.values())

    def part(self, name: str) -> Element:
        """Return a part of `TimeColumn.parts`."""
        base, _, wave = name.partition("_")
        if wave:
            first = FIRST.get(base, 0)
            self._whole(base)
            return mapped(
                self._code(base), [(i + first, number) for i, number in enumerate(waves_of(base, wave))]
            )
        if name == DAYS:
            return apply("/", self._whole("moment"), constant(float(DAY_US)))
        return self._whole(name)

    def _code(self, name: str) -> str:
        """Return the field of a part as an integer, which tables know it by."""
        code = f"integer({self._column}.{name})"
        if code not in self._kept:
            self._kept[code] = derived(code, self._whole(name), "integer")
        return code

    def _whole(self, name: str) -> Element:
        """Return a part as a whole number; its field is derived once."""
        if name not in self._kept:
            made = getattr(self, f"_{name}")()  # which derives what it needs first
            self._kept[name] = derived(f"time({self._column}.{name})", made)
        return field(f"time({self._column}.{name})")

    def _epoch_day(self) -> Element:
        return _floor(self._whole("moment"), DAY_US)

    def _second_of_day(self) -> Element:
        day = _times(self._whole("epoch_day"), DAY_US)
        return _floor(apply("-", self._whole("moment"), day), 1_000_000)

    def _weekday(self) -> Element:
        return _modulo(lambda: _plus(self._whole("epoch_day"), 3), 7)  # 1970-01-01 was a Thursday

    def _hour(self) -> Element:
        return _floor(self._whole("second_of_day"), 3600)

    def _minute(self) -> Element:
        return _modulo(lambda: _floor(self._whole("second_of_day"), 60), 60)

    def _era_day(self) -> Element:
        """Return days since 0000-03-01, where years begin in March."""
        return _plus(self._whole("epoch_day"), 719_468)

    def _day_of_era(self) -> Element:
        return _modulo(lambda: self._whole("era_day"), 146_097)

    def _year_of_era(self) -> Element:
        day = self._whole
        days = apply("-", day("day_of_era"), _floor(day("day_of_era"), 1460))
        days = apply("+", days, _floor(day("day_of_era"), 36_524))
        return _floor(apply("-", days, _floor(day("day_of_era"), 146_096)), 365)

    def _day_of_year(self) -> Element:
        year = self._whole
        before = apply("+", _times(year("year_of_era"), 365), _floor(year("year_of_era"), 4))
        before = apply("-", before, _floor(year("year_of_era"), 100))
        return apply("-", self._whole("day_of_era"), before)

    def _march_month(self) -> Element:
        return _floor(_plus(_times(self._whole("day_of_year"), 5), 2), 153)

    def _day(self) -> Element:
        before = _floor(_plus(_times(self._whole("march_month"), 153), 2), 5)
        return _plus(apply("-", self._whole("day_of_year"), before), 1)

    def _month(self) -> Element:
        return _plus(_modulo(lambda: _plus(self._whole("march_month"), 2), 12), 1)

    def _year(self) -> Element:
        eras = _times(_floor(self._whole("era_day"), 146_097), 400)
        after = _floor(self._whole("march_month"), 10)  # 1 in January and February
        return apply("+", apply("+", self._whole("year_of_era"), eras), after)


def _plus(value: Element, number: int) -> Element:
    return apply("+", value, constant(float(number)))


def _times(value: Element, number: int) -> Element:
    return apply("*", value, constant(float(number)))


def _floor(value: Element, number: int) -> Element:
    return apply("floor", apply("/", value, constant(float(number))))


def _modulo(value: Callable[[], Element], number: int) -> Element:
    """Return the remainder, at least 0; `value` makes its expression, which is used twice."""
    return apply("-", value(), _times(_floor(value(), number), number))


_BLOCKS: Mapping[type[Encoder], Callable[[Any], _Block]] = {
    NumberColumn: _number,
    CategoryColumn: _category,
    FrequencyColumn: _frequency,
    TargetMeanColumn: _target_mean,
    TimeColumn: _time,
}
