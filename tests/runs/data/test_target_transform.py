"""Models that train on a transformed target: predictions and metrics are in the original units."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.metrics import mean_absolute_error
from sklearn.preprocessing import FunctionTransformer

import trainwright
from trainwright.errors import DataError, InputError
from trainwright.inference.original_units import OriginalUnitsModel


def rows(count: int = 300, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(count, 3)).astype(np.float32), columns=["a", "b", "c"])
    return frame.assign(price=np.exp(2 + frame["a"] + 0.3 * draw.normal(size=count)).astype(np.float32))


def config(model: Any, transform: str | None = "log1p", **sections: Any) -> dict[str, Any]:
    data = {"target": "price", "target_transform": transform, "standardize": False}
    return {"data": data, "model": model, "experiment": {"seed": 2}, **sections}


DATA = {"train": rows(), "val": rows(100, 1), "test": rows(100, 2)}
MODELS = {
    "random_forest": {"n_estimators": 20, "max_depth": 5},
    "xgboost": {"n_estimators": 20},
    "lightgbm": {"n_estimators": 20},
    "catboost": {"n_estimators": 20},
    "mlp": {"hidden": [16]},
}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_metrics_and_predictions_are_in_original_units(model: str, tmp_path: Path) -> None:
    """A run on log1p(price) is one whose data hold log1p(price), but for the unit of what it says."""
    training = {"epochs": 30, "learning_rate": 0.01} if model == "mlp" else {}
    settings = {"runs_dir": tmp_path, "data": DATA}
    run = trainwright.train(config({"type": model, **MODELS[model]}, training=training), **settings)
    by_hand = {name: part.assign(price=np.log1p(part["price"].astype(float))) for name, part in DATA.items()}
    other = trainwright.train(
        config({"type": model, **MODELS[model]}, None, training=training),
        runs_dir=tmp_path / "b",
        data=by_hand,
    )
    assert run.result["digest"] == other.result["digest"]
    loaded = trainwright.load(run.path)
    predicted = loaded.predict(DATA["test"])["prediction"].to_numpy()
    expected = np.expm1(trainwright.load(other.path).predict(by_hand["test"])["prediction"].to_numpy())
    assert predicted == pytest.approx(expected, rel=1e-5)
    mae = mean_absolute_error(DATA["test"]["price"], predicted)
    assert run.result["metrics"]["test_mae"] == pytest.approx(mae, rel=1e-5)
    assert run.result["metrics"]["test_loss"] == pytest.approx(other.result["metrics"]["test_loss"], rel=1e-5)
    again = loaded.evaluate(rows=DATA["test"]).metrics
    assert again["test_mae"] == pytest.approx(mae, rel=1e-5)


@pytest.mark.slow
def test_an_export_says_its_unit(tmp_path: Path) -> None:
    run = trainwright.train(
        config({"type": "xgboost", "n_estimators": 3}, "quantile"), runs_dir=tmp_path, data=DATA
    )
    loaded = trainwright.load(run.path)
    assert isinstance(loaded.model, OriginalUnitsModel)
    trainwright.export(run.path, tmp_path / "model.ubj")
    known = json.loads((tmp_path / "model.ubj.certificate.json").read_text(encoding="utf-8"))
    assert known["outputs"][0]["unit"] == "quantile of price"
    assert known["outputs"][0]["target_transform"]["kind"] == "quantile"


def test_a_forest_on_log1p_is_scikit_learns(tmp_path: Path) -> None:
    """`TransformedTargetRegressor` does the same."""
    run = trainwright.train(
        config({"type": "random_forest", "n_estimators": 5}), runs_dir=tmp_path, data=DATA
    )
    loaded = trainwright.load(run.path)
    options = {key: value for key, value in loaded.native.get_params().items() if key != "n_jobs"}
    reference = TransformedTargetRegressor(
        RandomForestRegressor(**options),
        check_inverse=False,
        transformer=FunctionTransformer(np.log1p, np.expm1, check_inverse=False),
    )
    names = ["a", "b", "c"]
    reference.fit(DATA["train"][names].to_numpy("float64"), DATA["train"]["price"].to_numpy("float64"))
    expected = reference.predict(DATA["test"][names].to_numpy("float64"))
    assert loaded.predict(DATA["test"])["prediction"].to_numpy() == pytest.approx(expected, rel=1e-9)


def test_targets_that_it_cannot_take(tmp_path: Path) -> None:
    negative = {**DATA, "val": DATA["val"].assign(price=-DATA["val"]["price"])}
    with pytest.raises(DataError, match="log1p takes values at least 0, but 100 of 100 val targets are not"):
        trainwright.train(config("xgboost"), runs_dir=tmp_path, data=negative)
    labels = {name: part.assign(price=(part["price"] > 7).astype(int)) for name, part in DATA.items()}
    with pytest.raises(InputError, match="log1p is for amounts, but the task is classification"):
        trainwright.train(config("xgboost"), runs_dir=tmp_path, data=labels)
