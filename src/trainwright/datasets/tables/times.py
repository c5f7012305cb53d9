"""Dates and times as people write them: 2026-01-31T12:00Z, 31/01/2026, 1/31/26 5 pm, 31 Jan 2026.

It imports nothing of ours, so that the readers of exported models hold it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

DayOrder = Literal["day first", "month first"]
FORMATS: dict[DayOrder, str] = {"day first": "%d/%m/%Y", "month first": "%m/%d/%Y"}
_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october"),
    *("november", "december"),
)
_MONTHS = {name[:3]: i + 1 for i, name in enumerate(_MONTH_NAMES)}
_CLOCK = (
    r"(?:(?:T|\s*,?\s+)(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
    r"\s*(?P<half>[ap]\.?m\.?)?\s*(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)?)?"
)
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?"
_NAME = r"(?P<name>[a-z]{3,9})\.?"
_DATE_PATTERNS = [
    re.compile(pattern + _CLOCK, re.IGNORECASE)
    for pattern in (
        r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})",
        r"(?P<first>\d{1,2})(?P<mark>[-/.])(?P<second_>\d{1,2})(?P=mark)(?P<year>\d{4}|\d\d)",
        rf"{_WEEKDAY}(?P<day>\d{{1,2}})(?:st|nd|rd|th)?[-\s]\s*{_NAME}[-,\s]\s*(?P<year>\d{{4}}|\d\d)",
        rf"{_WEEKDAY}{_NAME}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<year>\d{{4}})",
    )
]
# Times without a day. A column of these alone is a category, unless it is declared to hold dates.
_PERIODS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<year>\d{4})[-\s]?Q(?P<quarter>[1-4])",
        r"Q(?P<quarter>[1-4])[-/\s]?(?P<year>\d{4})",
        r"(?P<year>\d{4})[-\s]?W(?P<week>\d\d?)",
        r"(?P<year>\d{4})(?:-|M|-M|\sM)(?P<month>\d\d)",
        rf"(?P<year>\d{{4}})[-\s]{_NAME}",
        rf"{_NAME}[-\s](?P<year>\d{{4}})",
    )
]
_START = re.compile(r"\s*(?:\d{1,4}[-/.\s]|[A-Za-z]{3,9}\.?,?\s+\d)")


class Reading(NamedTuple):
    """The format in which the dates of a column are read.

    `order` decides dates such as 03/04/2026. `ambiguous` is one of them, if no date of the column tells the
    order; `contrary` are dates that can only be read in the other order.
    """

    order: DayOrder
    ambiguous: str | None = None
    contrary: tuple[str, ...] = ()


def may_be_time(text: str) -> bool:
    """Return whether a text begins like a date: a quick test before `read_time`."""
    return _START.match(text) is not None


def read_time(text: str, order: DayOrder = "day first") -> datetime | None:
    """Return the time that a text holds, without zone in UTC, or None if it holds none.

    A time without zone is taken as UTC. A date that is possible only in the other order is read in that one.

    Args:
        text: The cell.
        order: Whether 03/04/2026 is in April or in March.
    """
    for pattern in _DATE_PATTERNS:
        if match := pattern.fullmatch(text.strip()):
            parts = match.groupdict()
            for year, month, day in _dates(parts, order):
                try:
                    return datetime(year, month, day) + _clock(parts)
                except (ValueError, OverflowError):
                    continue
    return None


def read_period(text: str) -> datetime | None:
    """Return the first day of a quarter, month or week (1981 Q1, 1981 Jan, 1981-01, 1981 W05), or None.

    Weeks are those of ISO 8601.
    """
    for pattern in _PERIODS:
        if match := pattern.fullmatch(text.strip()):
            parts = match.groupdict()
            year = int(match["year"])
            month = int(parts.get("month") or 3 * int(parts.get("quarter") or 1) - 2)
            if (name := parts.get("name")) is not None:
                month = _month_of(name)
            try:
                week = parts.get("week")
                return datetime.fromisocalendar(year, int(week), 1) if week else datetime(year, month, 1)
            except ValueError:
                return None
    return None


def _month_of(name: str) -> int:
    """Return the number of a month by its name, 0 if it is none."""
    month = _MONTHS.get(name[:3].lower(), 0)
    return month if month and _MONTH_NAMES[month - 1].startswith(name.lower()) else 0


def _dates(parts: dict[str, str | None], order: DayOrder) -> Iterable[tuple[int, int, int]]:
    """Return the dates (year, month, day) that the parts of a text may mean, the likeliest first."""
    year = int(parts["year"] or 0)
    if len(parts["year"] or "") == 2:
        year += 2000 if year < 69 else 1900  # as POSIX reads them
    if "first" in parts:
        first, second = int(parts["first"] or 0), int(parts["second_"] or 0)
        dates = [(year, second, first), (year, first, second)]
        return dates if order == "day first" else dates[::-1]
    if "name" in parts:
        return [(year, _MONTHS.get((parts["name"] or "")[:3].lower(), 0), int(parts["day"] or 0))]
    return [(year, int(parts["month"] or 0), int(parts["day"] or 0))]


def _clock(parts: dict[str, str | None]) -> timedelta:
    """Return the time of day in UTC.

    Raises:
        ValueError: There is no such time.
    """
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    if half := (parts["half"] or "").lower():
        if not 1 <= hour <= 12:
            raise ValueError
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError
    micro = int((parts["fraction"] or "0").ljust(6, "0")[:6])
    return timedelta(hours=hour, minutes=minute, seconds=second, microseconds=micro) - _offset(parts["zone"])


def _offset(zone: str | None) -> timedelta:
    if not zone or zone[0] not in "+-":
        return timedelta()
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
    return offset if zone[0] == "+" else -offset


def reading_of(texts: Collection[str]) -> Reading:
    """Return how dates are read, judged by all cells: in the order that fits more of them.

    If both fit as many, 03/04/2026 is read month first, as its users mostly write it, and 03.04.2026 and
    03-04-2026 day first.
    """
    dates = [(text, match) for text in texts if (match := _DATE_PATTERNS[1].fullmatch(text.strip()))]
    day_first = [text for text, match in dates if int(match["second_"]) <= 12 < int(match["first"])]
    month_first = [text for text, match in dates if int(match["first"]) <= 12 < int(match["second_"])]
    if not day_first and not month_first:
        order: DayOrder = "month first" if dates and dates[0][1]["mark"] == "/" else "day first"
        differ = (text for text, match in dates if int(match["first"]) != int(match["second_"]))
        return Reading(order, next(differ, None))
    if len(day_first) >= len(month_first):
        return Reading("day first", None, tuple(month_first))
    return Reading("month first", None, tuple(day_first))


def read_format(text: str, form: str) -> datetime | None:
    """Return the time that a text holds in a format of `strptime`, without zone in UTC, or None."""
    try:
        time = datetime.strptime(text.strip(), form)
    except ValueError:
        return None
    return in_utc(time)


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC, without zone; the first and the last day of the calendar keep their own clock."""
    if time.tzinfo is None:
        return time
    try:
        return time.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        return time.replace(tzinfo=None)
