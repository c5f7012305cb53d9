"""Entities in a row of tags: B-PER begins a person, I-PER goes on with it, O is outside of any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Span = tuple[str, int, int]  # the kind, the first token, and the one after the last
_OUTSIDE = "O"


def are_tags(labels: Sequence[Any]) -> bool:
    """Return whether labels are such tags, of one kind at least."""
    others = [str(label) for label in labels if label != _OUTSIDE]
    return bool(others) and all(label[:2] in ("B-", "I-") for label in others)


def spans(tags: Sequence[str]) -> set[Span]:
    """Return the entities in a row of tags; an I- of another kind than the tag before begins one, too.

    Tjong Kim Sang and De Meulder: "Introduction to the CoNLL-2003 shared task", 2003.
    """
    found: set[Span] = set()
    kind, start = "", 0
    for i, tag in enumerate([*tags, _OUTSIDE]):
        goes_on = tag.startswith("I-") and tag[2:] == kind
        if kind and not goes_on:
            found.add((kind, start, i))
            kind = ""
        if tag != _OUTSIDE and not goes_on:
            kind, start = tag[2:], i
    return found


def f1(rows: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Return the F1 of the entities of all rows, (true, predicted) tags each; 0 where there are none."""
    true = predicted = both = 0
    for tags, answers in rows:
        one, other = spans(tags), spans(answers)
        true, predicted, both = true + len(one), predicted + len(other), both + len(one & other)
    return 2 * both / (true + predicted) if true + predicted else 0.0
