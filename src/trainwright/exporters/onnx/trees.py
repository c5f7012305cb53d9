"""Sums of trees as one node of ONNX, with the decisions and sums of the libraries' own float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from trainwright.exporters.base import names_classes
from trainwright.exporters.onnx.graph import ML, Graph, Value
from trainwright.exporters.trees import AT_MOST, MEMBER, Branch, Ensemble, Leaf, Tree
from trainwright.types import DataInfo

if TYPE_CHECKING:
    from trainwright.exporters.trees.sklearn import Fitted

_SUM = 1


def add_ensemble(graph: Graph, ensemble: Ensemble, info: DataInfo, features: Value) -> Value:
    """Add trees and what is made of their sums, and return the predictions, (rows, outputs) float64."""
    raw = add_trees(graph, ensemble.trees, ensemble.width, graph.cast(features, TensorProto.DOUBLE))
    if ensemble.divisor != 1:
        raw = graph.add("Div", raw, graph.constant(ensemble.divisor))
    if ensemble.base is not None:
        raw = graph.add("Add", raw, graph.constant(ensemble.base[None], np.float64))
    if ensemble.squares:
        raw = graph.add("Mul", raw, graph.add("Abs", raw))
    if ensemble.factor != 1:
        raw = graph.add("Mul", raw, graph.constant(ensemble.factor))
    return add_link(graph, raw, ensemble.link, info)


def add_trees(graph: Graph, trees: Sequence[Tree], width: int, features: Value) -> Value:
    """Add trees to a graph, and return their sums, (rows, width) float64, of features of float64."""
    graph.require(ML, 5)
    nodes: dict[str, list[int]] = {
        name: []
        for name in (
            *("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs"),
            "missing_value_tracks_true",
        )
    }
    modes: list[int] = []
    splits: list[float] = []
    members: list[float] = []
    leaves: list[Leaf] = []
    roots: list[int] = []
    for tree in trees:
        # A tree of one leaf becomes a comparison with two such leaves.
        whole = tree if isinstance(tree[0], Branch) else [Branch(AT_MOST, 0, 0.0, 1, 1, True), tree[0]]
        places: dict[int, int] = {}
        branches = [i for i, node in enumerate(whole) if isinstance(node, Branch)]
        roots.append(len(modes))
        places |= {own: len(modes) + i for i, own in enumerate(branches)}
        for own, node in enumerate(whole):
            if isinstance(node, Leaf):
                places[own] = len(leaves)
                leaves.append(node)
        for own in branches:
            node = whole[own]
            assert isinstance(node, Branch)
            modes.append(node.mode)
            splits.append(node.value)
            if node.mode == MEMBER:
                members += [*map(float, node.categories), np.nan]
            nodes["featureids"].append(node.feature)
            nodes["missing_value_tracks_true"].append(int(node.missing_is_yes))
            for side, child in (("true", node.yes), ("false", node.no)):
                nodes[f"{side}nodeids"].append(places[child])
                nodes[f"{side}leafs"].append(int(isinstance(whole[child], Leaf)))
    sets = {"membership_values": _doubles("members", members)} if members else {}
    return graph.ml(
        "TreeEnsemble",
        features,
        aggregate_function=_SUM,
        n_targets=width,
        post_transform=0,
        tree_roots=roots,
        nodes_modes=helper.make_tensor("modes", TensorProto.UINT8, [len(modes)], modes),
        nodes_splits=_doubles("splits", splits),
        leaf_targetids=[leaf.target for leaf in leaves],
        leaf_weights=_doubles("weights", [leaf.value for leaf in leaves]),
        **{f"nodes_{name}": numbers for name, numbers in nodes.items()},
        **sets,
    )


def add_averaged_trees(graph: Graph, trees: Sequence[Fitted], features: Value) -> Value:
    """Add trees of scikit-learn, and return the mean of what their leaves hold, (rows, values) float32.

    Args:
        graph: The graph.
        trees: The trees; their leaves have one value or the shares of classes.
        features: (rows, features) float32.
    """
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    nodes: dict[str, list[int]] = {name: [] for name in names}
    leaves: dict[str, list[int]] = {name: [] for name in ("treeids", "nodeids", "ids")}
    modes: list[str] = []
    thresholds: list[float] = []
    weights: list[float] = []
    width = trees[0].values.shape[1]
    for number, tree in enumerate(trees):
        for i, node in enumerate(tree.nodes):
            if isinstance(node, Branch):
                own = (number, i, node.feature, node.yes, node.no, int(node.missing_is_yes))
            else:
                own = (number, i, 0, 0, 0, 0)
                leaves["treeids"] += [number] * width
                leaves["nodeids"] += [i] * width
                leaves["ids"] += range(width)
                weights += (tree.values[i] / len(trees)).tolist()
            for name, entry in zip(names, own, strict=True):
                nodes[name].append(entry)
            modes.append("BRANCH_LEQ" if isinstance(node, Branch) else "LEAF")
            thresholds.append(node.value if isinstance(node, Branch) else 0.0)
    return graph.ml(
        "TreeEnsembleRegressor",
        graph.cast(features, TensorProto.DOUBLE),
        n_targets=width,
        aggregate_function="SUM",
        post_transform="NONE",
        nodes_modes=modes,
        nodes_values_as_tensor=_doubles("values", thresholds),
        target_weights_as_tensor=_doubles("weights", weights),
        **{f"nodes_{name}": numbers for name, numbers in nodes.items()},
        **{f"target_{name}": numbers for name, numbers in leaves.items()},
    )


def add_link(graph: Graph, raw: Value, link: str, info: DataInfo) -> Value:
    """Return what a link makes of raw values, (rows, width) float64: identity, exp, sigmoid or softmax.

    They are probabilities of classes, (rows, classes), or of labels, or values.
    """
    nodes = {"exp": "Exp", "sigmoid": "Sigmoid", "softmax": "Softmax"}
    attributes: dict[str, Any] = {"axis": 1} if link == "softmax" else {}
    linked = graph.add(nodes[link], raw, **attributes) if link in nodes else raw
    if not names_classes(info) or link == "softmax":
        return linked
    if info.outputs == 2:
        return graph.add("Concat", graph.add("Sub", graph.constant(1.0), linked), linked, axis=1)
    sums = graph.add("ReduceSum", linked, graph.constant([1], np.int64), keepdims=1)
    return graph.add("Div", linked, graph.add("Max", sums, graph.constant(1e-15)))


def _doubles(name: str, values: Sequence[float]) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], np.asarray(values, np.float64))
