"""Cut the trees of scikit-learn's estimators."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.frameworks.support.smaller_trees import cut_tree

_FAMILIES = {"BaseForest", "BaseGradientBoosting", "BaseDecisionTree"}


def is_one_tree(estimator: Any) -> bool:
    """Return whether an estimator is a single decision tree of scikit-learn."""
    return type(estimator).__module__.startswith("sklearn.tree.") and hasattr(estimator, "tree_")


def cut_estimator(estimator: Any, share: float) -> Any:
    """Return a copy of a fitted estimator whose trees lack a share of their leaves.

    Raises:
        InputError: It holds its trees in another form.
    """
    if not _FAMILIES & {base.__name__ for base in type(estimator).__mro__}:
        raise InputError(
            f"the leaves of a {type(estimator).__name__} cannot be cut; drop rounds or trees with --prune"
        )
    made = copy.deepcopy(estimator)
    for one in [made] if is_one_tree(made) else np.ravel(made.estimators_):
        one.tree_ = _cut(one.tree_, share)
    return made


def _cut(tree: Any, share: float) -> Any:
    """Return a tree without its weakest splits: those that lower the weighted impurity the least."""
    left, right, cover = tree.children_left, tree.children_right, tree.weighted_n_node_samples
    weighted = tree.impurity * cover
    gain = weighted - np.where(left < 0, 0.0, weighted[left] + weighted[right])
    cut = cut_tree(left, right, gain, cover, tree.value, share)
    kind, (features, classes, outputs), state = tree.__reduce__()
    nodes = state["nodes"][cut.kept]
    ends = cut.left < 0
    nodes["left_child"], nodes["right_child"] = cut.left, cut.right
    nodes["feature"][ends], nodes["threshold"][ends] = -2, -2.0  # as scikit-learn marks leaves
    depth = np.zeros(len(nodes), np.int64)
    for node in np.flatnonzero(~ends):  # parents come before their children
        depth[[cut.left[node], cut.right[node]]] = depth[node] + 1
    made = kind(features, classes, outputs)
    made.__setstate__(
        {
            **state,
            "nodes": nodes,
            "values": np.ascontiguousarray(cut.values[cut.kept]),
            "node_count": len(nodes),
            "max_depth": int(depth.max()),
        }
    )
    return made
