"""The kinds of a table's columns: inferred from the training rows, or declared (`typed.py` reads them so).

A text column whose cells are all numbers, dates or yes and no becomes a column of numbers, times or booleans.
Columns that teach nothing (identifiers, constants, empty ones) are excluded and named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from trainwright.config.emit import inline
from trainwright.config.schema import ColumnConfig, DataConfig
from trainwright.datasets.tables.table import Table, kind_of, missing
from trainwright.datasets.tables.times import (
    FORMATS,
    may_be_time,
    read_period,
    read_time,
    reading_of,
)
from trainwright.datasets.tables.typed import PLURALS, ColumnKind, Kind, read_each, without
from trainwright.datasets.tables.written import (
    BOOLEANS,
    is_missing_word,
    read_number,
    unit_of,
    without_unit,
    writing_of,
)
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.types import Array, Ids

Keep = Literal["useful", "not identifiers", "all"]  # which columns are kept, of those that nobody named
_DECLARED: dict[str, Kind] = {
    "number": "number",
    "boolean": "boolean",
    "category": "category",
    "time": "time",
    "date": "time",
    "text": "text",
    "id": "identifier",
    "ignore": "ignored",
}
NUMBERS_ROWS = "numbers the rows"
CONSTANT = "holds one value in all training rows"
_FIRST = 1000  # different texts that are read first: most columns are no numbers and no times there
_MANY = 50  # with more different texts, a column may hold identifiers or free text rather than categories
_OFTEN = 10  # rows: what names a row is not in so many
_REPEATED = 0.01  # of the rows hold such texts: then the others are rare categories, not identifiers
_SENTENCE = 3  # words: texts as long as this on average are free text, not identifiers
IDENTIFIER = re.compile(
    r"(^|[\W_])(id|ids|uuid|guid|key|index|rowid|unnamed: 0)$|[a-z](Id|ID)$", re.IGNORECASE
)
_SENTINEL_NUMBERS = {sign * (10**k - 1) for k in range(2, 10) for sign in (1, -1)} | {-9, -1e20, 1e20}
_SENTINEL_TIMES = ("0001-01-01", "1900-01-01", "1970-01-01", "2099-12-31", "2999-12-31", "9999-12-31")


@dataclass(frozen=True)
class Inference:
    """The kinds of a table's columns, by name, and warnings.

    `excluded` are the warnings about columns that are left out.
    """

    kinds: Mapping[str, ColumnKind]
    warnings: Sequence[str] = ()
    excluded: Sequence[str] = ()

    def summary(self) -> str:
        """Return one line: `5 numbers, 2 categories, 1 time, excluded: id (identifier)`.

        Columns that the config does not exclude have a warning each.
        """
        counts = Counter(kind.kind for kind in self.kinds.values() if kind.is_feature)
        words = [f"{count:,} {kind if count == 1 else PLURALS[kind]}" for kind, count in counts.most_common()]
        left_out = {name: kind for name, kind in self.kinds.items() if kind.declared and not kind.is_feature}
        excluded = [f"{name} ({kind.kind})" for name, kind in left_out.items()]
        return ", ".join([*words, *([f"excluded: {listed(excluded)}"] if excluded else [])])


def infer(
    table: Table,
    names: Collection[str],
    config: DataConfig,
    rows: Ids | None = None,
    keep: Keep = "useful",
) -> Inference:
    """Return what columns are: what the config declares, else what their cells say.

    Columns that teach nothing are excluded, unless `data.features` names them, `keep` includes them, or there
    are no others.

    Args:
        table: The table.
        names: The columns.
        config: The data section: `columns`, `missing_values`, `features`.
        rows: The training rows, which decide what a column is; default: all.
        keep: Which of the columns that the config does not name are kept.

    Raises:
        DataError: Cells do not fit what is declared, or there is nothing to learn from.
    """
    judged = judge(table, names, config, rows, keep)
    kinds = judged.kinds
    if kinds and not any(kind.is_feature for kind in kinds.values()):
        kinds = _with_some_feature(kinds, table)
    excluded = _excluded(kinds, table.source)
    return Inference(kinds, [*judged.warnings, *excluded], excluded)


def judge(
    table: Table,
    names: Collection[str],
    config: DataConfig,
    rows: Ids | None = None,
    keep: Keep = "useful",
) -> Inference:
    """Return what columns are, each by itself; see `infer`."""
    kinds: dict[str, ColumnKind] = {}
    warnings: list[str] = []
    for name in names:
        values = table.column(name)
        absent = tuple(missing_values_of(config, name))
        values = without(values if rows is None else values[rows], absent)
        declared = config.columns.get(name)
        if declared is None and name in table.categorical:
            declared = ColumnConfig(type="category")
        column = _Column(name, values, table.source, "all" if config.features is not None else keep)
        kind = column.infer() if declared is None else column.declared(declared)
        given = kind_of(values)
        is_changed = kind.is_feature and given != ("text" if kind.reads_text else kind.kind)
        kinds[name] = replace(kind, missing=absent, given=given if is_changed else None)
        warnings += column.warnings
        if kind.kind in ("category", "text") and (words := table.missing_words.get(name)):
            warnings.append(_swallowed(table.source, name, words))
    return Inference(kinds, warnings)


def _swallowed(source: str, name: str, words: Mapping[str, int]) -> str:
    found = listed(f"{word!r} ({count:,} row{'s'[: count > 1]})" for word, count in words.items())
    return (
        f"{source}: column {name!r} holds {found}, read as missing; if a category is meant, set "
        "data.params.keep_default_na: false"
    )


def _with_some_feature(kinds: Mapping[str, ColumnKind], table: Table) -> dict[str, ColumnKind]:
    """Return the kinds with features: columns that number the rows (x in a file of x and y), or constants.

    Raises:
        DataError: There is nothing to learn from; says why.
    """
    for reason in (NUMBERS_ROWS, CONSTANT):
        if any(kind.reason == reason for kind in kinds.values()):
            return {
                name: replace(
                    kind,
                    kind="category" if kind_of(table.columns[name]) == "text" else "number",
                    reason=f"{reason}, but there is no other column",
                )
                if kind.reason == reason
                else kind
                for name, kind in kinds.items()
            }
    reasons = listed(f"{name}: {kind.reason}" for name, kind in kinds.items())
    raise DataError(
        f"{table.source}: no usable feature column ({reasons}); declare what one of them holds in "
        "data.columns"
    )


def missing_values_of(config: DataConfig, name: str) -> Sequence[Any]:
    """Return the values of a column that mean a missing one, as the config says."""
    values = config.missing_values
    return values.get(name, []) if isinstance(values, Mapping) else values


def infer_target(table: Table, config: DataConfig) -> ColumnKind:
    """Return what the target is: numbers in text become numbers, and nothing else changes."""
    name = config.target_name
    absent = tuple(missing_values_of(config, name))
    column = _Column(name, without(table.column(name), absent), table.source, "all")
    if (declared := config.columns.get(name)) is not None:
        return replace(column.declared(declared), missing=absent)
    if kind_of(column.values) == "text" and name not in table.categorical:
        kind = column.numbers()
        return replace(kind or ColumnKind("category"), missing=absent)
    return ColumnKind("boolean" if kind_of(column.values) == "boolean" else "number", missing=absent)


def reading_as(
    kind: Literal["number", "time", "boolean"], name: str, values: Array, config: DataConfig
) -> ColumnKind:
    """Return how the cells of a column of text are read as a kind: as declared, or as they are written.

    Args:
        kind: The kind.
        name: The column.
        values: (rows,) its cells.
        config: The data section.
    """
    declared = config.columns.get(name)
    if declared is None or _DECLARED[declared.type] != kind:
        declared = ColumnConfig(type=kind)
    return _Column(name, values, "", "all").declared(declared)


def kept_columns(*, is_own: bool, given: bool) -> Keep:
    """Return which columns are kept, of those that nobody named: a model of the user's own counts on them.

    A file often has a column that names its rows, which nobody means who counts the features.

    Args:
        is_own: Whether the model is the user's own.
        given: Whether the rows are the user's own objects, or arrays.
    """
    if not is_own:
        return "useful"
    return "all" if given else "not identifiers"


class _Column:
    """One column of the training rows, of which it is asked what it is."""

    def __init__(self, name: str, values: Array, source: str, keep: Keep) -> None:
        self.name = name
        self.values = values
        self.warnings: list[str] = []
        self._keep = keep  # all: also if the user has named the column as a feature
        self._source = source

    def _warn(self, text: str, cure: str) -> None:
        self.warnings.append(f"{self._source}: column {self.name!r} {text}; {cure}")

    def infer(self) -> ColumnKind:
        """Return what the cells say."""
        absent = missing(self.values)
        if absent.all():
            return ColumnKind(
                "number" if self._keep == "all" else "empty", "has no value in any training row"
            )
        if self._keep == "useful" and len(self.values) > 1 and (self.values == self.values[0]).all():
            return ColumnKind("constant", CONSTANT)
        match kind_of(self.values):
            case "text":
                return self._text()
            case "number":
                return self._number(absent)
            case "boolean":
                return ColumnKind("boolean")
            case _:
                self._warn_of_sentinels(self.values[~absent])
                return ColumnKind("time")

    def declared(self, config: ColumnConfig) -> ColumnKind:
        """Return what the config declares; how numbers and dates are written is judged by the cells."""
        kind = ColumnKind(
            _DECLARED[config.type],
            "declared",
            True,
            config.decimal or ".",
            format=config.format,
        )
        if kind.kind == "time" and config.unit is not None:
            return replace(kind, unit=config.unit)
        if kind_of(self.values) != "text":
            if kind.kind == "time" and kind_of(self.values) != "time":
                raise DataError(
                    f"{self._source}: data.columns.{self.name}: it holds numbers; for times, give "
                    f"their unit: {{{inline(self.name)}: {{type: time, unit: s}}}} (or ms, us)"
                )
            return kind
        texts = [text for text in self._counts() if not is_missing_word(text)]
        if kind.kind == "number":
            if (unit := unit_of(texts)) is not None:
                kind, texts = replace(kind, unit=unit), [without_unit(text, unit) for text in texts]
            return kind if config.decimal else replace(kind, decimal=writing_of(texts).decimal)
        if kind.kind == "time" and config.format is None:
            return replace(kind, order=self._reading(texts))
        return kind

    def _counts(self) -> Counter[str]:
        counts = Counter(self.values.tolist())
        counts.pop(None, None)
        return counts

    def _number(self, absent: Array) -> ColumnKind:
        present = self.values[~absent] if absent.any() else self.values
        if self._keep != "all":
            if numbers_rows(self.values):
                return ColumnKind("identifier", NUMBERS_ROWS)
            if IDENTIFIER.search(self.name) and _all_differ(present):
                return ColumnKind("identifier", "has a different number in each row")
        self._warn_of_sentinels(present)
        return ColumnKind("number")

    def _text(self) -> ColumnKind:
        counts = self._counts()
        if set(map(str.casefold, map(str.strip, counts))) <= BOOLEANS.keys() and len(counts) > 1:
            return ColumnKind("boolean", f"holds {listed(counts, 4)}")
        if (kind := self.numbers(counts)) is not None:
            return self._unless_identifier(kind)
        return self._times(counts) or self._words(counts)

    def _words(self, counts: Counter[str]) -> ColumnKind:
        rows = counts.total()
        if has_unit(self.values):
            self._warn(
                f"holds numbers with a unit, such as {next(iter(counts))!r}, and is not read as numbers",
                self._declare("number", "to read them"),
            )
        words = sum(len(text.split()) for text in counts) / len(counts)
        if words < _SENTENCE and self._repeats(counts):
            return ColumnKind("category", f"{len(counts):,} different")
        if words >= _SENTENCE and len(counts) > max(_MANY, rows // 5):
            return ColumnKind("text", f"{words:.0f} words on average, mostly different")
        if self._keep != "all" and len(counts) > max(_MANY, rows // 2):
            return ColumnKind("identifier", "has a different text in most rows")
        return ColumnKind("category", f"{len(counts):,} different")

    def _repeats(self, counts: Counter[str]) -> bool:
        """Return whether some texts come back in many rows, as the names of jobs do."""
        often = sum(rows for rows in counts.values() if rows >= _OFTEN)
        return often >= _REPEATED * counts.total() and IDENTIFIER.search(self.name) is None

    def _unless_identifier(self, kind: ColumnKind) -> ColumnKind:
        """Return the kind of numbers in text, unless they identify the rows."""
        numbers, _ = read_each(self.values, kind)
        column = _Column(self.name, numbers, self._source, self._keep)
        as_read = column._number(np.isnan(numbers))
        self.warnings += column.warnings
        return kind if as_read.is_feature else as_read

    def numbers(self, counts: Counter[str] | None = None) -> ColumnKind | None:
        """Return that a column of text holds numbers, and how they are written, or None if it does not.

        A column counts as numbers if more than half of its cells are numbers, and either few of its cells are
        not (a tenth), or its numbers have too many different values (over ten) to be names of categories.
        """
        counts = self._counts() if counts is None else counts
        texts = [text for text in counts if not is_missing_word(text)]
        if not texts or any(_is_code(text) for text in texts):
            return None
        first = texts[:_FIRST]
        if 4 * max(sum(read_number(text, mark) is not None for text in first) for mark in ".,") < len(first):
            return None
        writing = writing_of(texts)
        numbers = {text: read_number(text, writing.decimal) for text in texts}
        units = {number.unit for number in numbers.values() if number}
        if len(units - {""}) > 1 or units == {"", "%"}:
            return None  # amounts in several currencies cannot be compared
        texts = [text for text in texts if numbers[text] is None]
        if not _mostly(counts, texts, len(numbers) - len(texts)):
            return None
        self._warn_of_words(counts)
        if writing.ambiguous:
            plain = read_number(writing.ambiguous)
            self._warn(
                f"is read with a decimal point ({writing.ambiguous} as {plain.value if plain else ''})",
                self._declare('{type: number, decimal: ","}', "if the comma is the decimal mark"),
            )
        unit = "".join(units)
        reason = "numbers in text" + (
            " (the number before %)" if unit == "%" else f" ({unit})" if unit else ""
        )
        return ColumnKind("number", reason, decimal=writing.decimal)

    def _times(self, counts: Counter[str]) -> ColumnKind | None:
        texts = [text for text in counts if not is_missing_word(text)]
        first = texts[:_FIRST]
        if not texts or 4 * sum(map(may_be_time, first)) < len(first):
            return None
        strays = [text for text in texts if read_time(text) is None]
        if not _mostly(counts, strays, len(texts) - len(strays)):
            return None
        self._warn_of_words(counts)
        order = self._reading(texts)
        kind = ColumnKind("time", "dates in text", order=order)
        self._warn_of_sentinels(read_each(self.values, kind)[0])
        return kind

    def _reading(self, texts: Sequence[str]) -> Literal["day first", "month first"]:
        reading = reading_of(texts)
        form = FORMATS["month first" if reading.order == "day first" else "day first"]
        if reading.ambiguous:
            self._warn(
                f"has dates such as {reading.ambiguous}, which are read {reading.order}",
                self._declare(f'{{type: date, format: "{form}"}}', "for the other order"),
            )
        if reading.contrary:
            self._warn(
                f"has dates in two orders: they are read {reading.order}, but {listed(reading.contrary, 3)} "
                "cannot be",
                "write them alike",
            )
        return reading.order

    def _declare(self, declaration: str, why: str) -> str:
        return f"{why}: data.columns: {{{inline(self.name)}: {declaration}}}"

    def _warn_of_words(self, counts: Counter[str]) -> None:
        if words := {text: count for text, count in counts.items() if is_missing_word(text)}:
            rows = listed((f"{text!r} ({count} rows)" for text, count in words.items()), 4)
            self._warn(
                f"holds {rows}, taken for missing values",
                self._declare("category", "if they are values"),
            )

    def _warn_of_sentinels(self, present: Array) -> None:
        for value in sentinels(present):
            cell = str(value).partition("T")[0] if isinstance(value, np.datetime64) else f"{value:.17g}"
            count = int((present == value).sum())
            self._warn(
                f"holds {cell} in {count} rows, far from all other values",
                f"if it means a missing value: data.missing_values: {{{inline(self.name)}: [{cell}]}}",
            )


def _mostly(counts: Counter[str], strays: Collection[str], different: int) -> bool:
    """Return whether cells other than `strays` decide what a column is; `different` of them differ."""
    present = sum(count for text, count in counts.items() if not is_missing_word(text))
    few = sum(counts[text] for text in strays)
    return 2 * few < present and (10 * few <= present or different > 10)


def _is_code(text: str) -> bool:
    """Return whether a text is a code such as a ZIP code, whose zeros in front count."""
    return len(text) > 1 and text[0] == "0" and text.isdigit()


def _all_differ(values: Array) -> bool:
    if len(values) < 3 or (values.dtype.kind == "f" and (values != np.trunc(values)).any()):
        return False
    first = values[:_FIRST]
    return len(np.unique(first)) == len(first) and len(np.unique(values)) == len(values)


def numbers_rows(values: Array) -> bool:
    """Return whether a column only numbers the rows."""
    if kind_of(values) != "number" or len(values) < 3:
        return False
    # Training rows keep their order but lose neighbors to other splits: steps are small integers above 0.
    for part in (values[:_FIRST], values):
        steps = np.diff(part)
        if not ((steps >= 1).all() and (steps == np.trunc(steps)).all()):
            return False
    return bool(values[-1] - values[0] <= 4 * len(values))


def _excluded(kinds: Mapping[str, ColumnKind], source: str) -> list[str]:
    """Return a warning for each reason why columns are excluded."""
    by_reason: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        if not kind.is_feature and not kind.declared:
            by_reason.setdefault(f"{kind.reason}, and is excluded ({kind.kind})", []).append(name)
    return [
        f"{source}: column {listed(map(repr, names))} {reason}; to learn from it, declare it: data.columns: "
        f"{{{inline(names[0])}: {'category' if 'text' in reason else 'number'}}}"
        for reason, names in by_reason.items()
    ]


def has_unit(values: Array) -> bool:
    """Return whether a column of text holds numbers with one unit, as in `120 m²`, and nothing else."""
    if kind_of(values) != "text":
        return False
    texts = {text for text in values.tolist() if text is not None and not is_missing_word(text)}
    return len(texts) > 1 and unit_of(texts) is not None


def holds_periods(values: Array) -> bool:
    """Return whether a column of text holds quarters, months or weeks of years, and nothing else."""
    if kind_of(values) != "text":
        return False
    texts = {text for text in values.tolist() if text is not None and not is_missing_word(text)}
    return len(texts) > 1 and all(read_period(text) is not None for text in texts)


def sentinels(present: Array) -> list[Any]:
    """Return values such as -999 that are repeated and far from all others: they may mean missing ones.

    Args:
        present: The values, (rows,) numbers or times, without missing ones.
    """
    if present.dtype.kind == "M":
        present = present[~np.isnat(present)]
        candidates: Iterable[Any] = np.array(_SENTINEL_TIMES, dtype="datetime64[us]")
    else:
        candidates = sorted(_SENTINEL_NUMBERS)
    if not len(present):
        return []
    extremes = {present.min(), present.max()}
    candidates = [value for value in candidates if value in extremes]
    if not candidates:
        return []
    others = present[~np.isin(present, candidates)]
    if not len(others) or others.min() == others.max():
        return []
    low, high = others.min(), others.max()
    far = [value for value in candidates if (low - value if value < low else value - high) > high - low]
    return [value for value in far if int((present == value).sum()) > 1]
