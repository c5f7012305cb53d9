"""The diagnosis: right on ten runs with one fault each, silent on three healthy ones."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from constructed import bundle, classes, run_of, values

from trainwright.records.manifest import RepeatedRows
from trainwright.reports.diagnosis import Finding, diagnose
from trainwright.reports.diagnosis.answers import ALL_FOLDS, threshold
from trainwright.reports.diagnosis.data import shift
from trainwright.reports.next_steps import _changes, section
from trainwright.reports.rundir import read_run
from written import write_record

ROWS = (600, 200, 200)
STEPS = np.arange(1, 21)
FALLS = (2.0 / STEPS**0.5).tolist()
HEALTHY = (FALLS, [1.1 * value for value in FALLS])


def drawn(seed: int = 0, rows: int = sum(ROWS), columns: int = 4):
    """Features, and classes 0 and 1 that depend on them with noise; the margin of the best model."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, columns))
    margin = 2 * features[:, 0] + 1.5 * features[:, 1] ** 2 - 1.5
    return features, (margin + rng.logistic(size=rows) > 0).astype(np.int64), margin


def probabilities(margin):
    """(rows, 2) probabilities of the classes."""
    positive = 1 / (1 + np.exp(-margin))
    return np.stack([1 - positive, positive], axis=1)


def cut(outputs, rows=ROWS):
    """The outputs of each split."""
    ends = np.cumsum(rows)
    return {
        name: outputs[end - n : end]
        for name, end, n in zip(("train", "val", "test"), ends, rows, strict=True)
    }


def found(run: Path) -> list[Finding]:
    return diagnose(read_run(run))


def kinds(run: Path) -> list[str]:
    return [finding.kind for finding in found(run)]


def test_a_healthy_classification(tmp_path):
    features, targets, margin = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    assert found(run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY)) == []


def test_a_healthy_regression(tmp_path):
    features, _, _ = drawn()
    rng = np.random.default_rng(1)
    guess = 3 * features[:, 0] + np.sin(3 * features[:, 1])
    targets = (guess + 0.5 * rng.normal(size=len(guess))).astype(np.float32)
    data = bundle(values(4), features, targets, ROWS)
    assert found(run_of(tmp_path, data, cut(guess[:, None]), HEALTHY)) == []


def test_a_healthy_boosting_that_stopped_early(tmp_path):
    """Three classes of unequal size; the validation loss rises a little before the training stops."""
    rng = np.random.default_rng(2)
    targets = rng.choice(3, sum(ROWS), p=[0.6, 0.3, 0.1])
    features = rng.normal(size=(len(targets), 5)) + 1.5 * np.eye(3, 5)[targets]
    scores = np.exp(1.5 * features[:, :3] + np.log([0.6, 0.3, 0.1]))
    outputs = scores / scores.sum(axis=1, keepdims=True)
    val = [*(1.1 * np.array(FALLS[:16])).tolist(), 0.56, 0.57, 0.57, 0.58]
    run = run_of(tmp_path, bundle(classes(3, 5), features, targets, ROWS), cut(outputs), (FALLS, val))
    assert found(run) == []


def test_overfitting_says_from_which_step(tmp_path):
    features, targets, margin = drawn()
    data = bundle(classes(2, 4), features, targets, ROWS)
    val = [1.0 / step if step <= 8 else 0.125 + 0.02 * (step - 8) for step in STEPS]
    run = run_of(tmp_path, data, cut(probabilities(margin)), ((1.0 / STEPS).tolist(), val))
    (finding,) = found(run)
    assert (finding.kind, finding.title) == ("overfitting", "It overfits from step 40")
    assert "training.early_stopping" in finding.mend


def test_a_model_that_knows_its_rows_by_heart(tmp_path):
    features, targets, _ = drawn()
    outputs = probabilities(np.random.default_rng(5).normal(size=len(targets)))
    outputs[: ROWS[0]] = np.eye(2)[targets[: ROWS[0]]]
    (finding,) = found(run_of(tmp_path, bundle(classes(2, 4), features, targets, ROWS), cut(outputs)))
    assert (finding.kind, finding.title) == ("overfitting", "It memorized the training rows")


def _weighted(tmp_path, *, knows: bool) -> Path:
    """A run with a rare class that is answered far too often; it `knows` the training rows, or none."""
    rng = np.random.default_rng(3)
    features, targets = rng.normal(size=(1000, 4)), (rng.random(1000) < 0.08).astype(np.int64)
    margin = rng.normal(size=1000) - 0.5 + 0.5 * targets
    margin[: ROWS[0]] = 0.9 * rng.normal(size=ROWS[0]) - 1.5 + (4 if knows else 0) * targets[: ROWS[0]]
    data = bundle(classes(2, 4), features, targets, ROWS)
    return run_of(tmp_path, data, cut(probabilities(margin)), training={"class_weights": "balanced"})


