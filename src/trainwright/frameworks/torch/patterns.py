"""Patterns of names of parameters and modules, as the config has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from trainwright.errors import ModelError

_LISTED = 5  # names that a message lists


def matching_parameters(model: nn.Module, patterns: str | Sequence[str], key: str) -> set[str]:
    """Return the names of the parameters that patterns match: their own, or those of modules they are in.

    A parameter that has several names has the first one here, and is matched by all of them.

    Args:
        model: The module.
        patterns: One or more of shell style (`*` also matches dots).
        key: The key of the config, for messages.

    Raises:
        ModelError: A pattern matches nothing.
    """
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {name: first[id(one)] for name, one in model.named_parameters(remove_duplicate=False)}
    matched: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        own = {names[name] for name in matching(pattern, names)}
        if not own:
            raise ModelError(f"{key}: {pattern!r} matches no parameter; {nearest(pattern, names)}")
        matched |= own
    return matched


def matching_modules(model: nn.Module, patterns: Sequence[str], key: str) -> list[str]:
    """Return the names of the modules that patterns match, but for those within another one of them.

    Raises:
        ModelError: A pattern matches nothing.
    """
    names = [name for name, _ in model.named_modules() if name]
    matched: set[str] = set()
    for pattern in patterns:
        own = {name for name in names if fnmatchcase(name, pattern)}
        if not own:
            raise ModelError(f"{key}: {pattern!r} matches no module; {nearest(pattern, names)}")
        matched |= own
    return [name for name in names if name in matched and not matched & {*_levels(name)[1:]}]


def matching(pattern: str, names: Iterable[str]) -> set[str]:
    """Return the dotted names that a pattern matches, or whose module it matches."""
    return {name for name in names if any(fnmatchcase(one, pattern) for one in _levels(name))}


def _levels(name: str) -> list[str]:
    """Return a dotted name, and those of the modules that it is in, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def nearest(pattern: str, names: Iterable[str]) -> str:
    """Return the names that are nearest to a pattern, for a message."""
    known = list(names)
    near = get_close_matches(pattern.strip("*?."), known, _LISTED, 0.0)
    more = " ..." if len(known) > len(near) else ""
    return f"nearest: {', '.join(near)}{more}" if near else "the model has none"
