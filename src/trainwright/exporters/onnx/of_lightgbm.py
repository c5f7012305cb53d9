"""Boosters of LightGBM in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import TensorProto

from trainwright.errors import InputError
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.exporters.onnx.trees import AT_MOST, MEMBER, Branch, Leaf, Tree, add_link, add_trees
from trainwright.frameworks.base import Model
from trainwright.types import DataInfo

_LINKS = {"binary": "sigmoid", "multiclass": "softmax", "multiclassova": "sigmoid"}
_LINKS |= {"poisson": "exp", "gamma": "exp", "tweedie": "exp"}


def add_model(graph: Graph, model: Model, info: DataInfo, features: Value) -> Value:
    """Add a booster, and return its predictions, (rows, outputs) float64.

    Raises:
        InputError: It takes zeros for missing values.
    """
    dumped = model.native.dump_model()
    width, of_trees = dumped["num_tree_per_iteration"], dumped["tree_info"]
    trees = [_tree(one["tree_structure"], i % width) for i, one in enumerate(of_trees)]
    raw = add_trees(graph, trees, width, graph.cast(features, TensorProto.DOUBLE))
    if dumped.get("average_output"):  # a random forest
        raw = graph.add("Div", raw, graph.constant(max(1.0, len(of_trees) / width)))
    name, *options = str(dumped.get("objective", "custom")).split() or ["custom"]
    if "sqrt" in options:  # of reg_sqrt
        raw = graph.add("Mul", raw, graph.add("Abs", raw))
    for option in options:
        if option.startswith("sigmoid:"):
            raw = graph.add("Mul", raw, graph.constant(float(option[8:])))
    return add_link(graph, raw, model.link if name == "custom" else _LINKS.get(name, "identity"), info)


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
            "the booster takes zeros for missing values (zero_as_missing), which ONNX cannot express; "
            "export with --format native"
        )
    # Where training had no missing values, LightGBM takes one for 0.
    goes_left = bool(node["default_left"]) if missing == "NaN" else float(threshold) >= 0
    return Branch(AT_MOST, feature, float(threshold), left, right, goes_left)
