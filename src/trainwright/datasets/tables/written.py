"""Numbers as people write them: $60,425, 60.425 EUR, 12 %, 1.234,5, (12).

It imports nothing of ours, so that the readers of exported models hold it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

# fmt: off
MISSING_WORDS = {  # in lower case
    "?", "??", "-", "--", "---", ".", "..", "...", "…", "–", "—", "*", "#", "/", "n/a", "n.a.", "na", "n/d",
    "nd", "nan", "none", "null", "nil", "unknown", "unk", "missing", "blank", "empty", "tbd", "#n/a", "#na",
    "#value!", "#div/0!", "#ref!", "#null!", "<na>", "<null>", "(null)", "\\n", "not available",
    "not applicable", "not known", "no data", "no answer",
}
# fmt: on
BOOLEANS = {"true": True, "yes": True, "y": True, "t": True, "ja": True, "j": True}
BOOLEANS |= {"false": False, "no": False, "n": False, "f": False, "nein": False}
_CURRENCIES = (
    r"(?:[A-Z]{1,2})?[$€£¥₹₽₩₪₺฿₫₴₦₱]|USD|EUR|GBP|JPY|CHF|CAD|AUD|NZD|CNY|RMB|INR|SEK|NOK|DKK|ISK|PLN|CZK|HUF|RON|"
    r"BRL|MXN|ZAR|TRY|RUB|UAH|ILS|KRW|SGD|HKD|THB|IDR|MYR|PHP|TWD|VND|AED|SAR|EGP|NGN|kr\.?|zł|Fr\.?"
)
_SPACES = " \u00a0\u2009\u202f'’"


def _pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    separators = re.escape(thousands) + _SPACES
    groups = rf"[1-9]\d{{0,2}}(?P<separator>[{separators}])\d{{3}}(?:(?P=separator)\d{{3}})*"
    indian = r"|[1-9]\d?(?:,\d\d)+,\d{3}" if thousands == "," else ""
    return re.compile(
        rf"(?P<open>\()?\s*(?P<sign>[+\-−])?\s*(?P<before>{_CURRENCIES})?\s*(?P<inner>[+\-−])?\s*"
        rf"(?P<whole>{groups}{indian}|\d*)(?:{re.escape(decimal)}(?P<part>\d*))?(?P<power>[eE][+-]?\d+)?"
        rf"\s*(?P<after>{_CURRENCIES}|%)?\s*(?P<close>\))?"
    )


_NUMBER_PATTERNS = {".": _pattern(",", "."), ",": _pattern(".", ",")}
_UNIT = re.compile(r"(?P<number>.*\d[.,]?)\s*(?P<unit>[^\W\d_°]\D{0,15}|[°'\"]\D{0,3})", re.DOTALL)
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|infinity)", re.IGNORECASE)


class Number(NamedTuple):
    """A number as a cell holds it; `unit` is its currency or %, empty for none."""

    value: float
    unit: str = ""


class Writing(NamedTuple):
    """The notation of the numbers of a column.

    `decimal` is the decimal mark. `ambiguous`: a cell that another mark would read as another number, if all
    cells can be read by both.
    """

    decimal: str
    ambiguous: str | None = None


def read_number(text: str, decimal: str = ".") -> Number | None:
    """Return the number that a text holds, to the nearest float64, or None if it holds no number.

    A percentage is the number before its sign; a number in parentheses is negative, as in accounts.

    Args:
        text: The cell.
        decimal: The decimal mark, `.` or `,`; the other one groups thousands.
    """
    text = text.strip()
    if decimal == "." and _PLAIN.fullmatch(text):
        return Number(float(text))
    if (match := _NUMBER_PATTERNS[decimal].fullmatch(text)) is None:
        return None
    whole = re.sub(r"\D", "", match["whole"])
    part, signs = match["part"] or "", [sign for sign in (match["sign"], match["inner"]) if sign]
    in_parentheses = match["open"] is not None
    if not (whole or part) or in_parentheses != (match["close"] is not None) or len(signs) > 1:
        return None
    if (match["before"] and match["after"]) or (in_parentheses and signs):
        return None
    value = float(f"{whole or '0'}.{part or '0'}{match['power'] or ''}")
    negative = in_parentheses or signs[:1] not in ([], ["+"])
    return Number(-value if negative else value, (match["before"] or match["after"] or "").rstrip("."))


def _parts(text: str) -> tuple[str, str]:
    """Return a number and the unit after it, `rooms` as `room`; no unit where there is none."""
    if (match := _UNIT.fullmatch(text.strip())) is None:
        return text, ""
    unit = match["unit"]
    return match["number"], unit.removesuffix("s") if len(unit) > 2 else unit


def without_unit(text: str, unit: str) -> str:
    """Return a text without the unit at its end; the text itself if it ends in no such unit."""
    number, its = _parts(text)
    return number if its == unit else text


def unit_of(texts: Collection[str]) -> str | None:
    """Return the unit after numbers, as in `120 m²`; None for none, for several, or among other texts."""
    units = set()
    for text in texts:
        number, unit = _parts(text)
        if read_number(text) is None and read_number(text, ",") is None:
            if not unit or (read_number(number) is None and read_number(number, ",") is None):
                return None
            units.add(unit)
            if len(units) > 1:
                return None
    return units.pop() if units else None


def is_missing_word(text: str) -> bool:
    """Return whether a text such as `?` or `n/a` says that a number or a time is not known."""
    return text.strip().casefold() in MISSING_WORDS or not text.strip()


def writing_of(texts: Collection[str]) -> Writing:
    """Return how numbers are written, judged by all cells: by the mark that reads more of them.

    If both read as many, the mark is a point.
    """
    points, commas = ({text: read_number(text, mark) for text in texts} for mark in (".", ","))
    by_point, by_comma = (
        sum(number is not None for number in numbers.values()) for numbers in (points, commas)
    )
    if by_comma > by_point:
        return Writing(",")
    both = (text for text in texts if points[text] is not None and points[text] != commas[text])
    return Writing(".", next(both, None) if by_comma == by_point else None)
