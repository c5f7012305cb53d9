"""Baselines, the description of the data, and where rows come from: against scikit-learn and formulas."""

import numpy as np
import pytest

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, Identifiers
from trainwright.datasets.samples.arrays import Arrays
from trainwright.evaluation.baselines import compared, fitted, kept_evaluations
from trainwright.evaluation.linear import LinearModel
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.profile import profile
from trainwright.evaluation.tables import with_origin
from trainwright.tasks.support import ranking
from trainwright.tasks.support.links import softmax
from trainwright.types import DataInfo, Predictions, features_spec


def drawn(rows: int = 600):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 3)) * [1, 10, 0.1] + [0, 50, 0]
    targets = rng.choice(3, rows, p=[0.5, 0.3, 0.2])
    features[:, 0] += targets
    return features, targets


def test_the_linear_model_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.linear_model")
    features, targets = drawn()
    own = LinearModel(features, np.eye(3)[targets], softmax).predict(features)
    other = sklearn.LogisticRegression(C=1000, max_iter=5000).fit(
        (features - features.mean(0)) / features.std(0), targets
    )
    expected = other.predict_proba((features - features.mean(0)) / features.std(0))
    np.testing.assert_allclose(own, expected, atol=0.02)
    line = LinearModel(features, features @ [[1.0], [2.0], [3.0]] + 4).predict(features)
    np.testing.assert_allclose(line, features @ [[1.0], [2.0], [3.0]] + 4, rtol=1e-3, atol=0.1)


def test_gains_are_means_over_the_rows():
    features, targets = drawn()
    info = DataInfo("classification", features_spec((3,)), 3, ["a", "b", "c"])
    split = Arrays({"features": features.astype(np.float32), "target": targets})
    data = DataBundle(info, {"train": split, "test": split})
    outputs = np.eye(3, dtype=np.float32)[targets]
    part = Predictions(np.arange(600), outputs, targets, 0.0)
    result = evaluate_predictions([part], ["accuracy"], info, "test")
    made = compared(fitted(data), result, split, info)
    assert made is not None
    constant = made["baselines"][0]
    assert constant["words"] == "always answering “a”, the most frequent class"
    share = float((targets == 0).mean())
    assert constant["metrics"]["test_accuracy"] == pytest.approx(share)
    gain = constant["gains"]["accuracy"]
    assert gain["mean"] == pytest.approx(1 - share)
    assert gain["error"] == pytest.approx((targets != 0).std(ddof=1) / 600**0.5)


def test_baselines_are_evaluated_again_where_the_evaluation_is_of_something_else():
    """A study keeps their evaluations for its other trials."""
    features, targets = drawn()
    info = DataInfo("classification", features_spec((3,)), 3, ["a", "b", "c"])
    split = Arrays({"features": features.astype(np.float32), "target": targets})
    data = DataBundle(info, {"train": split, "test": split})
    known, rng = data.once(kept_evaluations), np.random.default_rng(2)
    asked: list[int] = []

    def result(rows=slice(None), metrics=("accuracy",), weights=None, dtype=np.float32):
        ids = np.arange(600)[rows]
        outputs = rng.dirichlet(np.ones(3), len(ids)).astype(dtype)
        part = Predictions(ids, outputs, targets[rows], 0.0, weights=weights)
        return evaluate_predictions([part], metrics, info, "test")

    baselines = [
        one._replace(outputs=lambda rows, own, one=one: (asked.append(0), one.outputs(rows, own))[1])
        for one in fitted(data)
    ]
    others = [
        result(slice(5, None)),
        result(slice(-1, None, -1)),
        result(metrics=["f1"]),
        result(weights=rng.random(600)),
        result(dtype=np.float64),
    ]
    for one in [result(), result(), *others, result()]:
        assert compared(baselines, one, split, info, known) == compared(fitted(data), one, split, info)
    assert len(asked) == 2 * 7, "the second result is of the same rows as the first"


