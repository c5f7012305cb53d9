"""The trees of boosters and forests, read from each library's own form, for formats that hold trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainwright.types import Array

AT_MOST, LESS, MEMBER = 0, 1, 6  # comparisons, by ONNX's codes


class Branch(NamedTuple):
    """A node that goes to `yes` if a comparison is true, or the feature is missing and `missing_is_yes`.

    Its children are numbers of nodes of the same tree. `categories` are those of the comparison `MEMBER`.
    """

    mode: int
    feature: int
    value: float
    yes: int
    no: int
    missing_is_yes: bool
    categories: Sequence[int] = ()


class Leaf(NamedTuple):
    """A leaf that adds a value to a sum."""

    target: int
    value: float


Tree = Sequence[Branch | Leaf]  # by number; the first is the root


class Ensemble(NamedTuple):
    """Trees, and what is made of their sums.

    With s = sum / divisor + base, a model predicts link(factor * s), or link(factor * s * |s|) where it
    `squares`.
    """

    trees: Sequence[Tree]
    width: int  # sums
    link: str  # identity, exp, sigmoid or softmax
    base: Array | None = None  # (width,) or (1,) float64
    divisor: float = 1.0
    squares: bool = False
    factor: float = 1.0
