"""Tables of named NumPy columns.

The adapters convert rows to a `Table`, so that neither training nor prediction needs pandas. The dtype of a
column says which of four kinds it is:

    number    float64, int64 ...; a missing value is NaN
    boolean   bool
    time      datetime64; a missing value is NaT
    text      object: str, or None where the value is missing
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from typing import Any, Literal

import numpy as np

from trainwright.datasets.tables.times import in_utc
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require
from trainwright.types import Array, Ids

Kind = Literal["number", "boolean", "time", "text"]
_KINDS: dict[str, Kind] = {
    "i": "number",
    "u": "number",
    "f": "number",
    "b": "boolean",
    "M": "time",
    "O": "text",
}
_MISSING_TYPES = {"NoneType", "NAType", "NaTType"}  # by name, so that pandas need not be imported
_SHOWN = 3  # rows that a message names


@dataclass(frozen=True)
class Table:
    """Rows by column.

    `columns`: each (rows,), all of one length. `source` names the origin of the rows in messages. `numbers`
    are the rows' positions in it, None for all rows in order. `first_line` is the line of the file that holds
    the first row, None if rows and lines do not correspond. `guessed` are columns taken for text in a file
    without types; `unread` are the names of columns that were not converted. `categorical` are columns that
    hold categories by the type of their source. `is_typed`: all columns are read as their kinds. `frame` is
    the data frame that the columns were read from, if there was one. `remarks` are what a user should know
    of how the source was read; `missing_words` are the words of columns of text that were read as missing
    values, with their numbers of rows. `is_derived`: the columns are what `data.features_from` has made.
    """

    columns: Mapping[str, Array]
    source: str = "the rows given"
    numbers: Ids | None = None
    first_line: int | None = None
    guessed: frozenset[str] = frozenset()
    unread: Sequence[str] = ()
    categorical: frozenset[str] = frozenset()
    is_typed: bool = False
    frame: Any = None
    remarks: Sequence[str] = ()
    missing_words: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_derived: bool = False

    def __len__(self) -> int:
        if self.numbers is not None:
            return len(self.numbers)
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def take(self, ids: Ids) -> Table:
        """Return the rows `ids`, which keep their numbers; a column is copied whenever it is read."""
        numbers = ids if self.numbers is None else self.numbers[ids]
        frame = None if self.frame is None else self.frame.iloc[ids]
        return replace(self, columns=_Rows(self.columns, ids), numbers=numbers, frame=frame)

    def with_column(self, name: str, values: Array) -> Table:
        """Return the table with one more column.

        Raises:
            DataError: There is one of this name.
        """
        if name in self.columns:
            raise DataError(f"{self.source}: there is a column {name!r} already; rename it")
        return replace(self, columns={**self.columns, name: values})

    def column(self, name: str, setting: str = "") -> Array:
        """Return the values of one column, (rows,).

        Args:
            name: Its name.
            setting: The config key that names it, for messages.

        Raises:
            DataError: There is no column of this name.
        """
        if name not in self.columns:
            key = f"{setting}: " if setting else ""
            raise DataError(
                f"{self.source}: {key}there is no column {name!r}; "
                f"{nearest(name, [*self.columns, *self.unread])}"
            )
        return self.columns[name]

    def where(self, mask: Array) -> str:
        """Name the rows where `mask` (rows,) is true, counted from 1 without the header."""
        rows = np.flatnonzero(mask)
        first = rows[:_SHOWN] if self.numbers is None else self.numbers[rows[:_SHOWN]]
        more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        text = _numbered("row", first + 1) + more
        return (
            text
            if self.first_line is None
            else f"{text} ({_numbered('line', first + self.first_line)} of the file)"
        )


class _Rows(Mapping[str, Array]):
    """Some rows of columns; each column is copied when it is read, so that few copies are held at once."""

    def __init__(self, columns: Mapping[str, Array], ids: Ids) -> None:
        self._columns = columns
        self._ids = ids

    def __getitem__(self, name: str) -> Array:
        return self._columns[name][self._ids]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _numbered(word: str, numbers: Iterable[int]) -> str:
    texts = [str(number) for number in numbers]
    return f"{word}{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


def nearest(name: str, names: Iterable[str], there: Sequence[str] | None = None) -> str:
    """Return the advice for a `name` that is not among `names`.

    Args:
        name: What was asked for.
        names: What may have been meant.
        there: All names that there are; default: `names`.
    """
    known = list(names)
    folded = {other.strip().casefold(): other for other in known}
    close = difflib.get_close_matches(name.strip().casefold(), folded, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(repr(folded[other]) for other in close)}?"
    given = known if there is None else there
    return f"there are: {listed(given, 12)}" if given else "there are none at all"


def unique_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names of columns, repeated ones as `a.1` and so on as in pandas, and what to say of them."""
    unique: dict[str, str] = {}  # -> the name in the source
    for name in names:
        new, number = name, 0
        while new in unique or (number and new in names):
            number += 1
            new = f"{name}.{number}"
        unique[new] = name
    renamed = [f"{name!r} is called {new!r}" for new, name in unique.items() if new != name]
    return list(unique), f"columns with the same name are renamed: {listed(renamed, 4)}" if renamed else ""


