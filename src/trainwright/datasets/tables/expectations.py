"""The comparison of rows with `data.expect`, as they were read, before they are split and prepared.

The rows of all sources count together. A cell that `data.missing_values` names is missing, and text that
holds numbers or times is read as training reads it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from trainwright.config.expectations import Bound, ColumnExpectation, ExpectConfig
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import Examine, Outcome
from trainwright.datasets.tables.kinds import missing_values_of, reading_as
from trainwright.datasets.tables.list_cells import holds_lists
from trainwright.datasets.tables.table import Table, as_texts, kind_of, missing, nearest
from trainwright.datasets.tables.times import read_time
from trainwright.datasets.tables.typed import from_epoch, read_each, without
from trainwright.errors import DataError
from trainwright.numerals import listed, number
from trainwright.process.alarms import announced
from trainwright.redact import HIDDEN, is_secret
from trainwright.types import Array, SplitName

_SHOWN = 3  # rows that do not meet an expectation, of which the values are shown
_LOOKED_AT = 1000  # of them, for different values
_FEW = 8  # values
_LONGEST = 40  # characters of a value
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
Kind = Literal["number", "time", "boolean"]
_KINDS: dict[str, Kind] = {
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "time": "time",
    "date": "time",
}
_WHOLE = ("missing", "between")  # what can be expected of rows that hold several values, too


def outcomes(tables: Mapping[SplitName, Table], config: DataConfig) -> list[Outcome]:
    """Return how the rows compare with each expectation, in the order of the config.

    Args:
        tables: The rows of each source.
        config: The data section.

    Raises:
        DataError: An expectation has no meaning for its column.
    """
    expect, sources = config.expect, list(tables.values())
    if expect is None:
        return []
    found = [*_rows(expect, sources), *_names(expect, sources)]
    for name, wanted in expect.column.items():
        absent = next((table for table in sources if name not in table.columns), None)
        if absent is not None and name in absent.unread:
            if wanted.model_fields_set:
                raise DataError(
                    f"data.expect.column.{name}: it holds lists or structures, of which nothing can be "
                    "expected but that they are there: {}"
                )
            found.append(Outcome(name, "a column", True, "a column"))
        elif absent is None:
            checked = [*_Column(name, wanted, sources, config).outcomes()]
            found += checked or [Outcome(name, "a column", True, "a column")]
        else:
            advice = nearest(name, [*absent.columns, *absent.unread])
            found.append(
                Outcome(name, "a column", False, None, f"{absent.source} has no such column; {advice}")
            )
    return found


def examined(tables: Mapping[SplitName, Table], config: DataConfig, examine: Examine) -> int:
    """Have the rows of each source examined; return the number of expectations.

    Raises:
        DataError: They are not met, or one has no meaning for its column.
    """
    if config.expect is None:
        return 0
    with announced("comparing the rows with data.expect"):
        found = outcomes(tables, config)
    examine(found)
    return len(found)


def examined_arrays(
    parts: Mapping[SplitName, Mapping[str, Any]], config: DataConfig, examine: Examine
) -> int:
    """Have named arrays, (rows, ...) each, examined; see `examined`."""
    if config.expect is None:
        return 0
    tables = {
        name: Table({key: np.asarray(array) for key, array in arrays.items()}, f"the {name} arrays")
        for name, arrays in parts.items()
    }
    return examined(tables, config, examine)


def _rows(expect: ExpectConfig, sources: Sequence[Table]) -> Iterator[Outcome]:
    if expect.rows is not None:
        count = sum(map(len, sources))
        yield _aggregate("rows", expect.rows, count, f"there are {count:,} rows")


def _names(expect: ExpectConfig, sources: Sequence[Table]) -> Iterator[Outcome]:
    """Compare the names of the columns of each source."""
    required, exact = expect.columns.required, expect.columns.exact
    there = [[*table.columns, *table.unread] for table in sources]
    if required:
        lost = [
            (table, [n for n in required if n not in own]) for table, own in zip(sources, there, strict=True)
        ]
        yield _compared_names("columns.required", required, [(t, n, "lacks") for t, n in lost if n])
    if exact is not None:
        odd = [
            (table, names, word)
            for table, own in zip(sources, there, strict=True)
            for names, word in (
                ([name for name in exact if name not in own], "lacks"),
                ([name for name in own if name not in exact], "also has"),
            )
            if names
        ]
        yield _compared_names("columns.exact", exact, odd)


def _compared_names(
    key: str, expected: Sequence[str], odd: Sequence[tuple[Table, Sequence[str], str]]
) -> Outcome:
    said = "; ".join(f"{table.source} {word} {listed(map(repr, names))}" for table, names, word in odd)
    found = {
        word: sorted({name for _, names, one in odd if one == word for name in names}) for *_, word in odd
    }
    return Outcome(key, list(expected), not odd, found or list(expected), said)


def _holds(bound: Bound, value: float) -> bool:
    if isinstance(bound, str):
        sign = bound.strip()[: 2 if "=" in bound else 1]
        return _COMPARED[sign](value, float(bound.strip().removeprefix(sign)))
    if isinstance(bound, int):
        return value == bound
    low, high = bound
    return (low is None or value >= low) and (high is None or value <= high)


def _aggregate(key: str, bound: Bound, value: float, said: str) -> Outcome:
    met = _holds(bound, value)
    return Outcome(key, bound, met, value, said if met else f"{said}, but expected: {_in_words(bound)}")


def _in_words(bound: Any) -> str:
    if isinstance(bound, list) and len(bound) == 2 and None in bound:
        return f"at most {bound[1]}" if bound[0] is None else f"at least {bound[0]}"
    return f"from {bound[0]} to {bound[1]}" if isinstance(bound, list) else str(bound)


class _Read(NamedTuple):
    """The cells of a column as one kind, and a mask, (rows,) bool, of those that are of another."""

    values: Array
    strays: Array


class _Column:
    """One column of all sources, and what is expected of it."""

    def __init__(
        self, name: str, wanted: ColumnExpectation, sources: Sequence[Table], config: DataConfig
    ) -> None:
        self._name, self._wanted, self._sources, self._config = name, wanted, sources, config
        parts = [without(one.columns[name], missing_values_of(config, name)) for one in sources]
        if len({kind_of(part) for part in parts}) > 1:
            parts = [as_texts(part) for part in parts]
        self._values: Array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._absent = _each_row(missing(self._values))
        self._present = len(self._values) - int(self._absent.sum())
        self._read: dict[str, _Read] = {}
        self._shows = not is_secret(name, "x")

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcome of each expectation.

        Raises:
            DataError: One has no meaning for this column.
        """
        asked = [key for key in type(self._wanted).model_fields if key in self._wanted.model_fields_set]
        for key in asked:
            value = getattr(self._wanted, key)
            if key == "mostly" or value is None or value is False or value == {}:
                continue
            several = self._values.ndim > 1 or holds_lists(self._values)
            if several and (key not in _WHOLE or (key == "between" and self._values.ndim == 1)):
                raise self._useless(key, f"its rows hold several values; give {' or '.join(_WHOLE)}")
            if key == "share":
                yield from (self._share(text, bound) for text, bound in value.items())
            else:
                yield getattr(self, f"_check_{key}")(value)

    def _check_type(self, kind: str) -> Outcome:
        if kind == "text":
            bad = np.full(len(self._values), kind_of(self._values) != "text")
            return self._cells("type", kind, bad, "are not text")
        read = self._as(_KINDS[kind])
        bad = read.strays
        if kind == "integer":
            with np.errstate(invalid="ignore"):
                bad = bad | (read.values != np.trunc(read.values))
        return self._cells(
            "type", kind, bad, "are no whole numbers" if kind == "integer" else f"are no {kind}s"
        )

    def _check_missing(self, bound: Bound) -> Outcome:
        lost, rows = len(self._values) - self._present, len(self._values)
        share = lost / max(rows, 1)
        said = f"{lost:,} of {rows:,} cells are missing ({number(share)})"
        outcome = _aggregate(self._key("missing"), bound, share, said)
        if outcome.met or not lost:
            return replace(outcome, rows=lost)
        return replace(
            outcome,
            rows=lost,
            said=f"{outcome.said}; {self._where(self._absent)}",
            examples=self._at(self._absent),
        )

    def _check_between(self, ends: Sequence[Any]) -> Outcome:
        kind = self._kind_of_ends("between", [end for end in ends if end is not None])
        low, high = (self._end("between", end, kind) for end in ends)
        return self._outside("between", ends, kind, (low, np.less), (high, np.greater))

    def _check_after(self, time: str) -> Outcome:
        return self._outside("after", time, "time", (self._end("after", time, "time"), np.less_equal))

    def _check_before(self, time: str) -> Outcome:
        return self._outside("before", time, "time", (self._end("before", time, "time"), np.greater_equal))

    def _outside(self, key: str, expected: Any, kind: Kind, *ends: tuple[Any, Any]) -> Outcome:
        """Compare the values with ends; those for which a comparison is true are wrong."""
        read = self._as(kind)
        bad = read.strays
        for end, is_wrong in ends:
            if end is not None:
                with np.errstate(invalid="ignore"):
                    bad = bad | _each_row(is_wrong(read.values, end))
        words = {"between": "are not", "after": "do not come after", "before": "do not come before"}[key]
        between = f" {_in_words(expected)}" if key == "between" else f" {expected}"
        return self._cells(key, expected, bad, words + between)

    def _check_one_of(self, values: Sequence[Any]) -> Outcome:
        return self._cells(
            "in", values, ~self._are(values), f"are not in [{listed(map(repr, map(_cell, values)))}]"
        )

    def _check_none_of(self, values: Sequence[Any]) -> Outcome:
        return self._cells(
            "not_in", values, self._are(values), f"are in [{listed(map(repr, map(_cell, values)))}]"
        )

    def _check_matches(self, expression: str) -> Outcome:
        found = re.compile(expression).search
        texts = as_texts(self._values).tolist()
        different = set(texts) - {None}
        if 2 * len(different) > len(texts):
            bad = np.fromiter((text is not None and not found(text) for text in texts), bool, len(texts))
        else:
            wrong = {text for text in different if not found(text)}
            bad = np.fromiter((text in wrong for text in texts), bool, len(texts))
        return self._cells("matches", expression, bad, f"do not match {expression}")

    def _check_unique(self, expected: bool) -> Outcome:
        return self._cells(
            "unique", expected, _repeats(self._values, self._absent), "repeat an earlier value"
        )

    def _check_mean(self, bound: Bound) -> Outcome:
        return self._of_numbers("mean", bound, np.mean)

    def _check_std(self, bound: Bound) -> Outcome:
        return self._of_numbers("std", bound, np.std)

    def _of_numbers(self, key: str, bound: Bound, compute: Callable[[Array], Any]) -> Outcome:
        values = self._as("number").values.astype(np.float64)
        values = values[~np.isnan(values)]
        if not len(values):
            return Outcome(self._key(key), bound, False, None, "there are no numbers")
        found = float(compute(values))
        return _aggregate(self._key(key), bound, found, f"is {number(found)}")

    def _share(self, text: str, bound: Bound) -> Outcome:
        words = {"true": True, "false": False} if kind_of(self._values) == "number" else {}
        count = int(self._are([words.get(text.casefold(), text)]).sum())
        share = count / max(self._present, 1)
        said = f"{count:,} of {self._present:,} cells are {text} ({number(share)})"
        return _aggregate(self._key(f"share.{text}"), bound, share, said)

    def _cells(self, key: str, expected: Any, bad: Array, words: str) -> Outcome:
        """Return the outcome of an expectation of each cell; missing ones do not count."""
        bad = bad & ~self._absent
        count = int(bad.sum())
        met = self._present - count >= self._wanted.mostly * self._present
        if not count:
            return Outcome(self._key(key), expected, met, 0)
        examples = self._at(bad)
        shown = f" ({self._some_of(bad)})" if self._shows and self._values.ndim == 1 else ""
        said = f"{count:,} of {self._present:,} cells {words}{shown}: {self._where(bad)}"
        return Outcome(self._key(key), expected, met, count, said, count, examples)

    def _some_of(self, bad: Array) -> str:
        """Return the first different values where a mask is true; texts are quoted, as blanks may matter."""
        first = self._values[np.flatnonzero(bad)[:_LOOKED_AT]]
        write = str if first.dtype.kind == "M" else repr
        texts = list(dict.fromkeys(write(_cell(value)) for value in first))
        return ", ".join([*texts[:_SHOWN], *(["..."] if len(texts) > _SHOWN else [])])

    def _at(self, bad: Array) -> list[dict[str, Any]]:
        """Return the first rows where a mask is true: their source, row, line and value."""
        examples = []
        for row in np.flatnonzero(bad)[:_SHOWN].tolist():
            table, at = self._place(row)
            position = int(at if table.numbers is None else table.numbers[at])
            line = None if table.first_line is None else table.first_line + position
            place = {"source": table.source, "row": position + 1, "line": line}
            examples.append({**place, "value": _cell(self._values[row]) if self._shows else HIDDEN})
        return examples

    def _place(self, row: int) -> tuple[Table, int]:
        for table in self._sources:
            if row < len(table):
                return table, row
            row -= len(table)
        raise IndexError(row)

    def _where(self, bad: Array) -> str:
        start, places = 0, []
        for table in self._sources:
            own = bad[start : start + len(table)]
            start += len(table)
            if own.any():
                places.append(f"{table.where(own)} of {table.source}")
        return "; ".join(places)

    def _as(self, kind: Kind) -> _Read:
        """Return the cells as numbers, times or booleans, of which those that are none are strays."""
        if kind not in self._read:
            self._read[kind] = self._read_as(kind)
        return self._read[kind]

    def _read_as(self, kind: Kind) -> _Read:
        values, own = self._values, kind_of(self._values)
        unit = self._config.columns[self._name].unit if self._name in self._config.columns else None
        if own == kind or (own == "boolean" and kind == "number"):
            return _Read(values, self._none())
        if own == "number" and kind == "time" and unit is not None:
            return _Read(from_epoch(values, unit), self._none())
        if own == "text":
            return _Read(*read_each(values, reading_as(kind, self._name, values, self._config)))
        blank = np.full(len(values), np.datetime64("NaT", "us") if kind == "time" else np.nan)
        return _Read(blank, ~self._absent)

    def _are(self, values: Sequence[Any]) -> Array:
        """Return a mask, (rows,) bool, of the cells that hold one of some values."""
        match kind_of(self._values):
            case "number":
                numbers = [float(value) for value in values if _is_number(value)]
                return np.isin(self._values, numbers)
            case "boolean":
                wanted = {str(value).casefold() for value in values}
                both = [text in wanted for text in ("false", "true")]
                return np.array(both)[self._values.astype(np.int8)]
            case "time":
                return np.isin(self._values, [self._end("in", value, "time") for value in values])
            case _:
                texts = {str(one).lower() if isinstance(one, bool) else str(one) for one in values}
                if len(texts) <= _FEW:  # NumPy compares faster than a set is asked
                    masks = [np.asarray(self._values == text, bool) for text in texts]
                    return np.asarray(np.logical_or.reduce(masks))
                return np.fromiter((text in texts for text in self._values.tolist()), bool, len(self._values))

    def _kind_of_ends(self, key: str, ends: Sequence[Any]) -> Kind:
        kinds: set[Kind] = {"time" if isinstance(end, str) else "number" for end in ends}
        if len(kinds) > 1:
            raise self._useless(key, f"{listed(map(repr, ends))} are a number and a time; give two of a kind")
        return kinds.pop()

    def _end(self, key: str, value: Any, kind: str) -> Any:
        if value is None or kind == "number":
            return value
        if (time := read_time(str(value))) is None:
            raise self._useless(key, f"{value!r} is no time; write it as 2026-01-31, or 2026-01-31 12:00")
        return np.datetime64(time, "us")

    def _useless(self, key: str, why: str) -> DataError:
        return DataError(f"data.expect.column.{self._key(key)}: {why}")

    def _key(self, key: str) -> str:
        return f"{self._name}.{key}"

    def _none(self) -> Array:
        return np.zeros(len(self._values), bool)


def _each_row(mask: Array) -> Array:
    """Return a mask, (rows,), of the rows that a mask, (rows, ...), is true somewhere in."""
    return mask if mask.ndim == 1 else np.asarray(mask.reshape(len(mask), -1).any(axis=1))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _repeats(values: Array, absent: Array) -> Array:
    """Return a mask, (rows,) bool, of the values that an earlier row has."""
    bad = np.zeros(len(values), bool)
    if kind_of(values) == "text":
        seen: set[str] = set()
        texts = values.tolist()
        if len(set(texts)) < len(texts):
            for row, text in enumerate(texts):
                bad[row] = text in seen
                seen.add(text)
        return bad
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():  # which takes a tenth of the time
        return bad
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    bad[order[1:]] = ordered[1:] == ordered[:-1]
    repeated: Array = bad & ~absent
    return repeated


def _cell(value: Any) -> Any:
    """Return a cell as a plain value; a long text is cut."""
    if isinstance(value, np.datetime64):
        return str(value).removesuffix("T00:00:00.000000").removesuffix(".000000")
    if isinstance(value, np.ndarray):
        return f"an array of {value.shape}"
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, str) and len(plain) > _LONGEST:
        return f"{plain[:_LONGEST]}..."
    return plain
