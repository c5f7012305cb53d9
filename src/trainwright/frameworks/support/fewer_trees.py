"""Compress models that are sums of trees: drop the last ones, or cut each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainwright.digest import WEIGHTS_FILE
from trainwright.errors import InputError
from trainwright.frameworks.base import Compressed
from trainwright.frameworks.support.stored import StoredSnapshot
from trainwright.records.compression import LayerRecord, Recipe
from trainwright.types import Array

TREES = "trees"  # the name of all of them together, where those of networks have layers


class TreeSum(NamedTuple):
    """A sum of trees.

    Attributes:
        kind: The name of the library, or of the class.
        total: The number of rounds or trees.
        first: Returns the arrays of the first so many, as they are stored.
        noun: The name of what is counted.
        cut: Returns the arrays of all trees without a share of the leaves of each; None: there is no way.
    """

    kind: str
    total: int
    first: Callable[[int], Mapping[str, Array]]
    noun: str = "rounds"
    cut: Callable[[float], Mapping[str, Array]] | None = None


def compress_trees(trees: TreeSum, recipe: Recipe, target: Path) -> Compressed:
    """Keep the first trees of a sum, or cut all of them; see `Framework.compress`.

    Raises:
        InputError: Something else is asked for.
    """
    if recipe.quantize is not None:
        raise InputError(
            f"{recipe.quantize} is for networks: thresholds of trees decide exactly; drop trees with --prune"
        )
    if recipe.structured:
        raise InputError("--structured is for channels of networks; --prune drops whole trees anyway")
    if recipe.leaves:
        if trees.cut is None:
            raise InputError(f"the leaves of {trees.kind} cannot be cut; drop {trees.noun} with --prune")
        arrays, scheme = trees.cut(recipe.leaves), f"{trees.noun} without {recipe.leaves:g} of their leaves"
    else:
        if recipe.prune and trees.total == 1:
            raise InputError("there is one tree, which --prune cannot drop; cut it with --leaves")
        kept = max(1, trees.total - round(recipe.prune * trees.total))
        arrays, scheme = trees.first(kept), f"the first {kept} of {trees.total} {trees.noun}"
    before = sum(one.nbytes for one in trees.first(trees.total).values())
    records = StoredSnapshot({WEIGHTS_FILE: arrays}).write(target)
    layer = LayerRecord(
        name=TREES,
        kind=trees.kind,
        scheme=scheme,
        before=before,
        after=sum(one.nbytes for one in arrays.values()),
    )
    return Compressed(records, [layer])
