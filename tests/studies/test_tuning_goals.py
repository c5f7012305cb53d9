"""Several metrics and constraints: what is measured, which trials are best, and what is refused."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from small_runs import SMALL
from trainwright.cli.studies import _front_note, _ranked
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import Ending, LoggedTrial, read_trials
from trainwright.runs.objects import Objects
from trainwright.runs.run import Run
from trainwright.studies.tuning.goals import Constraint, Goals
from trainwright.studies.tuning.results import measured
from trainwright.studies.tuning.tuning_view import Tuning, rows

SPACE: dict[str, Any] = {
    "training.learning_rate": {"low": 1e-3, "high": 0.3, "log": True},
    "model.params.hidden": [[4], [32], [64, 64]],
}


def trial(number: int, values: Mapping[str, float] | None, status: Any = "completed") -> LoggedTrial:
    value = None if values is None else values["val_f1"]
    return LoggedTrial(number, {}, f"run-{number}", ending=Ending(status, value, 1, values=values))


def test_the_front_is_what_nothing_dominates() -> None:
    """By its definition, over random points, some of them equal."""
    random = np.random.default_rng(0)
    goals = Goals(["val_f1", "latency_ms"], ["max", "min"], [Constraint("parameters", 1.0, 3.0)])
    trials = [
        trial(i, {"val_f1": float(a), "latency_ms": float(b), "parameters": float(c)})
        for i, (a, b, c) in enumerate(random.integers(0, 6, size=(60, 3)))
    ]
    trials.append(trial(60, {"val_f1": float("nan"), "latency_ms": 0.0, "parameters": 0.0}))
    trials.append(trial(61, None, "failed"))
    points = {
        t.number: (t.ending.values["val_f1"], -t.ending.values["latency_ms"])
        for t in trials
        if t.ending and t.ending.values and t.ending.values["parameters"] <= 3
    }
    expected = {
        i
        for i, p in points.items()
        if not any((q[0] >= p[0] and q[1] >= p[1] and (q != p or j < i)) for j, q in points.items() if j != i)
        and p[0] == p[0]
    }
    front = goals.front(trials)
    assert {one.number for one in front} == expected
    assert [points[one.number][0] for one in front] == sorted((points[i][0] for i in expected), reverse=True)
    assert goals.best(trials) is front[0]


def test_one_metric_has_the_best_trial_as_its_front() -> None:
    trials = [
        LoggedTrial(i, {}, "", ending=Ending("completed", v)) for i, v in enumerate([3.0, 1.0, 1.0, 2.0])
    ]
    assert Goals(["val_loss"], ["min"]).best(trials) is trials[1]
    assert Goals(["val_f1"], ["max"]).best(trials) is trials[0]
    assert Goals(["val_f1"], ["max"]).best([]) is None


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    tuning = {
        "metric": ["val_accuracy", "parameters", "val_loss"],
        "constraints": {"parameters": "<= 3000", "model_bytes": ">= 1"},
        "sampler": {"type": "nsga2", "population_size": 3},
        "trials": 6,
        "horizon": 2,
        "space": SPACE,
    }
    return trainwright.tune({**SMALL, "tuning": tuning}, runs_dir=tmp_path_factory.mktemp("runs"))


def test_each_trial_has_the_values_of_its_best_model(study: Tuning) -> None:
    for one in read_trials(study.path):
        assert one.ending is not None
        assert one.ending.values is not None
        sizes = [4, *one.params["model.params.hidden"], 3]
        by_hand = sum(a * b + b for a, b in itertools.pairwise(sizes))
        assert one.ending.values["parameters"] == by_hand
        assert one.ending.values["val_accuracy"] == one.ending.value
        history = Run(RunDir(study.path.parent / one.run_id)).history()
        (row,) = [row for row in history if row["step"] == one.ending.step and "val_loss" in row]
        assert one.ending.values["val_loss"] == row["val_loss"]


def test_the_result_names_front_and_best(study: Tuning) -> None:
    trials = read_trials(study.path)
    goals = Goals(
        ["val_accuracy", "parameters", "val_loss"], ["max", "min", "min"], [Constraint("parameters", 1, 3000)]
    )
    front = [one.number for one in goals.front(trials)]
    assert study.result["front"] == front
    assert study.result["best"]["trial"] == front[0]
    assert study.result["metrics"] == {"val_accuracy": "max", "parameters": "min", "val_loss": "min"}
    assert len(front) < 6
    table = _ranked(study, rows(study.path))
    assert table[0][:5] == ["trial", "val_accuracy", "parameters", "val_loss", "model_bytes"]
    assert table[1][0] == f"{front[0]} *"
    assert (
        "no other trial is as good in val_accuracy (max), parameters (min)"
        in _front_note(study.typed_result)[0]
    )
    assert "parameters" in study.trials


def test_a_constraint_alone_bounds_the_best_trial(tmp_path: Path) -> None:
    tuning = {
        "metric": "val_accuracy",
        "sampler": "grid",
        "space": {"model.params.hidden": [[32], [4]]},
    }
    free = trainwright.tune({**SMALL, "tuning": tuning}, runs_dir=tmp_path / "free")
    assert free.best_params == {"model.params.hidden": [32]}
    assert "front" not in free.result
    bounded = {**tuning, "constraints": {"parameters": "<= 1e2"}}
    study = trainwright.tune({**SMALL, "tuning": bounded}, runs_dir=tmp_path / "bounded")
    assert study.best_params == {"model.params.hidden": [4]}
    assert _front_note(study.typed_result) == ["*: the best of those that keep parameters <= 100"]
    none = {**tuning, "constraints": {"parameters": "<= 10"}}
    study = trainwright.tune({**SMALL, "tuning": none}, runs_dir=tmp_path / "none")
    assert (study.result["best"], study.best_config) == (None, None)
    assert _front_note(study.typed_result) == ["no trial keeps parameters <= 10"]
    json.dumps(study.result)


@pytest.mark.parametrize(
    ("tuning", "at", "named"),
    [
        ({"metric": ["latency_ms", "val_loss"]}, "metric", "expected val_loss or val_METRIC first"),
        ({"metric": ["val_loss", "size"]}, "metric", "latency_ms, model_bytes, parameters"),
        ({"metric": ["val_loss", "val_loss"]}, "metric", "given twice"),
        ({"metric": []}, "metric", "empty"),
        ({"metric": ["val_loss", "val_acuracy"]}, "metric", "did you mean 'accuracy'"),
        ({"metric": ["val_loss", "val_f1"], "mode": "min"}, "mode", "a list of modes"),
        ({"metric": ["val_loss", "val_f1"], "mode": ["min"]}, "mode", "1 modes for 2 metrics"),
        ({"metric": ["val_loss", "val_f1"], "pruner": "median"}, "pruner", "judges by one metric"),
        ({"metric": ["val_loss", "val_f1"], "target": 0.5}, "target", "is of one metric"),
        ({"metric": ["val_loss", "val_f1"], "sampler": "cmaes"}, "sampler", "nsga2 and tpe"),
        ({"constraints": {"parameters": "<= 1"}, "sampler": "cmaes"}, "sampler", "knows no constraints"),
        ({"constraints": {"parameters": "< many"}}, "constraints.parameters", '"<= 1e6"'),
        ({"constraints": {"size": "<= 1"}}, "constraints.size", "latency_ms"),
        (
            {"constraints": {"parameters": "<= 1"}, "folds": 3},
            "constraints",
            "but tuning.folds makes several",
        ),
        ({"metric": ["val_f1", "latency_ms"], "repeats": 2}, "metric", "but tuning.repeats makes several"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tuning: dict[str, Any], at: str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        trainwright.tune({**SMALL, "tuning": {"space": SPACE, **tuning}}, runs_dir=tmp_path)
    assert f"tuning.{at}" in str(refused.value)
    assert named in str(refused.value)
    assert not list(tmp_path.rglob("*.json*"))


@pytest.mark.parametrize(
    ("tuning", "at"),
    [
        ({"metric": "val_rmse"}, "metric"),
        ({"metric": "val_mape"}, "metric"),  # no default of its task
        ({"metric": ["val_f1", "val_rmse"]}, "metric"),
        ({"constraints": {"val_rmse": "<= 1"}}, "constraints.val_rmse"),
    ],
)
@pytest.mark.parametrize("stated", [True, False])
def test_a_metric_of_another_task_is_refused_before_anything_is_trained(
    tuning: dict[str, Any], at: str, stated: bool, tmp_path: Path
) -> None:
    """Where the config states the task, `config check` knows it; else the data do."""
    data = {"type": "iris", "task": "classification"} if stated else {"type": "iris"}
    wrong = {**SMALL, "data": data, "tuning": {"space": SPACE, **tuning}}
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps(wrong))
    expected = rf"wrong.yaml:1:\d+: tuning.{at}: metric .* is for regression, but the task is classification"
    if stated:
        with pytest.raises(ConfigError, match=expected):
            trainwright.check(file)
    else:
        trainwright.check(file)
    with pytest.raises(ConfigError, match=expected):
        trainwright.tune(file, runs_dir=tmp_path / "runs")
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_metric_that_is_undefined_for_the_rows_ends_the_study(tmp_path: Path) -> None:
    tuning = {"metric": "val_f1_binary", "trials": 5, "space": SPACE}  # iris has three classes
    with pytest.raises(TrainwrightError, match="the first 3 trials have no val_f1_binary: it was NaN"):
        trainwright.tune({**SMALL, "tuning": tuning}, runs_dir=tmp_path)
    (study,) = tmp_path.rglob("tune-*")
    assert len(read_trials(study)) == 3
    with pytest.raises(TrainwrightError, match="the only trial has no val_f1_binary"):
        trainwright.tune({**SMALL, "tuning": {**tuning, "trials": 1}}, runs_dir=tmp_path)


def test_parameters_of_other_libraries_are_counted(tmp_path: Path) -> None:
    def count(model: str) -> float:
        run = trainwright.train({"data": {"type": "iris"}, "model": {"type": model}}, runs_dir=tmp_path)
        return measured(RunDir(run.path), ["parameters"], 1, Objects())["parameters"]

    assert count("logistic_regression") == 3 * 4 + 3
    with pytest.raises(TrainwrightError, match="give model_bytes"):
        count("decision_tree")