def test_curves_end_where_they_must_and_areas_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    positive = rng.random(500) < 0.3
    probability = np.clip(0.3 + 0.4 * positive + 0.3 * rng.normal(size=500), 0, 1).round(2)
    answers = ranking.Answers("yes", positive, probability)
    roc, precision, calibration, lift = ranking.figures([answers])
    weighted = ranking.figures([answers._replace(weights=np.ones(500))])
    assert [one["lines"] for one in weighted] == [one["lines"] for one in (roc, precision, calibration, lift)]
    (line,) = roc["lines"]
    assert precision["lines"][0]["name"] == (
        f"yes: {metrics.average_precision_score(positive, probability):.3f}"
    )
    assert line["name"] == f"yes: {metrics.roc_auc_score(positive, probability):.3f}"
    assert (line["x"][0], line["y"][0], line["x"][-1], line["y"][-1]) == (0, 0, 1, 1)
    area = np.trapezoid(line["y"], line["x"])
    assert area == pytest.approx(metrics.roc_auc_score(positive, probability), abs=1e-3)
    assert precision["lines"][0]["y"][-1] == pytest.approx(positive.mean(), abs=1e-4)
    assert len(calibration["lines"][0]["x"]) == 10
    assert lift["lines"][0]["y"][-1] == 1
    table = ranking.thresholds(answers)
    assert table is not None
    at = table["threshold"].index(0.7)
    assert table["tp"][at] == (positive & (probability >= 0.7)).sum()
    assert table["fp"][at] == (~positive & (probability >= 0.7)).sum()


def test_the_data_are_described_in_their_original_units():
    features, targets = drawn(1500)
    info = DataInfo("classification", features_spec((3,)), 3, ["a", "b", "c"], ["x", "weight", "z"])
    parts = {"train": slice(0, 900), "val": slice(900, 1200), "test": slice(1200, 1500)}
    features[parts["test"], 1] += 30
    splits = {
        name: Arrays({"features": features[part].astype(np.float32), "target": targets[part]})
        for name, part in parts.items()
    }
    made = profile(DataBundle(info, splits))
    assert made is not None
    first = made["columns"][0]
    assert first["name"] == "weight"
    assert 20 < first["edges"][0] < 40
    assert {name: sum(counts) for name, counts in first["counts"].items()} == {
        "train": 900,
        "val": 300,
        "test": 300,
    }
    ks = max(abs((features[:900, 1] <= v).mean() - (features[1200:, 1] <= v).mean()) for v in features[:, 1])
    assert first["shift"] == {"val": 0.0, "test": pytest.approx(ks, abs=2e-3)}
    assert made["adversarial"]["test"]["auc"] > 0.9
    assert abs(made["adversarial"]["val"]["auc"] - 0.5) < 4 * made["adversarial"]["val"]["error"]
    assert made["target"]["counts"]["train"] == [int((targets[:900] == i).sum()) for i in range(3)]


def test_rows_are_named_as_in_the_file():
    info = DataInfo("regression", features_spec((1,)), 1)
    ids = {"test": Identifiers("key", np.array(["k7", "k9"], object))}
    table = {"worst": [{"row": 1, "error": 2.0}]}
    config = DataConfig(type="csv", path="https://ada:hunter2@host/rows.csv", target="y")
    data = DataBundle(info, {}, rows={"test": np.array([6, 8])}, identifiers=ids)
    made = with_origin(table, data, config, "test")
    assert made["worst"] == [{"row": 1, "error": 2.0, "number": 9, "id": "k9"}]
    assert made["origin"]["id"] == "key"
    assert "hunter2" not in made["origin"]["file"]
    own = DataConfig(type="csv", train_path="a.csv", test_path="b.csv", target="y")
    assert with_origin(table, DataBundle(info, {}), own, "test")["worst"][0]["number"] == 2
    unknown = with_origin(table, DataBundle(info, {}), None, "test")
    assert unknown["worst"] == table["worst"]
