"""Cut the trees in the JSON of an XGBoost model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.frameworks.support.smaller_trees import cut_tree

_NODES = ("base_weights", "default_left", "loss_changes", "split_indices", "split_type", "sum_hessian")
_NO_PARENT = 2147483647  # of the root


def cut_json(raw: bytes | bytearray, share: float) -> bytearray:
    """Return the JSON of a model without a share of the leaves of each tree.

    Raises:
        InputError: It has no trees, or trees whose leaves hold vectors.
    """
    document = json.loads(raw)
    booster = document["learner"]["gradient_booster"]
    model = booster.get("gbtree", booster).get("model")  # dart has its trees one level deeper
    if model is None or "trees" not in model:
        raise InputError("a linear booster of XGBoost has no leaves")
    for tree in model["trees"]:
        _cut(tree, share)
    return bytearray(json.dumps(document).encode())


def _cut(tree: dict[str, Any], share: float) -> None:
    """Cut a tree in place."""
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise InputError("trees with several outputs in a leaf cannot be cut; drop trees with --prune")
    left, right, gain, cover, values = (
        np.array(tree[name])
        for name in ("left_children", "right_children", "loss_changes", "sum_hessian", "split_conditions")
    )
    cut = cut_tree(left, right, gain, cover, values, share)
    kept = cut.kept.tolist()
    if len(kept) == len(tree["left_children"]):
        return
    leaf = cut.left < 0
    parents = np.full(len(kept), _NO_PARENT)
    parents[cut.left[~leaf]] = parents[cut.right[~leaf]] = np.flatnonzero(~leaf)
    _cut_categories(tree, kept, leaf.tolist())
    for name in _NODES:
        tree[name] = [tree[name][i] for i in kept]
    for name in ("default_left", "loss_changes", "split_indices", "split_type"):
        tree[name] = [type(one)(0) if end else one for one, end in zip(tree[name], leaf, strict=True)]
    tree["left_children"], tree["right_children"] = cut.left.tolist(), cut.right.tolist()
    tree["parents"] = parents.tolist()
    tree["split_conditions"] = np.where(leaf, cut.values[cut.kept], values[cut.kept]).tolist()
    tree["tree_param"] |= {"num_nodes": str(len(kept)), "num_deleted": "0"}


def _cut_categories(tree: dict[str, Any], kept: list[int], leaf: list[bool]) -> None:
    """Keep the categories of the splits that are left, by their new numbers."""
    number = {old: new for new, old in enumerate(kept) if not leaf[new]}
    nodes: list[int] = []
    segments: list[int] = []
    sizes: list[int] = []
    found: list[int] = []
    columns = (tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"])
    for node, start, size in zip(*columns, strict=True):
        if node in number:
            nodes.append(number[node])
            segments.append(len(found))
            sizes.append(size)
            found += tree["categories"][start : start + size]
    tree |= {"categories_nodes": nodes, "categories_segments": segments, "categories_sizes": sizes}
    tree["categories"] = found
