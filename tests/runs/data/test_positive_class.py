"""The positive class of runs: resolved when they begin, recorded, and used by all that follows."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import sklearn.metrics as sk

import trainwright
from trainwright.errors import ConfigError, InputError, ModelError
from trainwright.reports.card import write_card

ROWS = 600


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory):
    """A table of loans, of which one in ten goes bad."""
    rng = np.random.default_rng(1)
    income, age = rng.normal(size=(2, ROWS)).round(3)
    risk = np.where(income + 0.5 * age + rng.normal(size=ROWS) * 0.6 > 1.7, "worse", "fine")
    path = tmp_path_factory.mktemp("credit") / "credit.csv"
    lines = [f"{a},{b},{c}" for a, b, c in zip(income, age, risk, strict=True)]
    path.write_text("\n".join(["income,age,risk", *lines]))
    return path


def config(path, **sections):
    return {
        "data": {"path": str(path), "target": "risk", "split": {"val": 0.2, "test": 0.3}},
        "model": {"type": "LogisticRegression", "params": {"C": 1.0}},
        "evaluation": {"metrics": ["f1", "precision", "recall", "average_precision", "roc_auc", "brier"]},
        **sections,
    }


def evaluation(**more):
    return {"evaluation": {"metrics": ["f1", "average_precision"], **more}}


@pytest.fixture(scope="module")
def run(credit, tmp_path_factory):
    return trainwright.train(config(credit), runs_dir=tmp_path_factory.mktemp("runs"))


def of_rows(run, label, credit):
    """Predict the whole table, and return what scikit-learn says of one class."""
    import pandas as pd

    rows = pd.read_csv(credit)
    given = trainwright.load(run).evaluate(rows=rows)
    found = trainwright.load(run).predict(rows)
    true, guess, scores = rows["risk"], found["prediction"], found[f"probability_{label}"]
    return given, {
        "test_f1": sk.f1_score(true, guess, pos_label=label),
        "test_precision": sk.precision_score(true, guess, pos_label=label),
        "test_recall": sk.recall_score(true, guess, pos_label=label),
        "test_average_precision": sk.average_precision_score(true, scores, pos_label=label),
        "test_roc_auc": sk.roc_auc_score(true == label, scores),
        "test_brier": sk.brier_score_loss(true, scores, pos_label=label),
    }


def test_the_rarer_class_is_positive_and_recorded(run, credit):
    manifest = json.loads((run.path / "manifest.json").read_text())
    table = json.loads((run.path / "evaluation" / "test.json").read_text())
    assert manifest["data"]["positive"] == table["positive"] == "worse"
    assert (
        "positive class: worse (the rarer class; to change it, set evaluation.positive)"
        in (run.path / "report.html").read_text()
    )
    assert "of 3 or more" not in (run.path / "report.html").read_text()
    assert "- positive class: worse" in write_card(run.path).read_text()
    given, expected = of_rows(run, "worse", credit)
    for name, value in expected.items():
        assert given.metrics[name] == pytest.approx(value, rel=1e-4), name
    assert expected["test_f1"] < 0.85


def test_the_config_names_another_one(run, credit, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "trainwright"):
        model = {"type": "LogisticRegression", "params": {"C": 0.5}}
        given = config(credit, model=model, **evaluation(positive="fine"))
        other = trainwright.train(given, runs_dir=tmp_path)
    assert "positive class: fine (evaluation.positive)" in caplog.text
    given, expected = of_rows(other, "fine", credit)
    for name in ("test_f1", "test_average_precision"):
        assert given.metrics[name] == pytest.approx(expected[name], rel=1e-4), name
    assert "their positive classes (evaluation.positive) differ" in trainwright.compare(run, other).untested


def test_a_run_that_is_created_first_has_the_same(run, credit, tmp_path):
    created = trainwright.create(config(credit), runs_dir=tmp_path)
    assert trainwright.work(created).metrics == run.metrics


def test_what_is_no_class_is_refused_before_training(credit, tmp_path):
    with pytest.raises(InputError, match=r"evaluation\.positive: wrose is not a class .* give fine or worse"):
        trainwright.train(config(credit, **evaluation(positive="wrose")), runs_dir=tmp_path)


@pytest.mark.parametrize("data", [{"type": "wine"}, {"type": "diabetes"}])
def test_it_is_refused_without_two_classes(data, tmp_path):
    model = {"type": "mlp"}
    with pytest.raises(InputError, match=r"evaluation\.positive: yes given.*leave it out"):
        trainwright.train(
            {"data": data, "model": model, "evaluation": {"positive": "yes"}}, runs_dir=tmp_path
        )


@pytest.mark.parametrize("data", [{"task": "regression"}, {"target": ["a", "b"]}])
def test_a_config_that_cannot_have_two_classes_is_refused_at_once(data, tmp_path):
    given = {"data": {"path": "x.csv", **data}, "model": {"type": "mlp"}, "evaluation": {"positive": 1}}
    with pytest.raises(ConfigError, match=r"positive.*one target of two classes"):
        trainwright.train(given, runs_dir=tmp_path)


def test_boosters_weight_no_other_class_as_the_positive_one(tmp_path):
    pytest.importorskip("lightgbm")
    rows = np.random.default_rng(0).normal(size=(60, 2))
    labels = np.where(np.arange(60) % 6 == 0, "bad", "good")
    given = {"data": {}, "model": {"type": "lightgbm", "params": {"scale_pos_weight": 5.0}}}
    message = r"weights the second class, good.*write training.class_weights: \{bad: 5.0\}"
    with pytest.raises(ModelError, match=message):
        trainwright.train(given, data=(rows, labels), runs_dir=tmp_path)


def test_all_folds_have_the_same(tmp_path):
    """Of 151 and 149 rows, other classes are rarer among the training rows of some folds."""
    rng = np.random.default_rng(1)
    risk = np.array(["worse"] * 149 + ["fine"] * 151)
    rows = [f"{value:.3f},{label}" for value, label in zip(rng.normal(size=300), risk, strict=True)]
    path = tmp_path / "even.csv"
    path.write_text("\n".join(["income,risk", *rng.permutation(rows)]))
    given = config(path) | {"data": {"path": str(path), "target": "risk", "split": {"stratify": False}}}
    study = trainwright.cross_validate(given, folds=3, runs_dir=tmp_path)
    out = study.out_of_fold
    fine = [sum(out["target"][out["fold"] != fold] == "fine") for fold in range(3)]
    assert min(fine) < 100, "no fold trains on fewer of the other class"
    manifests = [json.loads((run.path / "manifest.json").read_text()) for run in study.runs]
    assert [manifest["data"]["positive"] for manifest in manifests] == ["worse"] * 3
    pooled = json.loads((study.path / "out_of_fold.json").read_text())
    assert pooled["positive"] == "worse"
    assert pooled["thresholds"]["positive"] == (out["target"] == "worse").sum()


@pytest.mark.parametrize("positive", ["worse", "fine"])
def test_explanations_are_of_it(positive, credit, tmp_path):
    pytest.importorskip("shap")
    pytest.importorskip("lightgbm")
    model = {"type": "lightgbm", "params": {"n_estimators": 5}}
    given = config(credit, model=model, **evaluation(positive=positive))
    run = trainwright.train(given, runs_dir=tmp_path)
    found = trainwright.explain(run)
    assert found["shap"]["explainer"] == "tree"
    assert found["shap"]["outputs"] == [positive]
    (swarm,) = found["shap"]["swarms"]
    income = next(one for one in swarm["features"] if one["name"] == "income")
    assert (income["correlation"] > 0) == (positive == "worse")
