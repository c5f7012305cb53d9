"""Write plain values as YAML 1.2 text in block style, which `yaml.py` reads back to equal values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from trainwright.config.tree import join
from trainwright.config.yaml import scalar

# Text that is certain to be read back as the same text without quotes.
BARE = re.compile(r"[A-Za-z_/.][A-Za-z0-9_./-]*(:[A-Za-z_/][A-Za-z0-9_./-]*)*")


def emit(values: Mapping[str, Any], templates: Mapping[str, str] | None = None) -> str:
    """Return the text of a mapping, with the texts of `templates` instead of the values of their keys."""
    return "\n".join(_block(values, templates or {}, "", "")) + "\n"


def inline(value: Any) -> str:
    """Return the text of a plain value, a list or a mapping, in one line."""
    return _leaf(list(value) if isinstance(value, tuple) else value, {}, "")


def _block(value: Any, templates: Mapping[str, str], path: str, indent: str) -> Iterator[str]:
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, child in pairs:
        lead = f"{indent}-" if isinstance(value, list) else f"{indent}{_key(str(key))}:"
        here = join(path, key)
        if not _nested(child):
            yield f"{lead} {_leaf(child, templates, here)}"
        elif isinstance(value, list):
            first, *rest = _block(child, templates, here, indent + "  ")
            yield f"{lead} {first.lstrip()}"
            yield from rest
        else:
            yield lead
            yield from _block(child, templates, here, indent + "  ")


def _nested(value: Any) -> bool:
    """Return whether a value is written in block style: mappings are, lists of plain values are not."""
    if isinstance(value, list):
        return any(isinstance(item, dict | list) for item in value)
    return isinstance(value, Mapping) and bool(value)


def _leaf(value: Any, templates: Mapping[str, str], path: str) -> str:
    if path in templates:
        # Without quotes, a variable that holds a number is read as a number. Text needs quotes to stay text.
        return _quoted(templates[path]) if isinstance(value, str) else templates[path]
    if isinstance(value, list):
        return f"[{', '.join(_leaf(item, templates, join(path, index)) for index, item in enumerate(value))}]"
    if isinstance(value, Mapping):
        items = (
            f"{_key(str(key))}: {_leaf(item, templates, join(path, key))}" for key, item in value.items()
        )
        return f"{{{', '.join(items)}}}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return _text(value) if isinstance(value, str) else repr(value)


@lru_cache(maxsize=1024)
def _key(text: str) -> str:
    """Return the text of a key: most are those of every config."""
    return _text(text)


def _text(text: str) -> str:
    return text if BARE.fullmatch(text) and isinstance(scalar(text), str) else _quoted(text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'
