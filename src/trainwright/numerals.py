"""Write numbers for people, everywhere alike."""

from __future__ import annotations

import math

_DIGITS = 4  # significant digits
_MOST_DIGITS = 12  # of a share that is almost 1
_THIN_SPACE = "\u2009"


def number(value: object, *, zeros: bool = True) -> str:
    """Return a number for people: four significant digits, and from 10,000 on whole, with thin spaces.

    A share that is less than 1 never looks as if it were 1: 0.99996 has as many digits as that needs.

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
        return whole.replace(",", _THIN_SPACE) if abs(value) >= 1e4 else str(value)
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e15):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text, digits = f"{value:#.{_DIGITS}g}", _DIGITS
    while abs(value) < 1 <= abs(float(text)) and digits < _MOST_DIGITS:
        digits += 1
        text = f"{value:#.{digits}g}"
    return text.removesuffix(".") if zeros else text.rstrip("0").removesuffix(".")