def test_a_rare_class_that_is_known_by_heart(tmp_path):
    """Shares of right answers show nothing of it: they are below those of the constant answer."""
    run = _weighted(tmp_path, knows=True)
    (finding,) = found(run)
    assert (finding.kind, finding.title) == ("overfitting", "It memorized the training rows")
    assert "the area under the ROC curve of “class 1” is 1.00 on training rows, and 0.58" in finding.seen
    assert finding.otherwise.startswith("no setting is known to help here; more rows")


def test_nothing_is_known_by_heart_that_no_number_shows(tmp_path):
    """The skill is below that of a constant answer on training rows, and further below on others."""
    assert "overfitting" not in kinds(_weighted(tmp_path, knows=False))


def test_a_threshold_at_which_the_classes_weigh_the_same_finds_more_of_the_rare_one(tmp_path):
    rng = np.random.default_rng(3)
    features, targets = rng.normal(size=(1000, 4)), (rng.random(1000) < 0.08).astype(np.int64)
    positive = 1 / (1 + np.exp(4 - 1.2 * targets - 0.5 * rng.normal(size=1000)))
    outputs = np.stack([1 - positive, positive], axis=1)
    run = read_run(run_of(tmp_path, bundle(classes(2, 4), features, targets, ROWS), cut(outputs)))
    chosen = threshold(run)
    assert chosen is not None
    judged, is_rare = positive[-ROWS[2] :], targets[-ROWS[2] :] == 1
    assert (judged[is_rare] >= chosen).mean() > 0.6
    assert (judged[~is_rare] >= chosen).mean() < 0.4
    steps = section(run)
    assert steps is not None
    assert steps[0][1].endswith(f"rows.csv -o predictions.csv --threshold {chosen:.3g}")
    assert steps[1][1].endswith("training.class_weights=balanced")


def test_only_one_class_is_answered(tmp_path):
    rng = np.random.default_rng(3)
    features, targets = rng.normal(size=(1000, 4)), (rng.random(1000) < 0.04).astype(np.int64)
    features[:, 0] += 2 * targets
    positive = np.clip(0.02 + 0.1 * features[:, 0], 0.01, 0.49)
    outputs = np.stack([1 - positive, positive], axis=1)
    falls = [1 / step + 0.2 for step in STEPS]
    (finding,) = found(
        run_of(tmp_path, bundle(classes(2, 4), features, targets, ROWS), cut(outputs), (falls, falls))
    )
    first, second = finding.mend.splitlines()  # the threshold costs no training
    assert (finding.kind, second) == ("one class", "training.class_weights: balanced")
    assert first.startswith("trainwright predict RUN FILE --threshold 0.1")
    assert "it answers “class 0” for all 200 test rows" in finding.seen


def _rare(tmp_path: Path, **config) -> Path:
    """A run whose model never answers the last of three classes."""
    rng = np.random.default_rng(4)
    targets = rng.choice(3, 1000, p=[0.5, 0.42, 0.08])
    features = rng.normal(size=(1000, 4)) + 2 * np.eye(3, 4)[targets]
    scores = np.exp(1.5 * features[:, :3] * [1, 1, 0])
    outputs = scores / scores.sum(axis=1, keepdims=True) * [1, 1, 0.1]
    data = bundle(classes(3, 4), features, targets, ROWS)
    return run_of(tmp_path, data, cut(outputs), HEALTHY, **config)


def test_a_rare_class_is_missed(tmp_path):
    (finding,) = found(_rare(tmp_path))
    assert (finding.kind, finding.title) == ("missed class", "It misses the rare class “class 2”")
    assert finding.to_json()["override"] == ["training.class_weights=balanced"]
    assert finding.expected is not None
    assert (finding.expected.measure, finding.expected.better) == ("recall of class 2", "higher")
    assert "rises, at some cost in its precision" in finding.expected.words


def test_a_column_gives_the_target_away(tmp_path):
    features, targets, _ = drawn()
    features[:, 2] = targets + 0.05 * features[:, 2]
    outputs = probabilities(8 * (features[:, 2] - 0.5))
    data = bundle(classes(2, 4), features, targets, ROWS)
    excluded = {"data": {"exclude": ["number"]}}
    (finding,) = found(run_of(tmp_path, data, cut(outputs), HEALTHY, **excluded))
    assert (finding.kind, finding.mend) == ("leakage", "data.exclude: [number, column_2]")


