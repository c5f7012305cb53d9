"""The diagnosis: right on ten runs with one fault each, silent on three healthy ones."""

import dataclasses
import json
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from constructed import bundle, classes, run_of, values

from trainwright.records.manifest import RepeatedRows
from trainwright.reports.diagnosis import Finding, diagnose
from trainwright.reports.diagnosis.answers import ALL_FOLDS
from trainwright.reports.diagnosis.data import shift
from trainwright.reports.next_steps import _changes, section
from trainwright.reports.rundir import read_run

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
    assert (finding.kind, finding.title) == ("overfitting", "It knows the training rows by heart")


def test_only_one_class_is_answered(tmp_path):
    rng = np.random.default_rng(3)
    features, targets = rng.normal(size=(1000, 4)), (rng.random(1000) < 0.04).astype(np.int64)
    outputs = np.tile([0.96, 0.04], (1000, 1))
    falls = [1 / step + 0.2 for step in STEPS]
    (finding,) = found(
        run_of(tmp_path, bundle(classes(2, 4), features, targets, ROWS), cut(outputs), (falls, falls))
    )
    assert (finding.kind, finding.mend) == ("one class", "training.class_weights: balanced")
    assert "it answers “class 0” for all 200 test rows" in finding.seen


def test_a_rare_class_is_missed(tmp_path):
    rng = np.random.default_rng(4)
    targets = rng.choice(3, 1000, p=[0.5, 0.42, 0.08])
    features = rng.normal(size=(1000, 4)) + 2 * np.eye(3, 4)[targets]
    scores = np.exp(1.5 * features[:, :3] * [1, 1, 0])
    outputs = scores / scores.sum(axis=1, keepdims=True) * [1, 1, 0.1]
    (finding,) = found(
        run_of(tmp_path, bundle(classes(3, 4), features, targets, ROWS), cut(outputs), HEALTHY)
    )
    assert (finding.kind, finding.title) == ("missed class", "It misses the rare class “class 2”")


def test_a_column_gives_the_target_away(tmp_path):
    features, targets, _ = drawn()
    features[:, 2] = targets + 0.05 * features[:, 2]
    outputs = probabilities(8 * (features[:, 2] - 0.5))
    data = bundle(classes(2, 4), features, targets, ROWS)
    excluded = {"data": {"exclude": ["number"]}}
    (finding,) = found(run_of(tmp_path, data, cut(outputs), HEALTHY, **excluded))
    assert (finding.kind, finding.mend) == ("leakage", "data.exclude: [number, column_2]")


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
    mends = ["data.exclude: [a, b]", "data.split.group: COLUMN   # equal values", "data.exclude: [b, 'c: d']"]
    assert _changes([*mends, "training.epochs: 90"]) == (
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
    assert (finding.kind, finding.mend) == ("diverged", "training.learning_rate: 0.3")


def test_a_validation_split_unlike_training(tmp_path):
    features, targets, margin = drawn()
    features[600:800, 3] += 1.5  # of the validation rows; the target does not depend on it
    data = bundle(classes(2, 4), features, targets, ROWS)
    (finding,) = found(run_of(tmp_path, data, cut(probabilities(margin)), HEALTHY))
    assert (finding.kind, finding.title) == ("shift", "The validation rows are unlike the training rows")
    assert "most different: column_3" in finding.seen
    assert finding.mend == "data.exclude: [column_3]"


@pytest.mark.parametrize(
    ("data", "mend"),
    [
        ({"path": "a.csv", "split": {"time": "day"}}, "data.split.time: null"),
        (
            {"train_path": "a.csv", "split": {}},
            "data.path: ALL_ROWS.csv   # instead of a file for each split",
        ),
        ({"path": "a.csv", "split": {"seed": 4}}, "data.split.seed: 5   # divides the rows anew"),
        ({"type": "iris"}, "data.split.seed: 1   # divides the rows anew"),
        ({"type": "python:objects"}, "data.split.test: 0.2   # of all rows in one pair (X, y)"),
    ],
)
def test_splits_that_differ_in_no_single_column(data, mend, tmp_path):
    """The advice names what the config at hand has."""
    (tmp_path / "config.yaml").write_text(json.dumps({"data": data}))
    told = {"auc": 0.9, "error": 0.02, "columns": []}
    run = dataclasses.replace(read_run(tmp_path), profile={"adversarial": {"test": told}})
    finding = shift(run)
    assert finding is not None
    assert finding.mend == mend


def test_a_training_that_ended_too_early(tmp_path):
    features, targets, _ = drawn()
    outputs = probabilities(0.3 * features[:, 3])
    data = bundle(classes(2, 4), features, targets, ROWS)
    losses = (0.8 - 0.005 * STEPS).tolist()
    run = run_of(tmp_path, data, cut(outputs), (losses, losses), training={"epochs": 2})
    assert [(one.kind, one.mend) for one in found(run)] == [("unfinished", "training.epochs: 6")]


def test_each_line_that_mends_names_keys_of_the_config():
    """All lines are built from these keys."""
    import re

    from trainwright.config.schema import RunConfig
    from trainwright.reports import diagnosis

    sources = "".join(path.read_text() for path in Path(diagnosis.__file__).parent.glob("*.py"))
    keys = set(re.findall(r'"((?:data|training|model)\.[a-z_.]+): ', sources))
    assert len(keys) >= 10
    for key in {one for one in keys if not one.startswith("model.params.")}:
        fields = RunConfig.model_fields
        for name in key.split("."):
            assert name in fields, key
            kinds = (fields[name].annotation, *get_args(fields[name].annotation))
            fields = next((kind.model_fields for kind in kinds if hasattr(kind, "model_fields")), {})


def test_a_run_without_records_is_not_judged(tmp_path):
    assert found(tmp_path) == []