def kind_of(values: Array) -> Kind:
    """Return the kind of a column."""
    return _KINDS[values.dtype.kind]


def missing(values: Array) -> Array:
    """Return a mask, (rows,) bool, of the missing values."""
    match kind_of(values):
        case "text":
            return np.asarray(values == None, dtype=bool)  # noqa: E711 - element by element
        case "time":
            return np.isnat(values)
        case "number" if values.dtype.kind == "f":
            return np.isnan(values)
        case _:
            return np.zeros(len(values), dtype=bool)


def as_texts(values: Array) -> Array:
    """Return a column as (rows,) str or None; integers have no decimal point even if stored as floats."""
    if kind_of(values) == "text":
        return values
    absent = missing(values)
    texts = np.empty(len(values), dtype=object)
    for row, value in enumerate(values.tolist()):
        is_integer = isinstance(value, float) and value.is_integer()
        texts[row] = None if absent[row] else str(int(value) if is_integer else value)
    return texts


def iso_times(texts: Array) -> Array:
    """Parse texts such as 2026-01-31T12:00:00+01:00.

    Returns:
        (rows,) datetime64[us] in UTC; NaT for texts that are not times.
    """
    times = np.full(len(texts), "NaT", dtype="datetime64[us]")
    for row, text in enumerate(texts):
        if text is not None:
            times[row] = _iso_time(text)
    return times


@lru_cache(maxsize=1 << 14)  # a column of dates repeats them
def _iso_time(text: str) -> Any:
    try:
        return np.datetime64(_naive(datetime.fromisoformat(text.strip())), "us")
    except ValueError:
        return np.datetime64("NaT")


