"""Trees whose weakest splits are cut: compared with a small recursive predictor over the parent's trees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn import ensemble

import trainwright
from trainwright.cli.main import main
from trainwright.compression import measures
from trainwright.errors import GateError, InputError
from trainwright.frameworks.lightgbm.cutting import cut_text
from trainwright.frameworks.lightgbm.trees import join_model, split_model
from trainwright.frameworks.sklearn.cutting import cut_estimator
from trainwright.frameworks.xgboost.cutting import cut_json
from trainwright.runs.run import Run


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

    def scale(self, factor: float) -> None:
        self.value = None if self.value is None else self.value * factor
        for one in self.children:
            one.scale(factor)

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
        return Node(tree["leaf_value"], tree.get("leaf_weight", 0))
    feature, limit, default_left = tree["split_feature"], tree["threshold"], tree["default_left"]
    children = of_lightgbm(tree["left_child"]), of_lightgbm(tree["right_child"])

    def test(row: Any) -> bool:
        if tree["decision_type"] == "==":  # a set of categories
            return str(row[feature]).removesuffix(".0") in limit.split("||")
        missing = np.isnan(row[feature]) and tree["missing_type"] == "NaN"
        return bool(default_left if missing else np.nan_to_num(row[feature]) <= limit)

    return Node(None, 0, tree["split_gain"], test, *children)


def of_xgboost(tree: dict[str, Any], i: int = 0) -> Node:
    left, limit, feature = tree["left_children"][i], tree["split_conditions"][i], tree["split_indices"][i]
    if left < 0:
        return Node(limit, tree["sum_hessian"][i])
    children = of_xgboost(tree, left), of_xgboost(tree, tree["right_children"][i])
    found: list[int] = []
    if tree["split_type"][i]:
        k = tree["categories_nodes"].index(i)
        start = tree["categories_segments"][k]
        found = tree["categories"][start : start + tree["categories_sizes"][k]]

    def test(row: Any) -> bool:
        if np.isnan(row[feature]):
            return bool(tree["default_left"][i])
        return int(row[feature]) not in found if found else bool(np.float32(row[feature]) < np.float32(limit))

    return Node(None, 0, tree["loss_changes"][i], test, *children)


def of_sklearn(tree: Any, i: int = 0) -> Node:
    left, right, cover = tree.children_left[i], tree.children_right[i], tree.weighted_n_node_samples
    if left < 0:
        return Node(tree.value[i], cover[i])
    lost = [cover[j] * tree.impurity[j] for j in (i, left, right)]
    feature, limit, default_left = tree.feature[i], tree.threshold[i], tree.missing_go_to_left[i]

    def test(row: Any) -> bool:
        return bool(default_left if np.isnan(row[feature]) else np.float32(row[feature]) <= limit)

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


class Sums:
    """The raw scores of a model and of the cut one, (rows, outputs), and the parent's trees by output."""

    def __init__(self, scores: Any, trees: list[Node], outputs: int) -> None:
        self.before, self.after = (np.reshape(one, (-1, outputs)) for one in scores)
        self.trees, self.outputs = trees, outputs


