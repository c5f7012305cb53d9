"""The trees of XGBoost's boosters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.exporters.trees import LESS, MEMBER, Branch, Ensemble, Leaf, Tree
from trainwright.frameworks.base import Model

_LINKS = {  # of the objectives whose outputs are not the raw values
    **dict.fromkeys(("binary:logistic", "reg:logistic"), "sigmoid"),
    **dict.fromkeys(("multi:softprob", "multi:softmax"), "softmax"),
    **dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"), "exp"),
}
_BY_FEATURES = "export with --format native"


def ensemble_of(model: Model) -> Ensemble:
    """Return the trees of a booster.

    Raises:
        InputError: It is linear, or its leaves have several values.
    """
    learner = json.loads(model.native.save_raw("json"))["learner"]
    booster, params = learner["gradient_booster"], learner["learner_model_param"]
    if booster["name"] == "gblinear":
        raise InputError(f"a linear booster (gblinear) cannot be exported; {_BY_FEATURES}")
    drops = booster.get("weight_drop")  # of dart
    trees_of = (booster["gbtree"] if drops is not None else booster)["model"]
    width = max(1, int(params["num_class"])) * max(1, int(params.get("num_target", 1)))
    if any(int(one["tree_param"].get("size_leaf_vector", 1)) > 1 for one in trees_of["trees"]):
        raise InputError(f"trees with several values a leaf cannot be exported; {_BY_FEATURES}")
    weights = drops or [1.0] * len(trees_of["trees"])
    trees = [
        _tree(tree, target, weight)
        for tree, target, weight in zip(trees_of["trees"], trees_of["tree_info"], weights, strict=True)
    ]
    name = learner["objective"]["name"]
    link = _LINKS.get(name, "identity") if model.link == "identity" else model.link
    return Ensemble(trees, width, link, _base(params["base_score"], link))


def _base(text: str, link: str) -> Any:
    """Return the raw values with which sums begin, (width,) or (1,): files hold them after the link."""
    given = np.atleast_1d(np.array(json.loads(text), np.float64))
    if link == "sigmoid":
        return np.log(given) - np.log1p(-given)
    return np.log(given) if link == "exp" else given


def _tree(tree: Mapping[str, Any], target: int, weight: float) -> Tree:
    """Return a tree, whose leaves are multiplied by a weight."""
    categories = _categories(tree)
    nodes: list[Branch | Leaf] = []
    for i, (left, right) in enumerate(zip(tree["left_children"], tree["right_children"], strict=True)):
        value = float(np.float32(tree["split_conditions"][i]))
        feature, missing_left = tree["split_indices"][i], bool(tree["default_left"][i])
        if left == -1:
            nodes.append(Leaf(target, weight * value))
        elif i in categories:  # these go to the right
            nodes.append(Branch(MEMBER, feature, 0.0, right, left, not missing_left, categories[i]))
        else:
            nodes.append(Branch(LESS, feature, value, left, right, missing_left))
    return nodes


def _categories(tree: Mapping[str, Any]) -> Mapping[int, Sequence[int]]:
    """Return the categories that go to the right, by the node that asks for them."""
    starts, sizes = tree.get("categories_segments", []), tree.get("categories_sizes", [])
    nodes, every = tree.get("categories_nodes", []), tree.get("categories", [])
    return {node: every[start : start + size] for node, start, size in zip(nodes, starts, sizes, strict=True)}
