"""Numbers of rows that depend on their keys alone, by which a growing table keeps its splits.

A cell has one text whatever its column was read as: a missing value somewhere makes whole numbers floats, one
stray word makes numbers and dates text, and the rows of last month must not change their split for that.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.tables.cells import DATE, NUMBER, read_cell
from trainwright.datasets.tables.table import Table
from trainwright.datasets.tables.times import in_utc
from trainwright.errors import DataError
from trainwright.types import Array

HASHED = "data.split.by: hash"  # the column of these numbers in the table that is split
_SEPARATOR = "\x1f"
_CHUNK = 1 << 16  # rows
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_MIDNIGHT = "T00:00:00"


def read_as_text(config: DataConfig) -> list[str]:
    """Return the key columns that nothing else uses, whose cells are read as they are written."""
    used = {*(config.features or ()), *config.targets, config.weight, sampling_column(config.sampling)}
    return [name for name in config.split.keys if name not in used]


def with_hashes(table: Table, as_read: Table, config: SplitConfig) -> Table:
    """Return a table with the column `HASHED`, if it is split by it.

    Args:
        table: The rows that are split, some of those that were read.
        as_read: All rows, with their cells as they were read, whatever these are taken for.
        config: The section `data.split`.
    """
    if config.by != "hash":
        return table
    kept = as_read if table.numbers is None else as_read.take(table.numbers)
    return table.with_column(HASHED, hashes(kept, config.keys, config.seed))


def hashes(table: Table, keys: Sequence[str] = (), seed: int = 0) -> Array:
    """Return two numbers in [0, 1) for each row, (rows, 2) float64, which depend on its key and the seed.

    They are the first 53 bits of the first two 8 bytes of the SHA-256 of the seed and the texts of the key
    columns, in the order of their names. Without key columns, the key is the row's content: the names and
    texts of all its cells that have a value.

    Args:
        table: The rows, as they were read.
        keys: The key columns; default: the content of the row.
        seed: The seed.

    Raises:
        DataError: A key column does not exist, or lacks values.
    """
    names = sorted(keys)
    columns = [(name, table.column(name, "data.split.key")) for name in names or sorted(table.columns)]
    digests, absent = list[bytes](), np.zeros((len(names), len(table)), dtype=bool)
    for start in range(0, len(table), _CHUNK):  # whose texts are in memory together
        texts = [texts_of(values[start : start + _CHUNK]) for _, values in columns]
        if names:
            absent[:, start : start + _CHUNK] = [[not text for text in one] for one in texts]
            contents = [_SEPARATOR.join((str(seed), *cells)) for cells in zip(*texts, strict=True)]
        else:
            labels = [f"{_SEPARATOR}{name}=" for name, _ in columns]
            named = [
                [text and label + text for text in map(_in_content, one)]
                for label, one in zip(labels, texts, strict=True)
            ]
            contents = [str(seed) + "".join(cells) for cells in zip(*named, strict=True)]
        digests += [hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest()[:16] for one in contents]
    for (name, _), mask in zip(columns, absent, strict=False):
        if mask.any():
            raise DataError(
                f"{table.source}: column {name!r} (data.split.key) has no value in {table.where(mask)}; give "
                "them one, or name columns that have one in each row"
            )
    whole = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2)
    numbers: Array = (whole >> np.uint64(11)).astype(np.float64) / 2**53
    return numbers


def texts_of(values: Array) -> list[str]:
    """Return the text of each cell of a column, (rows,); empty where a value is missing."""
    if values.dtype.kind in "biuf":
        floats = values.astype(np.float64)
        is_whole = np.isfinite(floats) & (np.floor(floats) == floats)
        return [
            str(int(value)) if whole else repr(value) if value == value else ""  # noqa: PLR0124 - NaN
            for value, whole in zip(floats.tolist(), is_whole.tolist(), strict=True)
        ]
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
    known: dict[Any, str] = {}
    texts = []
    for value in values.tolist():
        if isinstance(value, list | dict):
            texts.append(_text(value))
            continue
        if (text := known.get(value)) is None:
            text = known[value] = _text(value)
        texts.append(text)
    return texts


def _text(value: Any) -> str:
    """Return the text of a cell, the same for all types that its column may be read as.

    Whole numbers have no decimal point, booleans are 1 and 0, and times are ISO 8601 in UTC. A text that
    reads as one of these has the text of that, but digits with leading zeros are a code, and stay as they
    are, and so does a name such as Nan. Bytes have the text of their hash.
    """
    match value:
        case None:
            text = ""
        case int() | float():
            text = _number(float(value))
        case date():
            text = _time(value)
        case bytes():
            text = hashlib.sha256(value).hexdigest()
        case dict():
            text = _text([list(item) for item in sorted(value.items())])
        case list():
            text = f"[{_SEPARATOR.join(map(_text, value))}]"
        case _:
            text = _of_written(str(value).strip())
    return text


def _of_written(text: str) -> str:
    if (value := read_cell(text)) is not None:
        return _number(float(value))
    if _HEX.fullmatch(text):  # which, like 01.5, only columns of numbers are read with
        return _number(float(int(text, 16)))
    if NUMBER.fullmatch(text) and not text.isdigit():
        return _number(float(text))
    if DATE.match(text):
        try:
            return _time(datetime.fromisoformat(text))
        except ValueError:
            return text
    return text


def _in_content(text: str) -> str:
    """Return the text of a cell in its row's content.

    Digits with leading zeros, and NaN, are what they are read as in a column with decimal numbers.
    """
    if text.casefold() == "nan":
        return ""
    return _number(float(text)) if text[:1] == "0" and text.isdigit() else text


def _number(value: float) -> str:
    """Return the text of a float64: columns with missing values hold whole numbers as such, too."""
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() else repr(value)


def _time(value: date) -> str:
    return (in_utc(value) if isinstance(value, datetime) else value).isoformat().removesuffix(_MIDNIGHT)


def splits_of_hashes(hashes: Array, config: SplitConfig, val: float, test: float) -> Sequence[Array]:
    """Return the masks of the rows that train, validate and test, (rows,) bool each.

    Test rows have the lowest numbers: with a larger share, those that tested still do. A fold is an interval
    of the first number; the second one divides the rows outside the fold, or outside the test rows.

    Args:
        hashes: (rows, 2), as `hashes` returns them.
        config: The section `data.split`.
        val: The share of the rows for validation; with `config.folds`, of the rows outside the fold.
        test: The share of the rows for the test.
    """
    first, second = hashes[:, 0], hashes[:, 1]
    if config.folds is not None:
        tests = np.floor(first * config.folds) == config.fold
        vals = ~tests & (second < val)
    elif config.val_folds is not None:
        tests = first < test
        vals = ~tests & (np.floor(second * config.val_folds) == config.val_fold)
    else:
        tests = first < test
        vals = ~tests & (first < test + val)
    return ~tests & ~vals, vals, tests
