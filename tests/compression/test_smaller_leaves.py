"""Trees whose weakest splits are cut: compared with a small recursive predictor over the parent's trees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.compression import measures
from trainwright.errors import GateError, InputError
from trainwright.runs.run import Run

pytestmark = pytest.mark.services  # several trainings, each over 10 s on a busy machine


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "peak_memory", lambda *_, **__: None)
    monkeypatch.setattr(measures, "_REPEATS", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cut")
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(600, 5)), columns=list("abcde"))
    frame["label"] = np.where(frame.a + frame.b * frame.c + random.normal(size=600) > 0.5, "yes", "no")
    frame.to_csv(folder / "rows.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def trained(folder: Path, model: str, **params: Any) -> Run:
    data = {"type": "csv", "path": "rows.csv", "target": "label"}
    training = {"training": {"epochs": 5}} if model in ("lightgbm", "xgboost", "catboost") else {}
    config = {"data": data, "model": {"type": model, "params": params}, **training}
    return trainwright.train(config, runs_dir=folder / "runs", quiet=True)


class Node:
    """A node of a tree: a leaf if it has no children."""

    def __init__(
        self, value: Any, cover: float, gain: float = 0.0, test: Any = None, *children: Node
    ) -> None:
        self.value, self.cover, self.gain, self.test, self.children = value, cover, gain, test, children

    def leaves(self) -> int:
        return sum(one.leaves() for one in self.children) if self.children else 1

    def ends(self) -> list[Node]:
        if self.children and not any(one.children for one in self.children):
            return [self]
        return [end for one in self.children for end in one.ends()]

    def cut(self, share: float) -> Node:
        for _ in range(self.leaves() - max(2, self.leaves() - round(share * self.leaves()))):
            node = min(self.ends(), key=lambda one: one.gain)
            weights = [one.cover for one in node.children]
            node.value = sum(w * one.value for w, one in zip(weights, node.children, strict=True)) / sum(
                weights
            )
            node.cover, node.children = sum(weights), ()
        return self

    def predict(self, row: Any) -> Any:
        return self.children[0 if self.test(row) else 1].predict(row) if self.children else self.value


def of_lightgbm(tree: dict[str, Any]) -> Node:
    if "leaf_value" in tree:
        return Node(tree["leaf_value"], tree["leaf_weight"])
    feature, limit = tree["split_feature"], tree["threshold"]
    children = of_lightgbm(tree["left_child"]), of_lightgbm(tree["right_child"])
    return Node(None, 0, tree["split_gain"], lambda row: row[feature] <= limit, *children)


def of_xgboost(tree: dict[str, Any], i: int = 0) -> Node:
    left, limit, feature = tree["left_children"][i], tree["split_conditions"][i], tree["split_indices"][i]
    if left < 0:
        return Node(limit, tree["sum_hessian"][i])
    children = of_xgboost(tree, left), of_xgboost(tree, tree["right_children"][i])
    test = lambda row: np.float32(row[feature]) < np.float32(limit)  # noqa: E731
    return Node(None, 0, tree["loss_changes"][i], test, *children)


def of_sklearn(tree: Any, i: int = 0) -> Node:
    left, right, cover = tree.children_left[i], tree.children_right[i], tree.weighted_n_node_samples
    if left < 0:
        return Node(tree.value[i], cover[i])
    lost = [cover[j] * tree.impurity[j] for j in (i, left, right)]
    feature, limit = tree.feature[i], tree.threshold[i]
    test = lambda row: np.float32(row[feature]) <= limit  # noqa: E731
    return Node(None, 0, lost[0] - lost[1] - lost[2], test, of_sklearn(tree, left), of_sklearn(tree, right))


def expected(kind: str, native: Any, features: Any, share: float) -> Any:
    if kind == "lightgbm":
        nodes = [of_lightgbm(one["tree_structure"]).cut(share) for one in native.dump_model()["tree_info"]]
        return 1 / (1 + np.exp([-sum(one.predict(row) for one in nodes) for row in features]))
    if kind == "xgboost":
        learner = json.loads(native.save_raw("json"))["learner"]
        base = float(learner["learner_model_param"]["base_score"].strip("[]"))
        nodes = [of_xgboost(one).cut(share) for one in learner["gradient_booster"]["model"]["trees"]]
        start = np.log(base / (1 - base))
        return 1 / (1 + np.exp([-start - sum(one.predict(row) for one in nodes) for row in features]))
    trees = [native] if hasattr(native, "tree_") else native.estimators_
    nodes = [of_sklearn(one.tree_).cut(share) for one in trees]
    return np.array([np.mean([one.predict(row)[0, 1] for one in nodes]) for row in features])


@pytest.mark.parametrize("model", ["lightgbm", "xgboost", "random_forest", "decision_tree"])
def test_weakest_splits_become_leaves(folder: Path, model: str) -> None:
    names = {"random_forest": "random_forest", "decision_tree": "sklearn.tree:DecisionTreeClassifier"}
    params = {"n_estimators": 5} if model == "random_forest" else {}
    parent = trained(folder, names.get(model, model), **params)
    child = trainwright.compress(parent, leaves=0.6)
    rows = pd.read_csv(folder / "rows.csv").head(60)
    before, after = trainwright.load(parent), trainwright.load(child)
    features = np.asarray(before.preparation.features(rows))
    found = after.predict_proba(rows)[:, 1]
    np.testing.assert_allclose(found, expected(model, before.native, features, 0.6), rtol=1e-5, atol=1e-6)
    assert np.abs(found - before.predict_proba(rows)[:, 1]).max() > 0.01
    (trees,) = child.compression["layers"]
    assert trees["after"] < 0.7 * trees["before"]
    assert trainwright.reproduce(child).verdict == "identical"
    trainwright.export(child, folder / f"{model}.onnx", "onnx")


def test_search_and_gate(folder: Path) -> None:
    parent = trained(folder, "lightgbm")
    child = trainwright.compress(parent, leaves=0.9, gate="val_loss <= parent + 0.01", search=True)
    assert 0 < child.manifest["compression"]["recipe"]["leaves"] <= 0.9
    with pytest.raises(GateError):
        trainwright.compress(parent, leaves=0.9, gate="val_loss <= parent - 1")


def test_what_cannot_be_cut_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be cut; drop rounds with --prune"):
        trainwright.compress(trained(folder, "catboost"), leaves=0.5)
    with pytest.raises(InputError, match="cannot be cut; drop rounds or trees with --prune"):
        trainwright.compress(trained(folder, "hist_gradient_boosting"), leaves=0.5)
    with pytest.raises(InputError, match="share from 0 to below 1"):
        trainwright.compress("last", runs_dir=folder / "runs", leaves=2)
