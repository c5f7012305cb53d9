"""Write numbers and lists for people, everywhere alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_DIGITS = 4  # significant digits
_MOST_DIGITS = 12  # of a share that is almost 1
_SMALL = 1e-4  # below it, numbers are written with an exponent


def number(value: object, *, zeros: bool = True) -> str:
    """Return a number for people: four significant digits, and whole from 10,000 on (183,100).

    Below 0.001 it has three digits: 0.000123, and 1.23e-5 below 0.0001. A share that is less than 1 never
    looks as if it were 1: 0.99996 has as many digits as that needs.

    Args:
        value: The number; anything else is written as it is.
        zeros: Whether a fraction ends in zeros where its four digits do (0.5000), as columns of numbers need.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if isinstance(value, int) or 1e4 <= abs(value) < 1e15:
        whole = f"{value:,.0f}" if isinstance(value, float) else f"{value:,}"
        return whole if abs(value) >= 1e4 else str(value)
    if _SMALL <= abs(value) < 1e-3:
        return f"{value:.3g}"
    if value != 0 and (abs(value) < _SMALL or abs(value) >= 1e15):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text, digits = f"{value:#.{_DIGITS}g}", _DIGITS
    while abs(value) < 1 <= abs(float(text)) and digits < _MOST_DIGITS:
        digits += 1
        text = f"{value:#.{digits}g}"
    return text.removesuffix(".") if zeros else text.rstrip("0").removesuffix(".")


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: `1 row`, `1,200 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Iterable[Any], limit: int = 8) -> str:
    """Join names like `a, b, c and 5 more`."""
    shown = [str(name) for name in names]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more
