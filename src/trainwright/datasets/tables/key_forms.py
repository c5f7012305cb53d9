"""A sample of the keys of a table, by which another table tells that it has written the same ones otherwise.

A program that takes 007105 for a number writes 7105, which is another key: its row may change its split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np

from trainwright.config.splits import SplitConfig
from trainwright.datasets.tables.split_keys import texts_of
from trainwright.datasets.tables.table import Table

_SAMPLE = 64  # keys: those whose bare form has the lowest checksum, so that two tables draw the same ones
_MOST_ROWS = 250_000  # beyond which it would take seconds
_FEW = 20  # keys that say nothing of the others
_SEPARATOR = "\x1f"
_SIGNS = re.compile(r"[\W_]+|(?<![0-9])0+(?=[0-9])")


def key_forms(table: Table, config: SplitConfig) -> list[str]:
    """Return for each key of the sample the hash of its bare form, and that of the key as it is written.

    Bare are letters in lower case and digits, without leading zeros.

    Args:
        table: The rows, with their cells as they were read.
        config: The section `data.split`; without key columns, and of very large tables, nothing is returned.
    """
    if config.by != "hash" or not config.keys or len(table) > _MOST_ROWS:
        return []
    texts = [texts_of(table.column(name)) for name in sorted(config.keys)]
    keys = list(set(map(_SEPARATOR.join, zip(*texts, strict=True))))
    bare = list(map(_bare, keys))
    places = np.fromiter(map(crc32, bare), dtype=np.uint32, count=len(bare))  # fast, and evenly spread
    last = np.sort(places)[:_SAMPLE].max(initial=0)
    chosen = np.flatnonzero(places <= last).tolist()
    both = (f"{places[i]:08x}{_hash(bare[i])[:6]} {_hash(_encoded(keys[i]))[:12]}" for i in chosen)
    return sorted(both)[:_SAMPLE]


def _bare(key: str) -> bytes:
    bare = key.lstrip("0") or "0" if key.isdigit() else _SIGNS.sub("", key.casefold())
    return _encoded(bare)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class SharedKeys(NamedTuple):
    """The keys of one table that another one has, of the sample.

    Attributes:
        expected: The number of keys that the other one would have if it had all.
        there: Those that it has.
        changed: Those among them that it writes otherwise.
    """

    expected: int
    there: int
    changed: int

    @property
    def are_written_otherwise(self) -> bool:
        """True where too many are for a chance resemblance."""
        return self.changed * 20 > self.there

    @property
    def are_few(self) -> bool:
        """True where the tables seem to have little in common."""
        return self.expected >= _FEW and self.there * 2 < self.expected

    @classmethod
    def of(cls, before: Sequence[str], now: Sequence[str]) -> SharedKeys:
        """Compare what `key_forms` returned for two tables."""
        first, second = _by_bare(before), _by_bare(now)
        last = max(second, default="") if len(now) == _SAMPLE else "g"  # beyond which `now` holds none
        expected = [form for form in first if form <= last]
        there = [form for form in expected if form in second]
        return cls(len(expected), len(there), sum(not first[form] & second[form] for form in there))


def _by_bare(forms: Sequence[str]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in forms:
        bare, _, written = one.partition(" ")
        found.setdefault(bare, set()).add(written)
    return found
