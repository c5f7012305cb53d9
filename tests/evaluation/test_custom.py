"""A user's own metrics, by import path: what they get, what they may return, and where they decide."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk

import trainwright
from small_runs import SMALL, assert_same, crashed, whole_and_resumed
from trainwright.errors import ChangedInputsError, ConfigError, InputError, ModelError
from trainwright.evaluation.metrics import EvaluationResult, evaluate_predictions, mode_of
from trainwright.runs.predictor import open_predictor
from trainwright.types import DataInfo, Predictions, features_spec

SOURCE = """
import numpy as np


def profit(targets, predictions):
    won = (targets == 1) & (predictions == 1)
    lost = (targets != 1) & (predictions == 1)
    return 5 * won.sum() - lost.sum()


profit.greater_is_better = True


def cost(targets, predictions):
    return -profit(targets, predictions)


def top(targets, predictions, *, proba):
    return float(np.mean(proba))


def seen(targets, predictions):
    raise ValueError(f"{targets.dtype} {predictions.dtype} {targets.shape} {predictions.shape}")


def pair(targets, predictions):
    return [1.0, 2.0]


def three(targets, predictions, beta):
    return 1.0


def accuracy(targets, predictions):
    return 1.0


def one(targets):
    return 1.0


class Kind:
    pass


class Profit:
    mode = "max"

    def __call__(self, targets, predictions):
        return profit(targets, predictions)


class Costly(Profit):
    def __init__(self, cost):
        self.cost = cost
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module `mine`, in which the test works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("mine", None)


def classes(labels: tuple[Any, ...]) -> DataInfo:
    return DataInfo("classification", features_spec((4,)), len(labels), labels)


def evaluated(metrics: list[str], outputs: Any, targets: Any, info: DataInfo) -> EvaluationResult:
    part = Predictions(np.arange(len(targets)), outputs.astype(np.float32), targets, 1.0)
    return evaluate_predictions([part], metrics, info, "val")


def probabilities(rows: int, count: int) -> Any:
    return np.random.default_rng(0).dirichlet(np.ones(count), rows).astype(np.float32)


def test_scikit_learns_functions_get_labels_and_probabilities() -> None:
    outputs, targets = probabilities(60, 2), np.random.default_rng(1).integers(0, 2, 60)
    names = np.array(["no", "yes"])
    true, guess = names[targets], names[outputs.argmax(axis=1)]
    paths = [
        f"sklearn.metrics:{name}" for name in ("cohen_kappa_score", "roc_auc_score", "fowlkes_mallows_score")
    ]
    found = evaluated(["kappa", *paths], outputs, targets, classes(("no", "yes"))).metrics
    assert found["val_cohen_kappa_score"] == pytest.approx(sk.cohen_kappa_score(true, guess))
    assert found["val_cohen_kappa_score"] == pytest.approx(found["val_kappa"])
    assert found["val_roc_auc_score"] == pytest.approx(sk.roc_auc_score(true, outputs[:, 1]))
    assert found["val_fowlkes_mallows_score"] == pytest.approx(sk.fowlkes_mallows_score(true, guess))


def test_values_and_labels_are_passed_in_their_own_form() -> None:
    drawn = np.random.default_rng(2)
    true, guess = drawn.normal(size=(2, 30)).astype(np.float32)
    values = DataInfo("regression", features_spec((4,)), 1)
    path = "sklearn.metrics:median_absolute_error"
    assert evaluated([path], guess[:, None], true, values).metrics[
        "val_median_absolute_error"
    ] == pytest.approx(sk.median_absolute_error(true, guess))
    several = DataInfo("regression", features_spec((4,)), 2)
    both = evaluated(
        ["sklearn.metrics:r2_score"], np.stack([guess, true], 1), np.stack([true, true], 1), several
    )
    assert both.metrics["val_r2_score"] == pytest.approx((sk.r2_score(true, guess) + 1) / 2)
    labels = (drawn.random((30, 3)) > 0.5).astype(np.float32)
    given = drawn.random((30, 3)).astype(np.float32)
    paths = ["sklearn.metrics:zero_one_loss", "sklearn.metrics:label_ranking_loss"]
    found = evaluated(paths, given, labels, DataInfo("multilabel", features_spec((4,)), 3)).metrics
    assert found["val_zero_one_loss"] == pytest.approx(sk.zero_one_loss(labels, given > 0.5))
    assert found["val_label_ranking_loss"] == pytest.approx(sk.label_ranking_loss(labels, given))


def test_probabilities_of_three_classes_are_those_of_each(mine: Path) -> None:
    outputs = probabilities(20, 3)
    found = evaluated(["mine:top"], outputs, np.zeros(20, np.int64), classes(("a", "b", "c"))).metrics
    assert found["val_top"] == pytest.approx(outputs.mean())