def rows_of(classes: int) -> tuple[pd.DataFrame, Any]:
    """Return rows with missing values and a column of categories, and their targets."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame(random.normal(size=(500, 3)), columns=list("abc"))
    kinds = random.integers(0, 12, 500)
    scores = frame.a + frame.b * frame.c + np.sin(kinds * 2.0)
    frame = frame.mask(random.random(frame.shape) < 0.1)
    frame["d"] = pd.Categorical(kinds).set_categories(list(range(12)))
    frame.loc[::17, "d"] = None
    return frame, scores if classes < 2 else pd.qcut(scores, classes, labels=False)


def sums_of_lightgbm(classes: int, share: float) -> tuple[Sums, Any]:
    frame, target = rows_of(classes)
    objective = {"objective": "multiclass", "num_class": classes} if classes else {"objective": "regression"}
    settings = {"min_data_per_group": 5, "cat_smooth": 1, "verbose": -1, "num_threads": 1}
    parent = lightgbm.train({**objective, **settings}, lightgbm.Dataset(frame, target), 4)
    head, texts = split_model(parent.model_to_string())
    child = lightgbm.Booster(model_str=join_model(head, [cut_text(one, share) for one in texts]))
    trees = [of_lightgbm(one["tree_structure"]) for one in parent.dump_model()["tree_info"]]
    assert any("||" in text for text in [json.dumps(parent.dump_model())])
    raw = [one.predict(frame, raw_score=True) for one in (parent, child)]
    values = frame.assign(d=frame.d.cat.codes.astype(float).replace(-1, np.nan)).to_numpy(float)
    return Sums(raw, trees, classes or 1), values


def sums_of_xgboost(classes: int, share: float) -> tuple[Sums, Any]:
    """Several classes have sets of categories; regression has nodes that were pruned, by `exact` alone."""
    frame, target = rows_of(classes)
    several = {"objective": "multi:softprob", "num_class": classes, "tree_method": "approx"}
    settings = {"gamma": 1 if classes else 3, "max_cat_to_onehot": 1, "nthread": 1}
    rows = frame if classes else frame[list("abc")]
    matrix = xgboost.DMatrix(rows, target, enable_categorical=True)
    parent = xgboost.train(settings | (several if classes else {"tree_method": "exact"}), matrix, 4)
    raw = parent.save_raw("json")
    child = xgboost.Booster(model_file=cut_json(raw, share))
    found = json.loads(raw)["learner"]["gradient_booster"]["model"]["trees"]
    if classes:
        assert any(size > 1 for one in found for size in one["categories_sizes"])
    else:
        assert any(one["tree_param"]["num_deleted"] != "0" for one in found)
    values = frame.assign(d=frame.d.cat.codes.astype(float).replace(-1, np.nan)).to_numpy(float)
    scores = [one.predict(matrix, output_margin=True) for one in (parent, child)]
    return Sums(scores, [of_xgboost(one) for one in found], classes or 1), values


def sums_of_gradient_boosting(classes: int, share: float) -> tuple[Sums, Any]:
    frame, target = rows_of(classes)
    values = np.nan_to_num(frame[list("abc")].to_numpy(float))
    kind = ensemble.GradientBoostingClassifier if classes else ensemble.GradientBoostingRegressor
    parent = kind(n_estimators=4, max_depth=5, learning_rate=0.3, random_state=0).fit(values, target)
    child = cut_estimator(parent, share)
    trees = [of_sklearn(one.tree_) for one in np.ravel(parent.estimators_)]
    score = "decision_function" if classes else "predict"
    for node in trees:
        node.scale(0.3)
    return Sums([getattr(one, score)(values) for one in (parent, child)], trees, classes or 1), values


def sums_of_a_forest(classes: int, share: float) -> tuple[Sums, Any]:
    frame, target = rows_of(classes)
    values = frame[list("abc")].to_numpy(float)
    kind = ensemble.ExtraTreesClassifier if classes else ensemble.RandomForestRegressor
    parent = kind(n_estimators=4, min_samples_leaf=6, random_state=0).fit(values, target)
    child = cut_estimator(parent, share)
    trees = [of_sklearn(one.tree_) for one in parent.estimators_]
    for node in trees:
        node.scale(0.25)
    score = "predict_proba" if classes else "predict"
    sums = Sums([getattr(one, score)(values) for one in (parent, child)], trees, classes or 1)
    sums.outputs = 1  # all classes in each tree
    return sums, values


MAKERS = [sums_of_lightgbm, sums_of_xgboost, sums_of_gradient_boosting, sums_of_a_forest]


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_scores_change_as_the_trees_do(maker: Any, classes: int) -> None:
    """Regression and several classes, missing values, sets of categories and nodes that were pruned."""
    sums, rows = maker(classes, 0.7)
    rows = rows[:80]

    def total() -> Any:
        # (rows, trees, 1 or classes)
        values = [[np.ravel(tree.predict(row)) for tree in sums.trees] for row in rows]
        each = [np.sum([one[k :: sums.outputs] for one in values], axis=1) for k in range(sums.outputs)]
        return np.concatenate(each, axis=1)

    before = total()
    constant = sums.before[:80] - before  # the score that training starts from
    np.testing.assert_allclose(constant, np.broadcast_to(constant[0], constant.shape), atol=2e-5)
    for tree in sums.trees:
        tree.cut(0.7)
    np.testing.assert_allclose(sums.after[:80] - sums.before[:80], total() - before, atol=2e-5)
    assert np.abs(sums.after - sums.before).max() > 0.01


@pytest.mark.services
@pytest.mark.parametrize("model", ["lightgbm", "xgboost", "random_forest", "decision_tree"])
def test_weakest_splits_become_leaves(folder: Path, model: str) -> None:
    names = {"random_forest": "random_forest", "decision_tree": "sklearn.tree:DecisionTreeClassifier"}
    params = {"n_estimators": 5} if model == "random_forest" else {}
    parent = trained(folder, names.get(model, model), **params)
    child = trainwright.compress(parent, leaves=0.6)
    rows = pd.read_csv(folder / "rows.csv").head(60)
    before, after = trainwright.load(parent), trainwright.load(child)
    assert before.preparation is not None
    features = np.asarray(before.preparation.features(rows))
    found = after.predict_proba(rows)[:, 1]
    np.testing.assert_allclose(found, expected(model, before.native, features, 0.6), rtol=1e-5, atol=1e-6)
    assert np.abs(found - before.predict_proba(rows)[:, 1]).max() > 0.01
    (trees,) = child.compression["layers"]
    assert trees["after"] < 0.7 * trees["before"]
    assert trainwright.reproduce(child).verdict == "identical"
    trainwright.export(child, folder / f"{model}.onnx", "onnx")


@pytest.mark.services
def test_search_and_gate(folder: Path) -> None:
    parent = trained(folder, "lightgbm")
    child = trainwright.compress(parent, leaves=0.9, gate="val_loss <= parent + 0.01", search=True)
    assert 0 < child.manifest["compression"]["recipe"]["leaves"] <= 0.9
    with pytest.raises(GateError):
        trainwright.compress(parent, leaves=0.9, gate="val_loss <= parent - 1")


@pytest.mark.services
def test_what_cannot_be_cut_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be cut; drop rounds with --prune"):
        trainwright.compress(trained(folder, "catboost"), leaves=0.5)
    with pytest.raises(InputError, match="cannot be cut; drop rounds or trees with --prune"):
        trainwright.compress(trained(folder, "hist_gradient_boosting"), leaves=0.5)
    with pytest.raises(InputError, match="share from 0 to below 1"):
        trainwright.compress("last", runs_dir=folder / "runs", leaves=2)


def test_a_gate_that_is_not_passed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent = trained(folder, "sklearn.tree:DecisionTreeClassifier")
    words = ["compress", parent.id, "--runs-dir", str(folder / "runs"), "--leaves"]
    assert main([*words, "0.5", "--gate", "val_accuracy >= parent + 1"]) == 3
    said = capsys.readouterr()
    assert "val_accuracy >= parent + 1: not passed" in said.err
    assert "trees without 0.5 of their leaves" in said.out
    for more, message in (
        (["0.5", "--prune", "0.5"], "leaves cuts trees by itself"),
        (["0.5", "--quantize", "int8-dynamic"], "leaves cuts trees by itself"),
        (["0.5", "--structured"], "structured says how to prune"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_other_leaves_are_refused() -> None:
    with pytest.raises(InputError, match="linear models in their leaves"):
        cut_text("num_leaves=4\nis_linear=1\n", 0.5)
    frame, target = rows_of(0)
    matrix = xgboost.DMatrix(frame[["a", "b"]], np.stack([target, -target], axis=1))
    settings = {"multi_strategy": "multi_output_tree", "tree_method": "hist", "nthread": 1}
    for message, more in (("several outputs in a leaf", settings), ("no leaves", {"booster": "gblinear"})):
        with pytest.raises(InputError, match=message):
            cut_json(xgboost.train(more, matrix, 2).save_raw("json"), 0.5)


@pytest.mark.services
def test_a_network_has_no_leaves(folder: Path) -> None:
    with pytest.raises(InputError, match="for trees, and a network has none"):
        trainwright.compress(trained(folder, "mlp"), leaves=0.5)
