"""Models of CatBoost in ONNX."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from trainwright.errors import InputError
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.exporters.onnx.trees import AT_MOST, Branch, Leaf, Tree, add_link, add_trees
from trainwright.frameworks.base import Model
from trainwright.types import DataInfo


def add_model(graph: Graph, model: Model, info: DataInfo, features: Value) -> Value:
    """Add a model, and return its predictions, (rows, outputs) float64.

    Raises:
        InputError: It has statistics of categories, which ONNX cannot hold.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.json")
        model.native.save_model(str(path), format="json")
        told = json.loads(path.read_text(encoding="utf-8"))
    floats = told["features_info"].get("float_features", [])
    scale, bias = told["scale_and_bias"]
    width = len(bias)
    reading = _Splits(floats)
    if "oblivious_trees" in told:
        trees = [one for tree in told["oblivious_trees"] for one in reading.oblivious(tree, width, scale)]
    else:
        trees = [one for tree in told["trees"] for one in reading.free(tree, width, scale)]
    raw = add_trees(graph, trees, width, graph.cast(features, TensorProto.DOUBLE))
    raw = graph.add("Add", raw, graph.constant([bias], np.float64))
    return add_link(graph, raw, model.link, info)


class _Splits:
    """The trees of a model, whose splits are by numbers."""

    def __init__(self, floats: Sequence[Mapping[str, Any]]) -> None:
        self._floats = {one["feature_index"]: one for one in floats}

    def oblivious(self, tree: Mapping[str, Any], width: int, scale: float) -> list[Tree]:
        """Return a tree, all of whose nodes of one depth have one split, for each of the sums."""
        splits, values = tree.get("splits") or [], tree["leaf_values"]
        depth = len(splits)
        trees: list[Tree] = []
        for target in range(width):
            nodes: list[Branch | Leaf] = []
            for level, split in enumerate(reversed(splits)):
                for i in range(2**level):
                    yes = 2 ** (level + 1) - 1 + 2 * i  # where the number is small
                    nodes.append(self._branch(split, yes, yes + 1))
            nodes += [Leaf(target, scale * values[leaf * width + target]) for leaf in range(2**depth)]
            trees.append(nodes)
        return trees

    def free(self, root: Mapping[str, Any], width: int, scale: float) -> list[Tree]:
        """Return a tree of any form for each of the sums."""
        trees: list[Tree] = []
        for target in range(width):
            nodes: list[Branch | Leaf] = [Leaf(target, 0.0)]
            waiting = [(root, 0)]
            while waiting:
                node, own = waiting.pop()
                if "split" not in node:
                    value = node["value"]
                    one = value[target] if isinstance(value, list) else value
                    nodes[own] = Leaf(target, scale * one)
                    continue
                left = len(nodes)
                nodes += [Leaf(target, 0.0)] * 2
                nodes[own] = self._branch(node["split"], left, left + 1)
                waiting += [(node["left"], left), (node["right"], left + 1)]
            trees.append(nodes)
        return trees

    def _branch(self, split: Mapping[str, Any], small: int, large: int) -> Branch:
        if split["split_type"] != "FloatFeature":
            raise InputError(
                "CatBoost's statistics of categories (CTR) cannot be exported to ONNX; train with "
                "data.encode: onehot or target, or export with --format native"
            )
        feature = self._floats[split["float_feature_index"]]
        missing_is_small = feature["nan_value_treatment"] != "AsTrue"
        border = float(np.float32(split["border"]))
        return Branch(AT_MOST, feature["flat_feature_index"], border, small, large, missing_is_small)