@pytest.mark.parametrize("model", ["mine:network", "mine:pipe"])
def test_no_column_is_left_out_of_a_network_of_ones_own(tmp_path, model):
    """It may expect the number of columns that there are; an estimator is fitted to what there is."""
    features, targets, _ = drawn()
    features[:, 2] = targets + 0.05 * features[:, 2]
    data = bundle(classes(2, 4), features, targets, ROWS)
    own = {"type": model, "framework": "torch" if model == "mine:network" else "sklearn"}
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(8 * (features[:, 2] - 0.5))), model=own))
    assert finding.kind == "leakage"
    assert finding.mend == ("" if model == "mine:network" else "data.exclude: [column_2]")
    assert ("leaving it out of the data" in finding.otherwise) == (model == "mine:network")


def test_rows_are_in_two_splits(tmp_path):
    features, targets, margin = drawn()
    repeated = [RepeatedRows(split="test", other="train", count=120, rows=200)]
    data = bundle(classes(2, 4), features, targets, ROWS, repeated=repeated)
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY))
    assert finding.kind == "repeated rows"
    assert finding.seen == "120 of 200 test rows are also training rows, so the metrics flatter the model"


@pytest.mark.parametrize(("rows", "said"), [((40, 30, 30), "There are too few"), ((600, 30, 12), "judge")])
def test_too_few_rows(tmp_path, rows, said):
    features, targets, margin = drawn(rows=sum(rows))
    data = bundle(classes(2, 4), features, targets, rows)
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(2 * margin), rows), HEALTHY))
    assert finding.kind == "too few rows"
    assert said in finding.title
    assert "may as well be" in finding.seen
    command = (section(read_run(next(tmp_path.glob("*/*")))) or [("", "")])[0][1]
    path = "experiment/20260101-120000-abc123/config.yaml"
    if rows[0] < 60:
        assert finding.mend == ALL_FOLDS
        assert command.startswith("trainwright cross-validate ")
        assert command.endswith(f"{path} --folds 5")
    else:
        assert command.endswith(f"{path} data.split.test=0.3")


def test_mends_of_several_findings_are_one_command():
    mends = [{"data.exclude": ["a", "b"]}, {}, {"data.exclude": ["b", "c: d"]}]
    assert _changes([*mends, {"training.epochs": 90}]) == (
        """'data.exclude=[a, b, "c: d"]' training.epochs=90"""
    )


def test_a_loss_that_does_not_move(tmp_path):
    features, targets, _ = drawn()
    constant = [0.6931 + 0.0001 * math.sin(step) for step in STEPS]
    outputs = probabilities(0.001 * np.random.default_rng(6).normal(size=len(targets)))
    data = bundle(classes(2, 4), features, targets, ROWS)
    run = run_of(tmp_path, data, cut(outputs), (constant, constant), training={"learning_rate": 1e-6})
    (finding,) = found(run)
    assert (finding.kind, finding.mend) == ("flat loss", "training.learning_rate: 0.001")


@pytest.mark.parametrize("last", [math.nan, 900.0])
def test_a_training_that_diverged(tmp_path, last):
    features, targets, _ = drawn()
    losses = [*(2.0 + 0.1 * STEPS[:14]), *[last] * 6]
    outputs = probabilities(5 * np.random.default_rng(6).normal(size=len(targets)))
    data = bundle(classes(2, 4), features, targets, ROWS)
    run = run_of(tmp_path, data, cut(outputs), (losses, losses), training={"learning_rate": 3.0})
    (finding,) = found(run)
    assert (finding.kind, finding.mend) == ("diverged", "training.learning_rate: 0.001")


def test_a_validation_split_unlike_training(tmp_path):
    features, targets, margin = drawn()
    features[600:800, 3] += 1.5  # of the validation rows; the target does not depend on it
    data = bundle(classes(2, 4), features, targets, ROWS)
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY))
    assert (finding.kind, finding.title) == ("shift", "The validation rows are unlike the training rows")
    assert "most different: column_3" in finding.seen
    assert finding.mend == "data.exclude: [column_3]"


@pytest.mark.parametrize(
    "data",
    [
        {"path": "a.csv", "split": {"time": "day"}},
        {"train_path": "a.csv", "split": {}},
        {"path": "a.csv", "split": {"seed": 4}},
        {"type": "iris"},
        {"type": "python:objects"},
    ],
)
def test_splits_that_differ_in_no_single_column(data, tmp_path):
    """No change of a config makes rows alike: another split would only hide that newer ones are not."""
    (tmp_path / "config.yaml").write_text(json.dumps({"data": data}))
    told = {"auc": 0.9, "error": 0.02, "columns": []}
    run = dataclasses.replace(read_run(tmp_path), profile={"adversarial": {"test": told}})
    finding = shift(run)
    assert finding is not None
    assert finding.mend == ""


@pytest.mark.parametrize("tells", [False, True])
def test_a_shifted_column_that_tells_the_target_is_not_left_out(tmp_path, tells):
    features, targets, margin = drawn()
    column = 0 if tells else 3
    features[600:800, column] += 1.5
    data = bundle(classes(2, 4), features, targets, ROWS)
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY))
    assert finding.kind == "shift"
    assert finding.changes == ({} if tells else {"data.exclude": ["column_3"]})