def test_a_class_of_functions_is_constructed(mine: Path) -> None:
    outputs, targets = probabilities(20, 2), np.arange(20) % 2
    paths = ["mine:profit", "mine:Profit"]
    found = evaluated(paths, outputs, targets, classes((0, 1))).metrics
    assert found["val_Profit"] == found["val_profit"] != 0
    assert mode_of("mine:Profit") == "max"


def test_a_metric_of_outputs_that_are_not_finite_is_undefined(mine: Path) -> None:
    found = evaluated(["mine:profit"], np.full((4, 2), np.nan), np.zeros(4, np.int64), classes((0, 1)))
    assert np.isnan(found.metrics["val_profit"])


def test_which_is_better_is_read_from_the_function_or_its_name(mine: Path) -> None:
    assert mode_of("mine:profit") == "max"
    assert mode_of("sklearn.metrics:cohen_kappa_score") == "max"
    assert mode_of("sklearn.metrics:zero_one_loss") == "min"
    with pytest.raises(InputError, match=r"a higher cost is better is not known.*cost\.greater_is_better"):
        mode_of("mine:cost")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mine:nothing", "mine has no 'nothing'"),
        ("mine:Kind", "must be a function of .targets, predictions., or a class .*, and is a class"),
        ("mine:Costly", "mine:Costly cannot be constructed without arguments .*cost"),
        ("mine:one", "takes 1 of them"),
        ("mine:three", "also needs beta: wrap it in a function of your own"),
        ("sklearn.metrics:fbeta_score", "also needs beta"),
    ],
)
def test_what_is_no_metric_is_refused_before_training(mine: Path, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainwright.train(SMALL, {"evaluation.metrics": [path]}, runs_dir="runs")
    assert trainwright.list_runs("runs") == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "mine:seen",
            r"mine:seen failed: ValueError: <U3 <U3 \(20,\) \(20,\)\nit was called with NumPy arrays \(.*: <U3 \(20,\)"
            r".*a parameter called `y_score` gets the probabilities",
        ),
        ("mine:pair", r"returned a value of shape \(2,\); it must return one number"),
    ],
)
def test_what_a_metric_does_wrong_is_said(mine: Path, path: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        evaluated([path], probabilities(20, 2), np.zeros(20, np.int64), classes(("no", "yes")))


def test_a_task_that_keeps_sums_says_why_it_has_no_own_metrics(mine: Path) -> None:
    info = DataInfo("language_modeling", {"input_ids": features_spec((4,))["features"]}, 256)
    part = Predictions(np.arange(2), np.ones((2, 3)), np.zeros((2, 4), np.int64), 1.0)
    with pytest.raises(InputError, match="language_modeling keeps only sums over each row"):
        evaluate_predictions([part], ["mine:profit"], info, "val")
    with pytest.raises(InputError, match="asks for probabilities, and regression has none"):
        evaluated(["mine:top"], np.ones((3, 1)), np.ones(3), DataInfo("regression", features_spec((4,)), 1))


@pytest.mark.parametrize(
    ("metrics", "deciding", "message"),
    [
        (["mine:accuracy"], "val_loss", "would be called 'accuracy', as is a metric of Trainwright"),
        (["mine:profit", "yours:profit"], "val_loss", "would be called 'profit', as is mine:profit"),
        (["mine:2"], "val_loss", "expected package.module:Name"),
        ([], "mine:profit", "list mine:profit in evaluation.metrics, and write val_profit here"),
        ([], "val_profit", "unknown metric 'profit'|unknown metric 'val_profit'"),
    ],
)
def test_names_are_checked_without_an_import(metrics: list[str], deciding: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainwright.check(SMALL, {"evaluation.metrics": metrics, "checkpoint.metric": deciding})
    assert "mine" not in sys.modules


OVERRIDES: dict[str, Any] = {
    "data.type": "breast_cancer",
    "evaluation.metrics": ["accuracy", "mine:profit"],
    "checkpoint.metric": "val_profit",
    "training.early_stopping": {"metric": "val_profit", "patience": 20},
    "training.scheduler": {"type": "plateau", "metric": "val_profit", "patience": 0},
}


def test_a_metric_decides_and_a_resumed_run_has_its_bits(mine: Path) -> None:
    whole, resumed = whole_and_resumed(mine, OVERRIDES)
    assert_same(resumed, whole)
    assert whole.result["best"]["metric"] == "val_profit"
    assert trainwright.evaluate(whole)["test_profit"] == whole.metrics["test_profit"]
    assert "mine" in whole.manifest["code"]["modules"]
    assert trainwright.reproduce(whole).verdict == "identical"
    other = trainwright.train(SMALL, {**OVERRIDES, "experiment.seed": 4}, runs_dir="runs")
    assert [test.metric for test in trainwright.compare(whole, other).tests] == ["accuracy", "profit"]


def test_a_changed_metric_is_a_changed_input(mine: Path) -> None:
    run = crashed(mine / "runs", OVERRIDES)
    (mine / "mine.py").write_text(SOURCE.replace("5 * won", "6 * won"))
    del sys.modules["mine"]
    with pytest.raises(ChangedInputsError, match="module mine"):
        trainwright.resume(run)


def test_without_a_direction_the_key_says_what_to_set(mine: Path) -> None:
    overrides = {"evaluation.metrics": ["mine:cost"], "checkpoint.metric": "val_cost"}
    with pytest.raises(InputError, match=r"checkpoint\.metric: whether a higher cost.*set `mode`"):
        trainwright.train(SMALL, overrides, runs_dir="runs")
    run = trainwright.train(SMALL, {**overrides, "checkpoint.mode": "min"}, runs_dir="runs")
    assert run.result["best"]["metric"] == "val_cost"
    assert trainwright.explain(run)["permutation"]["metric"] == "loss"


@pytest.mark.parametrize("model", ["logistic_regression", "xgboost"])
def test_other_frameworks_compute_it_too(mine: Path, model: str) -> None:
    config = {"data": {"type": "breast_cancer"}, "model": {"type": model}, "experiment": {"name": "x"}}
    overrides: dict[str, Any] = {"evaluation.metrics": ["accuracy", "mine:profit"]}
    if model == "xgboost":
        overrides |= {"training.max_steps": 3, "checkpoint.metric": "val_profit"}
    run = trainwright.train(config, overrides, runs_dir="runs")
    predictor = open_predictor(run._dir, pinned=True)
    parts = list(predictor.model.predict(predictor.load_data().splits["test"]))
    guess = np.concatenate([part.outputs for part in parts]).argmax(axis=1)
    true = np.concatenate([part.targets for part in parts])
    expected = 5 * ((true == 1) & (guess == 1)).sum() - ((true == 0) & (guess == 1)).sum()
    assert run.metrics["test_profit"] == expected


def test_a_benchmark_ranks_by_it(mine: Path) -> None:
    config = {**SMALL, "data": {"type": "breast_cancer"}, "evaluation": {"metrics": ["mine:profit"]}}
    study = trainwright.benchmark(config, models=["mlp", "dummy"], metric="profit", runs_dir="runs")
    rows = study.result["models"]
    assert rows[0]["metric"] == "test_profit"
    assert rows[0]["mean"] >= rows[1]["mean"]


@pytest.mark.slow
def test_a_run_of_someone_else_imports_no_metric(
    mine: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = trainwright.train(SMALL, {"evaluation.metrics": ["mine:profit"]}, runs_dir="runs")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    code = (
        "import sys, trainwright, trainwright.errors\n"
        "try:\n    trainwright.evaluate(sys.argv[1])\n"
        "except trainwright.errors.InputError as error:\n    print(error)\n"
        "print(trainwright.evaluate(sys.argv[2]))\n"
    )
    other = trainwright.train(
        SMALL, {"evaluation.metrics": ["sklearn.metrics:cohen_kappa_score"]}, runs_dir="runs"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path), str(other.path)],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'mine:profit'" in done.stdout
    assert "test_cohen_kappa_score" in done.stdout, done.stderr


@pytest.mark.parametrize("path", ["f1_score", "brier_score_loss", "balanced_accuracy_score"])
def test_weights_and_the_positive_class_reach_metrics_that_ask_for_them(path: str) -> None:
    random = np.random.default_rng(0)
    second, weights = random.random(40), random.random(40)
    targets = random.integers(0, 2, 40)
    outputs = np.stack([1 - second, second], axis=1)
    info = DataInfo("classification", features_spec((3,)), 2, ["no", "yes"])
    parts = [Predictions(np.arange(40), outputs, targets, 1.0, weights=weights)]
    metric = f"sklearn.metrics:{path}"
    found = evaluate_predictions(parts, [metric], info, "val").metrics[f"val_{path}"]
    words = np.array(["no", "yes"])
    given = second if path == "brier_score_loss" else words[(second > 0.5).astype(int)]
    options = {} if path == "balanced_accuracy_score" else {"pos_label": "yes"}
    expected = getattr(sk, path)(words[targets], given, sample_weight=weights, **options)
    assert found == pytest.approx(expected)
