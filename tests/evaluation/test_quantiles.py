"""Models of a quantile: they are judged and compared by the pinball loss at it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.errors import InputError
from trainwright.evaluation.metrics import check_metric, mode_of, quantile_of
from trainwright.runs.catalog import Catalog
from trainwright.tasks.regression import RegressionTask, quantile_in

MODELS: dict[str, dict[str, Any]] = {
    "lightgbm": {"type": "lightgbm", "objective": "quantile", "alpha": 0.8, "num_leaves": 4},
    "xgboost": {"type": "xgboost", "objective": "reg:quantileerror", "quantile_alpha": 0.8, "max_depth": 2},
    "catboost": {"type": "catboost", "objective": "Quantile:alpha=0.8", "depth": 2},
    "gradient_boosting": {
        **{"type": "gradient_boosting", "loss": "quantile", "alpha": 0.8},
        **{"n_estimators": 8, "max_depth": 2},
    },
    "hist_gradient_boosting": {
        **{"type": "hist_gradient_boosting", "loss": "quantile", "quantile": 0.8},
        "max_iter": 8,
    },
    "quantile_regressor": {"type": "quantile_regressor", "quantile": 0.8, "alpha": 0.0},
}
STEPS = ("lightgbm", "xgboost", "catboost")


def config(name: str) -> dict[str, Any]:
    training: dict[str, Any] = {"threads": 1} | ({"max_steps": 8} if name in STEPS else {})
    return {"data": {"type": "diabetes"}, "model": MODELS[name], "training": training}


@pytest.mark.parametrize("name", MODELS)
def test_a_quantile_is_judged_by_its_pinball_loss(name: str, tmp_path: Path) -> None:
    run = trainwright.train(config(name), runs_dir=tmp_path)
    names = [metric.removeprefix("test_") for metric in run.metrics if metric.startswith("test_")]
    assert names[:3] == ["loss", "pinball_0.8", "mae"]
    assert not {"rmse", "r2"} & {*names}
    evaluated = trainwright.load(run).evaluate("val")
    errors = evaluated.targets.reshape(-1) - evaluated.outputs.astype(np.float64).reshape(-1)
    pinball = float(np.mean(np.maximum(0.8 * errors, -0.2 * errors)))
    assert run.metrics["val_pinball_0.8"] == pytest.approx(pinball, rel=1e-4)
    # The best model, and what a search optimizes by default, are chosen by this loss, whatever its unit.
    ratio = run.metrics["val_loss"] / run.metrics["val_pinball_0.8"]
    assert ratio == pytest.approx(run.metrics["test_loss"] / run.metrics["test_pinball_0.8"], rel=1e-3)
    assert run.result["best"]["metric"] == "val_loss"


def test_two_are_compared_by_the_pinball_loss(tmp_path: Path) -> None:
    first = trainwright.train(config("lightgbm"), runs_dir=tmp_path)
    second = trainwright.train(config("lightgbm"), {"model.params.num_leaves": 12}, runs_dir=tmp_path)
    found = {test.metric: test for test in trainwright.compare(first.id, second.id, runs_dir=tmp_path).tests}
    assert found.keys() == {"pinball_0.8", "mae"}
    page = (first.path / "report.html").read_text(encoding="utf-8")
    assert "0.8 quantile of the training rows" in page


@pytest.mark.parametrize(("other", "metric"), [("gradient_boosting", "pinball_0.8"), ("ridge", "mae")])
def test_a_benchmark_ranks_by_what_all_models_have(other: str, metric: str, tmp_path: Path) -> None:
    params = {
        name: {key: value for key, value in MODELS[name].items() if key != "type"}
        for name in ("quantile_regressor", "gradient_boosting")
        if name in ("quantile_regressor", other)
    }
    study = trainwright.benchmark(
        {"data": {"type": "diabetes"}, "model": {"type": "ridge"}, "training": {"threads": 1}},
        models=["quantile_regressor", other],
        params=params,
        runs_dir=tmp_path,
    )
    assert {row["metric"] for row in study.result["models"]} == {f"test_{metric}"}


def test_a_quantile_may_be_a_metric_of_any_model(tmp_path: Path) -> None:
    chosen = {"evaluation": {"metrics": ["rmse", "pinball_0.9"]}, "checkpoint": {"metric": "val_pinball_.9"}}
    chosen["checkpoint"] = {"metric": "val_pinball_0.9"}
    ridge = {"data": {"type": "diabetes"}, "model": {"type": "ridge"}, **chosen}
    run = trainwright.train(ridge, runs_dir=tmp_path)
    assert run.result["best"]["metric"] == "val_pinball_0.9"
    assert {"test_rmse", "test_pinball_0.9"} <= run.metrics.keys()


def test_names() -> None:
    assert quantile_in("pinball_0.95") == 0.95
    assert [quantile_in(name) for name in ("pinball_1.5", "pinball_0.0", "pinball", "rmse")] == [None] * 4
    assert mode_of("val_pinball_0.05") == "min"
    assert check_metric("test_pinball_0.5", "regression") == "pinball_0.5"
    with pytest.raises(InputError, match=r"unknown metric 'pinball_0\.5'"):
        check_metric("pinball_0.5", "classification")
    assert Catalog().has("metric", "pinball_0.5")
    assert "pinball_0.5" not in [*RegressionTask.metrics]
    plain = trainwright.check({"data": {"type": "diabetes"}, "model": {"type": "lightgbm"}})
    assert quantile_of(plain.config) is None
