"""The trees of LightGBM's boosters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwright.errors import InputError
from trainwright.exporters.trees import AT_MOST, MEMBER, Branch, Ensemble, Leaf, Tree
from trainwright.frameworks.base import Model

_LINKS = {"binary": "sigmoid", "multiclass": "softmax", "multiclassova": "sigmoid"}
_LINKS |= {"poisson": "exp", "gamma": "exp", "tweedie": "exp"}


def ensemble_of(model: Model) -> Ensemble:
    """Return the trees of a booster.

    Raises:
        InputError: It takes zeros for missing values.
    """
    dumped = model.native.dump_model()
    width, of_trees = dumped["num_tree_per_iteration"], dumped["tree_info"]
    name, *options = str(dumped.get("objective", "custom")).split() or ["custom"]
    factors = [float(option[8:]) for option in options if option.startswith("sigmoid:")]
    return Ensemble(
        [_tree(one["tree_structure"], i % width) for i, one in enumerate(of_trees)],
        width,
        model.link if name == "custom" else _LINKS.get(name, "identity"),
        divisor=max(1.0, len(of_trees) / width) if dumped.get("average_output") else 1.0,  # a random forest
        squares="sqrt" in options,  # of reg_sqrt
        factor=factors[0] if factors else 1.0,
    )


def _tree(root: Mapping[str, Any], target: int) -> Tree:
    """Return a tree whose nodes are numbered as they are met."""
    nodes: list[Branch | Leaf] = [Leaf(target, 0.0)]
    waiting = [(root, 0)]
    while waiting:
        node, own = waiting.pop()
        if "left_child" not in node:
            nodes[own] = Leaf(target, float(node["leaf_value"]))
            continue
        left, right = len(nodes), len(nodes) + 1
        nodes += [Leaf(target, 0.0)] * 2  # until they are met
        nodes[own] = _branch(node, left, right)
        waiting += [(node["left_child"], left), (node["right_child"], right)]
    return nodes


def _branch(node: Mapping[str, Any], left: int, right: int) -> Branch:
    feature, threshold, missing = node["split_feature"], node["threshold"], node["missing_type"]
    if node["decision_type"] == "==":
        categories = [int(one) for one in str(threshold).split("||")]
        return Branch(MEMBER, feature, 0.0, left, right, missing_is_yes=False, categories=categories)
    if missing == "Zero":
        raise InputError(
            "the booster takes zeros for missing values (zero_as_missing), which no exported tree can; "
            "export with --format native"
        )
    # Where training had no missing values, LightGBM takes one for 0.
    goes_left = bool(node["default_left"]) if missing == "NaN" else float(threshold) >= 0
    return Branch(AT_MOST, feature, float(threshold), left, right, goes_left)
