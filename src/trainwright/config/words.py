"""Describe types, limits and values in plain words, and name the nearest known name."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from trainwright.config.fields import PATTERNS
from trainwright.config.tree import Node

NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
BOUNDS = (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most"))
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
LISTS = {list, tuple, set, frozenset, Sequence}
LONGEST = 60  # characters of a value that a message repeats
SHORT = 10  # names that a message lists; of a longer list it shows the nearest ones
FEW = 5


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing if no known name is near."""
    from difflib import get_close_matches

    by_lower = {other.lower(): other for other in known}
    match = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[match[0]]!r}?" if match else ""


def some(names: Sequence[str], name: str, kind: str) -> str:
    """Return names as a message lists them: all of a short list, those nearest to `name` of a long one.

    Args:
        names: The names that are allowed.
        name: The one that was given.
        kind: What `trainwright config names` calls them; empty for options that it does not list.
    """
    from difflib import get_close_matches

    if len(names) <= SHORT:
        return ", ".join(names)
    close = get_close_matches(name, names, n=FEW, cutoff=0.5)
    command = f"trainwright config {f'names {kind}' if kind else 'schema'}"
    if not close:
        return f"one of {len(names)}, which `{command}` shows"
    return f"{', '.join(close)} ... (`{command}` shows all {len(names)})"


def choice(allowed: Sequence[str], node: Node) -> str:
    """Return the message for a value that is none of the allowed ones."""
    near = nearest(node.value, allowed) if isinstance(node.value, str) else ""
    return f"expected one of {', '.join(allowed)}; got {got(node)}{near}"


def mismatch(expected: str, node: Node) -> str:
    """Return the message for a value that is not what was expected."""
    return f"expected {expected}, got {got(node)}{_hint(expected, node)}"


def got(node: Node) -> str:
    """Return the value as messages show it; of `${env:NAME}` only the name, as the value may be a secret."""
    if node.template is not None:
        return f"the value of {node.template}"
    if isinstance(node.value, dict | list):
        return "a mapping" if isinstance(node.value, dict) else f"a list of {len(node.value)}"
    if isinstance(node.value, str):
        return repr(node.value if len(node.value) <= LONGEST else node.value[: LONGEST - 3] + "...")
    return literal(node.value)


def literal(value: Any) -> str:
    """Return a plain value as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _hint(expected: str, node: Node) -> str:
    value = node.value
    if node.template is not None:
        return ""
    if isinstance(value, str):
        if "true or false" in expected and value.lower() in {"yes", "no", "on", "off", "y", "n"}:
            return " (in YAML 1.2 only true and false are booleans)"
        return " (remove the quotes)" if "number" in expected and NUMBER.fullmatch(value.strip()) else ""
    if "true or false" in expected and isinstance(value, int | float) and value in (0, 1):
        return f" (write {literal(bool(value))})"
    if "whole number" in expected and isinstance(value, float) and value.is_integer():
        return f" (write {value:.0f})"
    return (
        " (put it in quotes)" if expected.startswith("text") and isinstance(value, bool | int | float) else ""
    )


def describe(field: FieldInfo) -> str:
    """Return what a field takes: `a whole number above 0, or null`."""
    if is_tagged(None, field):
        return _tagged(field.annotation)
    return words(field.annotation, field.metadata)


def words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return a type with its limits, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = [one for given in arguments[1:] for one in getattr(given, "metadata", [given])]
        return _tagged(annotation) if is_tagged(annotation) else words(arguments[0], [*own, *metadata])
    if origin in {Union, types.UnionType}:
        options = [words(one, metadata) for one in arguments if one is not type(None)]
        return " or ".join(options) + (", or null" if type(None) in arguments else "")
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(literal(one) for one in arguments)
    pattern = _limit(metadata, "pattern")
    if pattern is not None:
        return PATTERNS.get(pattern, f"text that matches {pattern}")
    if (origin or annotation) in LISTS:
        return _list(origin, arguments, metadata)
    return (NAMES.get(annotation) or _section(annotation)) + _bounds(metadata)


def _section(annotation: Any) -> str:
    """Return "a mapping", with the keys that it must have."""
    fields = getattr(annotation, "model_fields", {})
    required = [f"`{name}`" for name, field in fields.items() if field.is_required()]
    return f"a mapping with {', '.join(required)}" if required else "a mapping"


def is_tagged(annotation: Any, field: FieldInfo | None = None) -> bool:
    """Return whether a value is of one of several sections, as its `type` says."""
    declared = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return any(getattr(one, "discriminator", None) is not None for one in (field, *declared))


def _tagged(union: Any) -> str:
    tags = ", ".join(str(tag(one)) for one in get_args(without_null(union)))
    return f"one of {tags}, or a mapping with `type`"


def without_null(annotation: Any) -> Any:
    """Return a type without `Annotated` and `| None`."""
    if get_origin(annotation) is Annotated:
        return without_null(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [one for one in get_args(annotation) if one is not type(None)]
        if len(members) == 1:
            return without_null(members[0])
    return annotation


def tag(member: Any) -> Any:
    """Return the `type` that selects a member of a tagged union."""
    field = getattr(member, "model_fields", {}).get("type")
    return None if field is None else field.default


def _list(origin: Any, arguments: tuple[Any, ...], metadata: Sequence[Any]) -> str:
    if origin is tuple and arguments and arguments[-1] is not ...:
        return f"a list of {len(arguments)}: {', '.join(words(one) for one in arguments)}"
    least, most = _limit(metadata, "min_length"), _limit(metadata, "max_length")
    if least and least == most:
        size = f" of {least}"
    elif least:
        size = f" of at least {least}"
    else:
        size = f" of at most {most}" if most else ""
    return f"a list{size}" + (f", each {words(arguments[0])}" if arguments else "")


def _bounds(metadata: Sequence[Any]) -> str:
    limits = [(word, _limit(metadata, name)) for name, word in BOUNDS]
    bounds = [
        f"{word} {limit:g}" if isinstance(limit, float) else f"{word} {limit}"
        for word, limit in limits
        if limit is not None
    ]
    return " " + " and ".join(bounds) if bounds else ""


def _limit(metadata: Sequence[Any], name: str) -> Any:
    return next(
        (limit for limit in (getattr(data, name, None) for data in metadata) if limit is not None), None
    )
