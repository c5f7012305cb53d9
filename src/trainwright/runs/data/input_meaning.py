"""The meaning that a model's inputs and outputs have, for which its weights stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwright.datasets.base import DataBundle
from trainwright.datasets.tables.encoders.categories import CategoryColumn
from trainwright.records.data import DataDescription

_ENCODING = ("kind", "onehot", "native")
_NAMED = 8  # values


def other_meaning(before: DataDescription, now: DataBundle, *, with_classes: bool = True) -> str | None:
    """Return why weights that were learned on other data do not fit these; None if they may.

    A feature of codes has the same name whatever its categories are, and a class has no name in the weights.
    Classes are compared if `with_classes`.
    """
    return next(_differences(before, now, with_classes=with_classes), None)


def _differences(before: DataDescription, now: DataBundle, *, with_classes: bool) -> Iterator[str]:
    plain = None if now.preparation is None else now.preparation.to_json()
    columns = [_columns(one) for one in (before.preparation, plain)]
    for name in columns[0].keys() & columns[1].keys():
        first, second = (of[name] for of in columns)
        if any(first.get(key) != second.get(key) for key in _ENCODING):
            yield f"column {name!r} becomes other features than there"
        elif first["kind"] == CategoryColumn.kind and first["categories"] != second["categories"]:
            others = _others(first["categories"], second["categories"])
            yield f"the categories of column {name!r} differ{others}"
    info = now.info.to_json()
    names = [("feature_names", "features"), *([("classes", "classes")] if with_classes else [])]
    for key, said in names:
        known, there = before.info.get(key) or [], info[key] or []
        if known and there and known != there:
            yield f"the {said} differ{_others(known, there)}"


def _columns(preparation: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    return {one["name"]: one for one in (preparation or {}).get("columns", ())}


def _others(before: Sequence[Any], now: Sequence[Any]) -> str:
    """Return what two lists do not share, in words."""
    known, there = set(before), set(now)
    found = {
        "new": [one for one in now if one not in known],
        "gone": [one for one in before if one not in there],
    }
    texts = [
        f"{name}: {', '.join(map(repr, values[:_NAMED]))}{', ...' if len(values) > _NAMED else ''}"
        for name, values in found.items()
        if values
    ]
    return f" ({'; '.join(texts)})" if texts else " in their order"
