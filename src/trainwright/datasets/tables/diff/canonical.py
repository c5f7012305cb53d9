"""Cells in one form, equal where their values are, whatever the type of their column; and their hashes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.datasets.tables.cells import read_cell
from trainwright.datasets.tables.table import Kind, kind_of
from trainwright.require import require
from trainwright.types import Array

MISSING, NUMBER, WHOLE, TIME, FINE_TIME, TEXT = range(
    6
)  # what a cell holds; WHOLE: beyond float64's integers
_EXACT = 2**53  # whole numbers up to here are the same as float64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Cells:
    """The cells of a column.

    `tags` (rows,) uint8 say what each cell holds, `bits` (rows,) uint64 its value; of texts, `codes` (rows,)
    are their positions in `texts` (different,), -1 where a cell holds none.
    """

    bits: Array
    tags: Array
    codes: Array | None = None
    texts: Array | None = None

    def equal(self, other: Cells) -> Array:
        """Return a mask, (rows,) bool, of the cells that equal those of another column."""
        same: Array = (self.bits == other.bits) & (self.tags == other.tags)
        if (one := self._strings()) is not None and (two := other._strings()) is not None:
            same &= np.asarray(one == two, dtype=bool)
        return same

    def _strings(self) -> Array | None:
        if self.codes is None or self.texts is None:
            return None
        texts = np.empty(len(self.texts) + 1, dtype=object)  # the last one, of no text, is None
        texts[:-1] = self.texts
        strings: Array = texts[self.codes]
        return strings


def canonical(values: Array, other: Kind | None = None) -> Cells:
    """Return the cells of a column, (rows,).

    Args:
        values: The column, as the readers of tables give it.
        other: The kind of the column that it is compared with. Where that holds no texts, the texts of this
            one count as what a file without types would be read as: "1.0" is 1.
    """
    kind = kind_of(values)
    if kind == "text":
        return _texts(values, other)
    return _times(values) if kind == "time" else _numbers(values)


def _numbers(values: Array) -> Cells:
    if values.dtype.kind == "b":
        values = values.astype(np.float64)
    if values.dtype.kind == "f":
        floats = values.astype(np.float64) + 0.0  # -0.0 is 0.0
        absent = np.isnan(floats)
        floats[absent] = 0.0
        return Cells(floats.view(np.uint64), np.where(absent, MISSING, NUMBER).astype(np.uint8))
    floats, tags = values.astype(np.float64), np.full(len(values), NUMBER, dtype=np.uint8)
    bits = floats.view(np.uint64)
    if len(values) and (values.max() > _EXACT or values.min() < -_EXACT):
        least, limit = np.iinfo(values.dtype).min, float(np.iinfo(values.dtype).max)
        inside = np.where(floats < limit, floats, 0.0)
        exact = (inside.astype(values.dtype) == values) & (floats < limit) & (floats >= float(least))
        tags[~exact] = WHOLE
        bits[~exact] = values[~exact].astype(np.uint64)
    return Cells(bits, tags)


def _times(values: Array) -> Cells:
    absent = np.isnat(values)
    micro = values.astype("datetime64[us]")
    tags = np.where(absent, MISSING, TIME).astype(np.uint8)
    bits = np.where(absent, 0, micro.view(np.int64))
    if np.datetime_data(values.dtype)[0] == "ns":
        fine = (micro.astype(values.dtype) != values) & ~absent
        tags[fine] = FINE_TIME
        bits[fine] = values.view(np.int64)[fine]
    return Cells(bits.view(np.uint64), tags)


def _texts(values: Array, other: Kind | None) -> Cells:
    pandas: Any = require("pandas", "tabular")
    codes, texts = pandas.factorize(values)
    bits, tags = np.zeros(len(values), np.uint64), np.where(codes < 0, MISSING, TEXT).astype(np.uint8)
    if other in (None, "text") or not len(texts):
        return Cells(bits, tags, codes, texts)
    read = [read_cell(text, times=other == "time") for text in texts]
    known = np.array([one is not None for one in read])
    of_each = [_numbers(np.array([one])) if not isinstance(one, np.datetime64) else _times(np.array([one]))
               for one in read if one is not None]  # fmt: skip
    value_bits, value_tags = np.zeros(len(texts), np.uint64), np.zeros(len(texts), np.uint8)
    value_bits[known] = [one.bits[0] for one in of_each]
    value_tags[known] = [one.tags[0] for one in of_each]
    is_value = (codes >= 0) & known[codes]
    bits[is_value], tags[is_value] = value_bits[codes[is_value]], value_tags[codes[is_value]]
    return Cells(bits, tags, np.where(is_value, -1, codes), texts)


class Hashes:
    """Hashes of 128 bits, under a key that no file can know, of the cells of columns and of rows of them.

    Args:
        columns: The number of columns of a row.
    """

    def __init__(self, columns: int) -> None:
        draw = np.random.default_rng(secrets.randbits(128))
        self._salts = draw.integers(0, 2**64, (2, 1), dtype=np.uint64)
        self._columns = draw.integers(0, 2**64, (columns, 2, 1), dtype=np.uint64)
        self._keys = [secrets.token_hex(8), secrets.token_hex(8)]

    def cells(self, cells: Cells) -> Array:
        """Return the hashes of the cells of a column, (2, rows) uint64."""
        hashes = mixed((cells.bits ^ self._salts) + cells.tags.astype(np.uint64) * _GOLDEN)
        if cells.codes is not None and cells.texts is not None and len(cells.texts):
            has = cells.codes >= 0
            for lane, key in zip(hashes, self._keys, strict=True):
                lane[has] = _hashes_of_texts(cells.texts, key)[cells.codes[has]]
        return hashes

    def in_column(self, hashes: Array, column: int) -> Array:
        """Return what the cells of a column, (2, rows), add to the hashes of their rows."""
        return mixed(hashes + self._columns[column])

    def in_order(self, hashes: Array, start: int) -> Array:
        """Return the sums, (2,), of what cells (2, rows) add, at their positions, to the hash of a column."""
        places = mixed(np.arange(start, start + hashes.shape[1], dtype=np.uint64) + self._salts)
        total: Array = mixed(hashes ^ places).sum(axis=1, dtype=np.uint64)
        return total


def _hashes_of_texts(texts: Array, key: str) -> Array:
    pandas: Any = require("pandas", "tabular")
    try:
        hashes: Array = pandas.util.hash_array(texts, hash_key=key, categorize=False)
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON may hold
        raw = np.empty(len(texts), dtype=object)
        raw[:] = [text.encode("utf-8", "surrogatepass") for text in texts]
        hashes = pandas.util.hash_array(raw, hash_key=key, categorize=False)
    return hashes


def mixed(words: Array) -> Array:
    """Return words of 64 bits with all of their bits mixed, as SplitMix64 does."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
