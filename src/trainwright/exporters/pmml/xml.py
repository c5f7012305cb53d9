"""Elements of PMML, whose numbers are written so that they are read back exactly."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np

from trainwright.errors import InputError

Element = ElementTree.Element
_IMPOSSIBLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(tag: str, *children: Element | None, **attributes: Any) -> Element:
    """Return an element; children and attributes that are None are left out, `kind_` means `kind`."""
    made = Element(tag, {k.rstrip("_"): text(v) for k, v in attributes.items() if v is not None})
    made.extend([one for one in children if one is not None])
    return made


def text(value: Any) -> str:
    """Return a value as PMML writes it.

    Raises:
        InputError: XML or PMML has no way to write it.
    """
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            raise InputError(f"the model has the number {value}, which PMML cannot hold; {NEAREST}")
        return repr(float(value))
    written = str(value)
    if _IMPOSSIBLE.search(written):
        raise InputError(f"the text {written!r} has a character that XML cannot hold; {NEAREST}")
    return written


def apply(function: str, *arguments: Element, **attributes: Any) -> Element:
    """Return a call of one of PMML's functions."""
    return element("Apply", *arguments, function=function, **attributes)


def constant(value: float | int) -> Element:
    """Return a number as an expression, of double or integer."""
    made = element("Constant", dataType="integer" if isinstance(value, int) else "double")
    made.text = text(value)
    return made


def field(name: str) -> Element:
    """Return the value of a field as an expression."""
    return element("FieldRef", field=name)


def derived(name: str, expression: Element, dtype: str = "double") -> Element:
    """Return a field whose value is an expression."""
    return element("DerivedField", expression, name=name, optype="continuous", dataType=dtype)


def mapped(name: str, rows: Iterable[tuple[Any, float]], **attributes: Any) -> Element:
    """Return the number that a table has for the value of a field.

    Args:
        name: The field.
        rows: The table: values of the field, and the number of each.
        attributes: `defaultValue` of values that the table lacks, and `mapMissingTo`.
    """
    table = element("InlineTable")
    for value, number in rows:
        row = element("row", element("input"), element("output"))
        row[0].text, row[1].text = text(value), text(float(number))
        table.append(row)
    pair = element("FieldColumnPair", field=name, column="input")
    return element("MapValues", pair, table, outputColumn="output", dataType="double", **attributes)


def schema(fields: Sequence[Element | str], target: str | None = None) -> Element:
    """Return the fields that a model takes, and its target."""
    own = None if target is None else element("MiningField", name=target, usageType="target")
    given = [one if isinstance(one, Element) else element("MiningField", name=one) for one in fields]
    return element("MiningSchema", own, *given)


NEAREST = "export with --format onnx"