def tidy(values: Any, name: str, source: str = "the rows given") -> Array:
    """Convert the values of a column to one of the four kinds.

    Raises:
        DataError: The values are of another kind, or of several.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(
            f"{source}: column {name!r} holds lists or arrays; give each of their values a column of its own"
        )
    if array.dtype.kind in "biufM":
        return array
    if array.dtype.kind in "USO":
        return _tidy_objects(array.astype(object), name, source)
    raise DataError(
        f"{source}: column {name!r} holds {array.dtype.name} values; numbers, text, booleans and dates can "
        "be used"
    )


def _tidy_objects(values: Array, name: str, source: str) -> Array:
    absent = np.fromiter((_is_missing(value) for value in values), dtype=bool, count=len(values))
    present = values[~absent]
    word = {kind: _word(kind) for kind in set(map(type, present))}
    words = set(word.values())
    if None in words or len(words - {"a boolean"} if "a number" in words else words) > 1:
        _refuse_mixture(values, absent, word, f"{source}: column {name!r}")
    if words == {"a boolean"} and not absent.any():
        return values.astype(bool)
    if words <= {"a number", "a boolean"} and words:
        return _filled(values, absent, float("nan")).astype(np.float64)
    if words == {"a time"}:
        return np.array(
            [None if lost else _naive(value) for value, lost in zip(values, absent, strict=True)],
            "datetime64[us]",
        )
    return _filled(values, absent, None)


def _is_missing(value: Any) -> bool:
    return type(value).__name__ in _MISSING_TYPES or (isinstance(value, float) and math.isnan(value))


def _filled(values: Array, absent: Array, fill: Any) -> Array:
    values = values.copy()
    values[absent] = fill
    return values


def _word(kind: type) -> str | None:
    if issubclass(kind, bool | np.bool_):
        return "a boolean"
    if issubclass(kind, Real | Decimal):
        return "a number"
    if issubclass(kind, date | np.datetime64):
        return "a time"
    return "text" if issubclass(kind, str) else None


def _naive(value: Any) -> Any:
    """Return a time without zone, in UTC; a time without zone is taken as UTC."""
    if isinstance(value, datetime):
        return in_utc(value)
    return value


def _refuse_mixture(values: Array, absent: Array, word: Mapping[type, str | None], where: str) -> None:
    examples: dict[str, str] = {}
    for row, value in enumerate(values):
        if not absent[row]:
            examples.setdefault(word[type(value)] or type(value).__name__, f"{value!r} in row {row + 1}")
    kinds = " and ".join(f"{kind} ({example})" for kind, example in examples.items())
    advice = "make it one kind" if len(examples) > 1 else "numbers, text, booleans and dates can be used"
    raise DataError(f"{where} holds {kinds}; {advice}, or train without it (data.exclude)")


def as_table(
    rows: Any,
    source: str = "the rows given",
    only: Collection[str] | None = None,
    lists: Collection[str] = (),
) -> Table:
    """Return a data frame, a sequence of mappings, a mapping of columns, or a table as a table.

    Args:
        rows: What to convert.
        source: Its name in messages.
        only: The columns to convert; others may hold anything.
        lists: The columns whose cells may be lists.

    Raises:
        DataError: `rows` is none of these, or a column cannot be used.
    """
    remark = ""
    if isinstance(rows, Table):
        return rows
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        if not rows.columns.is_unique:
            unique, remark = unique_names([str(name) for name in rows.columns])
            rows = rows.set_axis(unique, axis=1)
        raw: Mapping[str, Any] = {
            str(name): _frame_column(rows.iloc[:, i]) for i, name in enumerate(rows.columns)
        }
    elif isinstance(rows, Mapping):
        raw = rows
    elif isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(str(name) for row in rows for name in row)
        raw = {name: objects([row.get(name) for row in rows]) for name in names}
    else:
        raise DataError(f"rows must be a data frame or a sequence of mappings, not {type(rows).__name__}")
    columns = {
        name: _cells(values, name, source, lists)
        for name, values in raw.items()
        if only is None or name in only
    }
    unread = [name for name in raw if name not in columns]
    frame, categorical = rows if hasattr(rows, "iloc") else None, _categorical(rows) & columns.keys()
    remarks = [f"{source}: {remark}"] if remark else []
    return Table(columns, source, unread=unread, categorical=categorical, frame=frame, remarks=remarks)


def _cells(values: Any, name: str, source: str, lists: Collection[str]) -> Array:
    """Return the values of a column as `tidy` does, or its lists."""
    if name in lists and any(isinstance(value, list | tuple | np.ndarray) for value in values):
        return objects([_plain(value) for value in values])
    return tidy(values, name, source)


def _plain(value: Any) -> Any:
    """Return a tuple or an array as a list, and a missing value as None."""
    if isinstance(value, tuple | np.ndarray):
        return value.tolist() if isinstance(value, np.ndarray) else list(value)
    return None if _is_missing(value) else value


def _categorical(rows: Any) -> frozenset[str]:
    """Return the names of the columns of a pandas data frame whose type is `category`."""
    if not hasattr(rows, "dtypes") or isinstance(rows, Mapping):
        return frozenset()
    return frozenset(
        str(name) for name, dtype in zip(rows.columns, rows.dtypes, strict=True) if dtype == "category"
    )


def objects(values: Sequence[Any]) -> Array:
    """Return values of any kind as (rows,) object."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):  # not at once: lists of one length would be taken for a matrix
        array[row] = value
    return array


def _frame_column(series: Any) -> Array:
    """Return the values of a pandas column; extension types become objects, which `tidy` can read."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biufM":
        return np.asarray(series.to_numpy())
    if getattr(dtype, "tz", None) is not None:
        return np.asarray(series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
    return np.asarray(series.to_numpy(dtype=object))


def frame_of(columns: dict[str, Array]) -> Any:
    """Return columns as a data frame, as pandas would read them: a missing text is NaN."""
    pandas: Any = require("pandas", "tabular")
    frame = pandas.DataFrame(columns)
    for name, values in columns.items():
        if kind_of(values) == "text":
            frame[name] = frame[name].astype(object).where(frame[name].notna(), float("nan"))
    return frame
