"""Detect the encoding of a text file that is not UTF-8, and the delimiter of a table."""

from __future__ import annotations

import codecs
import csv
import re
from typing import NamedTuple

UTF8 = ("utf-8", "utf8", "utf-8-sig")
MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Guess(NamedTuple):
    """The encoding of a text, and the first line that is not UTF-8; None with the mark of UTF-16."""

    encoding: str
    line: int | None = None

    def remark(self, path: str) -> str:
        """Return what a user should know of it."""
        why = "it begins with the mark of UTF-16" if self.line is None else f"line {self.line} is not UTF-8"
        return (
            f"{path}: {why}, so it is read as {self.encoding}; if texts look wrong, give data.params.encoding"
        )


def guess(text: bytes) -> Guess | None:
    """Return the encoding of a text that is not UTF-8: UTF-16 with its mark, or cp1252, as Windows writes it.

    Returns:
        None where the bytes do not tell: some are none of cp1252, or there are more characters of UTF-8 than
        errors, so that the text is damaged rather than in another encoding.
    """
    if text.startswith(MARKS):
        return Guess("utf-16")
    read = text.decode("utf-8", errors="replace")
    errors = read.count("\N{REPLACEMENT CHARACTER}")
    others = sum(not char.isascii() for char in read) - errors
    try:
        text.decode("cp1252")
    except UnicodeDecodeError:
        return None
    if errors <= others or b"\0" in text:
        return None
    return Guess("cp1252", read.count("\n", 0, read.index("\N{REPLACEMENT CHARACTER}")) + 1)


def find_delimiter(content: bytes, default: str = ",", *, most: bool = False) -> str | None:
    """Return the delimiter that finds the most columns in the first line; None if it is the default one.

    Args:
        content: A text, or the beginning of one.
        default: The delimiter that is kept if it finds two columns.
        most: Whether it is kept only if no other one finds more.
    """
    first = re.split(rb"[\r\n]", content.lstrip(b"\r\n"), maxsplit=1)[0].decode(errors="ignore")
    counts = {mark: _count(first, mark) for mark in dict.fromkeys([default, *",;\t|"])}
    best = max(counts, key=lambda mark: counts[mark])
    keeps_default = best == default or (counts[default] > 1 and not most)
    return None if keeps_default or counts[best] == 1 else best


def _count(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:  # reading the file says what is wrong
        return 1
