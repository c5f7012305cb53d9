"""Models of CatBoost in ONNX."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.exporters.onnx.of_catboost_categories import MISSING, add_statistics
from trainwright.exporters.onnx.trees import add_link, add_trees
from trainwright.exporters.trees import AT_MOST, MEMBER, Branch, Leaf, Tree
from trainwright.frameworks.base import Model
from trainwright.types import Array, DataInfo


def add_model(graph: Graph, model: Model, info: DataInfo, features: Value) -> Value:
    """Add a model, and return its predictions, (rows, outputs) float64.

    Raises:
        InputError: It has statistics of categories for each of several targets.
    """
    told = _told(model, info)
    scale, bias = told["scale_and_bias"]
    width = len(bias)
    reading = _Splits(told["features_info"], sum(info.input_shape))
    if "oblivious_trees" in told:
        trees = [one for tree in told["oblivious_trees"] for one in reading.oblivious(tree, width, scale)]
    else:
        trees = [one for tree in told["trees"] for one in reading.free(tree, width, scale)]
    features = graph.cast(features, TensorProto.DOUBLE)
    if told["features_info"].get("ctrs"):
        features = graph.add("Concat", features, add_statistics(graph, told, features), axis=1)
    raw = add_trees(graph, trees, width, features)
    raw = graph.add("Add", raw, graph.constant([bias], np.float64))
    return add_link(graph, raw, model.link, info)


def _told(model: Model, info: DataInfo) -> Mapping[str, Any]:
    """Return the model as CatBoost's JSON has it, with the hashes of all codes of categories."""
    native, pool = model.native, None
    if any(info.categories):
        codes = np.arange(MISSING, max(info.categories), dtype=np.float32)
        pool = pool_of(native, info, np.repeat(codes[:, None], len(info.categories), axis=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.json")
        native.save_model(str(path), format="json", pool=pool)
        told: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return told


def pool_of(native: Any, info: DataInfo, features: Array) -> Any:
    """Return rows, (rows, features) float32, as the model takes them; no category has the code `MISSING`."""
    import catboost

    categorical = [i for i, count in enumerate(info.categories) if count]
    if not categorical:
        return catboost.Pool(features, feature_names=native.feature_names_)
    import pandas as pd

    columns: dict[str, Array] = dict(zip(native.feature_names_, features.T, strict=True))
    for i in categorical:
        codes = features[:, i]
        columns[native.feature_names_[i]] = np.where(np.isnan(codes), MISSING, codes).astype(np.int64)
    return catboost.Pool(pd.DataFrame(columns), cat_features=categorical)


class _Splits:
    """The trees of a model: their splits are by numbers, by one category, or by a statistic of categories.

    Args:
        told: The features, as CatBoost's JSON has them.
        features: The number of features, after which the statistics come.
    """

    def __init__(self, told: Mapping[str, Any], features: int) -> None:
        self._floats = {one["feature_index"]: one for one in told.get("float_features", [])}
        self._categories = {one["feature_index"]: one for one in told.get("categorical_features", [])}
        self._codes = {_signed(one["hash"]): int(one["value"]) for one in told.get("cat_features_hash", [])}
        # The numbers of splits count the borders of numbers, the single categories, then the statistics.
        counts = [len(one["borders"]) for one in told.get("float_features", [])]
        counts += [len(one.get("values", [])) for one in told.get("categorical_features", [])]
        of_statistics = [features + i for i, one in enumerate(told.get("ctrs", [])) for _ in one["borders"]]
        self._statistics = dict(enumerate(of_statistics, sum(counts)))

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
        kind = split["split_type"]
        if kind == "OneHotFeature":
            feature, code = self._categories[split["cat_feature_index"]], self._codes[split["value"]]
            own = feature["flat_feature_index"]
            return Branch(MEMBER, own, 0.0, large, small, code == MISSING, [code])
        border = float(np.float32(split["border"]))
        if kind == "OnlineCtr":
            return Branch(AT_MOST, self._statistics[split["split_index"]], border, small, large, True)
        feature = self._floats[split["float_feature_index"]]
        missing_is_small = feature["nan_value_treatment"] != "AsTrue"
        return Branch(AT_MOST, feature["flat_feature_index"], border, small, large, missing_is_small)


def _signed(number: int) -> int:
    """Return 32 bits as a number with a sign."""
    return number - 2**32 if number >= 2**31 else number
