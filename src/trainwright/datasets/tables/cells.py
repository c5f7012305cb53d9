"""The types of the cells of a file without types: booleans, numbers, times or text.

A column is judged by all of its cells: at once (`typed_cells`), or piece by piece (`ColumnFacts`) where a
file is larger than memory. Both give the same values.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from trainwright.datasets.tables.arrow import strings
from trainwright.datasets.tables.table import iso_times, kind_of, missing
from trainwright.require import require
from trainwright.types import Array

MISSING = ("", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL")  # the texts that mean a missing value
BOOLEANS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
NUMBER = re.compile(r"\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity)\s*", re.IGNORECASE)
CODE = re.compile(r"\s*0\d")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ODD = r"(?i)x|nan|^\s*0\d"


def typed_cells(values: Array) -> Array:
    """Return a column of text as booleans, numbers or times if all of it is; else unchanged."""
    if kind_of(values) != "text":
        return values
    texts = {text for text in values.tolist() if text is not None}
    for read in (_booleans, _numbers, _dates):
        if (typed := read(values, texts)) is not None:
            return typed
    return values


def read_cell(text: str, *, times: bool = False) -> Any:
    """Return what a text is read as where all texts of its column are of its kind; None if it stays a text.

    Args:
        text: The text, which is not missing.
        times: The other cells are times, and no numbers or booleans.

    Returns:
        A float64, an int64 where no float64 is the same, or a datetime64.
    """
    if times:
        time = iso_times(np.array([text], dtype=object))[0] if DATE.match(text) else np.datetime64("NaT")
        return None if np.isnat(time) else time
    if text in BOOLEANS:
        return float(BOOLEANS[text])
    if NUMBER.fullmatch(text) is None or CODE.match(text):
        return None
    value = float(text)
    if not value.is_integer() or abs(value) < 2**53 or not re.fullmatch(r"\s*[+-]?\d+\s*", text):
        return value
    whole = int(text)
    return value if value == whole or not -(2**63) <= whole < 2**63 else np.int64(whole)


def has_codes(texts: Any) -> bool:
    """Return whether a cell of an Arrow column of strings is a code such as 01234."""
    compute: Any = require("pyarrow.compute", "tabular")
    return bool(compute.any(compute.match_substring_regex(texts, r"^\s*0\d")).as_py())


def _booleans(values: Array, texts: Collection[str]) -> Array | None:
    if not texts or not all(text in BOOLEANS for text in texts):
        return None
    if None in values:
        return np.array([BOOLEANS.get(text, np.nan) for text in values], dtype=np.float64)
    return np.array([BOOLEANS[text] for text in values], dtype=bool)


def _numbers(values: Array, texts: Collection[str]) -> Array | None:
    """Return numbers that only Python reads, such as those with white space around them."""
    if not all(map(NUMBER.fullmatch, texts)) or any(map(CODE.match, texts)):
        return None
    return np.array([np.nan if text is None else float(text) for text in values], dtype=np.float64)


def _dates(values: Array, texts: Collection[str]) -> Array | None:
    if not texts or not all(map(DATE.match, texts)):
        return None
    times = iso_times(values)
    return None if (missing(times) & ~missing(values)).any() else times


class ColumnFacts:
    """The types that all cells of a column have, learned from one piece of the file after another.

    `add` gets each piece, then `read` returns the values of each: those that the column would have if the
    whole file were read at once.
    """

    def __init__(self) -> None:
        self._arrow: Any = require("pyarrow", "tabular")
        self._compute: Any = require("pyarrow.compute", "tabular")
        self._fits = {"int": True, "float": True, "boolean": True, "number": True, "date": True}
        self._is_coded = self._has_missing = self._has_values = False

    def add(self, texts: Any) -> None:
        """Learn from a piece: an Arrow column of strings, null where a cell is missing."""
        self._has_missing |= texts.null_count > 0
        if texts.null_count == len(texts):
            return
        self._has_values = True
        if not any(self._fits.values()):
            return
        is_int = self._fits["int"] and self._cast(texts, self._arrow.int64()) is not None
        # Arrow reads some numbers that `_numbers` does not, 0x1F only as a whole one: 0x1F, NAN, 01.5.
        is_odd = self._compute.any(self._compute.match_substring_regex(texts, _ODD)).as_py()
        is_float = (is_int and not is_odd) or self._cast(texts, self._arrow.float64()) is not None
        self._fits |= {"int": is_int, "float": self._fits["float"] and is_float}
        if is_int or is_float:
            self._fits |= {"boolean": False, "date": False, "number": self._fits["number"] and not is_odd}
            self._is_coded |= is_odd and has_codes(texts)
        else:
            self._add_words(set(texts.unique().to_pylist()) - {None})

    def _add_words(self, texts: Collection[str]) -> None:
        """Learn from the different texts of a piece that Arrow reads no numbers from."""
        fits = self._fits
        self._is_coded |= any(map(CODE.match, texts))
        fits["boolean"] = fits["boolean"] and all(text in BOOLEANS for text in texts)
        fits["number"] = fits["number"] and all(map(NUMBER.fullmatch, texts))
        if fits["date"] and all(map(DATE.match, texts)):
            fits["date"] = not np.isnat(iso_times(np.array(list(texts), dtype=object))).any()
        else:
            fits["date"] = False

    @property
    def _form(self) -> str:
        if not self._has_values:
            return "empty"
        fits = self._fits
        if fits["int"]:
            return "text" if self._is_coded else "int"
        forms = ["float", "boolean", *([] if self._is_coded else ["number"]), "date"]
        return next((form for form in forms if fits[form]), "text")

    def read(self, texts: Any) -> Array:
        """Return the values of a piece, (rows,)."""
        form = self._form
        if form == "empty":
            return np.full(len(texts), np.nan)
        if form in ("int", "float"):
            kind = self._arrow.int64() if form == "int" else self._arrow.float64()
            values = np.asarray(self._cast(texts, kind).to_numpy(zero_copy_only=False))
            return values.astype(np.float64) if self._has_missing else values
        values = strings(texts)
        if form == "boolean":
            words = [np.nan if text is None else BOOLEANS[text] for text in values]
            return np.array(words, np.float64 if self._has_missing else bool)
        if form == "number":
            return np.array([np.nan if text is None else float(text) for text in values], dtype=np.float64)
        if form == "date":
            texts = list(dict.fromkeys(values))
            times = dict(zip(texts, iso_times(np.array(texts, dtype=object)), strict=True))
            return np.array([times[text] for text in values], dtype="datetime64[us]")
        return values

    def _cast(self, texts: Any, kind: Any) -> Any:
        """Return the numbers of a piece as Arrow's reader of CSV reads them, or None if it cannot."""
        trimmed = self._compute.utf8_trim(texts, characters=" \t")
        try:
            return self._compute.cast(trimmed, kind)
        except self._arrow.ArrowException:
            return None
