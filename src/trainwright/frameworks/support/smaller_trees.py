"""Cut a tree: its weakest splits become leaves."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from trainwright.types import Array


class CutTree(NamedTuple):
    """A tree after a cut.

    Attributes:
        kept: The nodes that are left, in their old order, (kept nodes,) int64.
        left: Their left children, as numbers in `kept`, -1 for leaves, (kept nodes,) int64.
        right: Likewise the right ones.
        values: The values of all nodes before the cut, those of new leaves computed, (nodes, ...) float64.
    """

    kept: Array
    left: Array
    right: Array
    values: Array


def leaves_kept(leaves: int, share: float) -> int:
    """Return how many leaves remain of a tree's when a share of them goes: 2 or more, so that it splits."""
    return min(leaves, max(2, leaves - round(share * leaves)))


def cut_tree(left: Array, right: Array, gain: Array, cover: Array, values: Array, share: float) -> CutTree:
    """Collapse the splits of the least gain, from the bottom, until a share of the leaves is gone.

    The value of a new leaf is the mean of the leaves that it replaces, weighted by their cover.

    Args:
        left: The left child of each node, -1 for leaves, (nodes,) integers; node 0 is the root.
        right: Likewise the right one.
        gain: What each split gains, (nodes,) float64.
        cover: The weight of the training rows in each leaf, (nodes,) float64; of splits it is not read.
        values: The value of each leaf, (nodes, ...) float64; of splits it is not read.
        share: The share of leaves to drop.
    """
    left, right = np.array(left, np.int64), np.array(right, np.int64)
    cover, values = np.array(cover, np.float64), np.array(values, np.float64)
    splits = np.flatnonzero(left >= 0)
    parent = np.full(len(left), -1)
    parent[left[splits]] = parent[right[splits]] = splits

    def ends(node: int) -> bool:
        return bool(left[left[node]] < 0 and left[right[node]] < 0)

    leaves = len(splits) + 1  # among the nodes are also those that XGBoost's pruner took out
    heap = [(float(gain[node]), -node) for node in splits.tolist() if ends(node)]  # of equals the last first
    heapq.heapify(heap)
    for _ in range(leaves - leaves_kept(leaves, share)):
        node = -heapq.heappop(heap)[1]
        both = [left[node], right[node]]
        total = cover[both].sum()
        weights = cover[both] / total if total > 0 else np.array([0.5, 0.5])
        values[node] = np.tensordot(weights, values[both], axes=1)
        cover[node] = total
        left[node] = right[node] = -1
        above = int(parent[node])
        if above >= 0 and ends(above):
            heapq.heappush(heap, (float(gain[above]), -above))
    return _reached(left, right, values)


def _reached(left: Array, right: Array, values: Array) -> CutTree:
    """Return the nodes that the root still leads to, numbered anew."""
    found, stack = [], [0]
    while stack:
        node = stack.pop()
        found.append(node)
        if left[node] >= 0:
            stack += [int(left[node]), int(right[node])]
    kept = np.array(sorted(found), np.int64)
    number = np.full(len(left) + 1, -1)  # the last is that of no child, -1
    number[kept] = np.arange(len(kept))
    return CutTree(kept, number[left[kept]], number[right[kept]], values)