def test_the_only_column_is_not_left_out(tmp_path):
    features, targets, margin = drawn(columns=2)
    features = features[:, 1:] + np.arange(len(features))[:, None] / 100
    data = bundle(classes(2, 1), features, targets, ROWS)
    split = {"data": {"split": {"time": "column_0"}}}
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY, **split))
    assert (finding.kind, finding.mend) == ("shift", "")


def test_a_training_that_ended_too_early(tmp_path):
    features, targets, _ = drawn()
    outputs = probabilities(0.3 * features[:, 3])
    data = bundle(classes(2, 4), features, targets, ROWS)
    losses = (0.8 - 0.005 * STEPS).tolist()
    run = run_of(tmp_path, data, cut(outputs), (losses, losses), training={"epochs": 2})
    assert [(one.kind, one.mend) for one in found(run)] == [("unfinished", "training.epochs: 6")]


def test_nothing_is_advised_that_is_set_already(tmp_path):
    run = _rare(tmp_path, training={"class_weights": "balanced"})
    assert [(one.kind, one.mend) for one in found(run)] == [("missed class", "")]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ({"type": "mlp"}, {"training.class_weights": "balanced"}),
        (
            {"type": "extra_trees", "params": {"min_samples_leaf": 1}},  # of one class, whatever it weighs
            {"training.class_weights": "balanced", "model.params.min_samples_leaf": 10},
        ),
        ({"type": "lightgbm", "params": {"is_unbalance": True}}, {}),
        ({"type": "k_neighbors", "params": {"n_neighbors": 5}}, {}),  # takes no weights
        ({"type": "mine:pipe"}, {}),  # may take none
    ],
)
def test_classes_are_weighted_where_the_model_takes_weights(tmp_path, model, changes):
    run = _rare(tmp_path, model=model)
    if model["type"] == "mine:pipe":
        manifest = json.loads((run / "manifest.json").read_text())
        write_record(run / "manifest.json", {**manifest, "environment": {}})
    (finding,) = found(run)
    assert finding.changes == changes


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (
            {"model": {"type": "lightgbm", "params": {"learning_rate": 3.0}}},
            {"model.params.learning_rate": 0.1},
        ),
        ({"model": {"type": "random_forest", "params": {"n_estimators": 9}}}, {}),
        (
            {"training": {"learning_rate": 3.0, "optimizer": {"type": "sgd"}}},
            {"training.learning_rate": 0.01},
        ),
        ({"training": {"learning_rate": 1e-4}}, {"training.learning_rate": 1e-5}),
    ],
)
def test_a_lower_learning_rate_is_one_that_has_an_effect(tmp_path, config, changes):
    features, targets, _ = drawn()
    losses = [*(2.0 + 0.1 * STEPS[:14]), *[900.0] * 6]
    outputs = probabilities(5 * np.random.default_rng(6).normal(size=len(targets)))
    data = bundle(classes(2, 4), features, targets, ROWS)
    (finding,) = found(run_of(tmp_path, data, cut(outputs), (losses, losses), **config))
    assert (finding.kind, finding.changes) == ("diverged", changes)


@pytest.mark.parametrize(("warmup", "kinds_found"), [(False, ["lagging average"]), (True, ["one class"])])
def test_one_class_of_balanced_ones_under_an_average_that_lags(tmp_path, warmup, kinds_found):
    """Classes that are balanced already need no weights."""
    features, targets, _ = drawn()
    outputs = np.tile([0.45, 0.55], (len(targets), 1))
    data = bundle(classes(2, 4), features, targets, ROWS)
    training = {"ema": {"decay": 0.9999, "warmup": warmup}, "learning_rate": 1e-3}
    run = run_of(tmp_path, data, cut(outputs), HEALTHY, training=training)
    assert kinds(run) == kinds_found
    assert all("class_weights" not in one.mend for one in found(run))


def test_the_sklearn_models_without_weights_are_those_whose_fit_takes_none():
    import importlib
    import inspect

    from trainwright.frameworks.sklearn.advice import UNWEIGHTED
    from trainwright.frameworks.sklearn.params import table

    unweighted = set()
    for name, model in table()["models"].items():
        module, _, cls = model.get("classification", "").partition(":")
        if module:
            method = "partial_fit" if model["steps"] == "batches" else "fit"
            fit = getattr(getattr(importlib.import_module(module), cls), method)
            unweighted |= set() if "sample_weight" in inspect.signature(fit).parameters else {name}
    assert set(UNWEIGHTED) == unweighted


def test_a_run_without_records_is_not_judged(tmp_path):
    assert found(tmp_path) == []
