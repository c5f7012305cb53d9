"""Several target columns: values with their names, and labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import f1_score, root_mean_squared_error

import trainwright
from late import keras_in_one_thread
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError, InputError

NAMES = ["a", "b", "c"]


def rows(count: int = 300, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(count, 3)).astype(np.float32), columns=NAMES)
    price, rent = np.exp(frame["a"]), frame["b"] + 0.1 * draw.normal(size=count)
    return frame.assign(
        price=price.astype(np.float32), rent=rent.astype(np.float32),
        hot=(frame["a"] > 0).astype(int), wet=frame["b"] > 0.5,
    )  # fmt: skip


DATA = {"train": rows(), "val": rows(80, 1), "test": rows(120, 2)}
VALUES = ["price", "rent"]
LABELS = ["hot", "wet"]


def config(model: Any, target: Any, **data: Any) -> dict[str, Any]:
    own = {"target": target, "features": NAMES, "standardize": False, **data}
    training = {"epochs": 40, "learning_rate": 0.01} if "mlp" in str(model) else {}
    return {"data": own, "model": model, "experiment": {"seed": 2}, "training": training}


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, "quantile"])
@pytest.mark.parametrize("model", ["random_forest", "xgboost", "catboost", "mlp"])
def test_values_have_their_names(model: str, transform: str | None, tmp_path: Path) -> None:
    options = {"mlp": {"hidden": [32]}}.get(model, {"n_estimators": 40})
    settings = config({"type": model, **options}, VALUES, target_transform=transform)
    run = trainwright.train(settings, runs_dir=tmp_path, data=DATA)
    frame = trainwright.load(run.path).predict(DATA["test"])
    assert list(frame.columns) == ["prediction_price", "prediction_rent"]
    metrics, errors = run.result["metrics"], []
    for name in VALUES:
        errors.append(root_mean_squared_error(DATA["test"][name], frame[f"prediction_{name}"]))
        assert metrics[f"test_rmse_{name}"] == pytest.approx(errors[-1], rel=1e-5)
    assert metrics["test_rmse"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert errors[1] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("model", ["random_forest", "xgboost", "catboost", "mlp"])
def test_columns_of_0_and_1_are_labels(model: str, tmp_path: Path) -> None:
    options = {"mlp": {"hidden": [32]}}.get(model, {"n_estimators": 40})
    run = trainwright.train(config({"type": model, **options}, LABELS), runs_dir=tmp_path, data=DATA)
    frame = trainwright.load(run.path).predict(DATA["test"])
    assert list(frame.columns) == [
        "prediction_hot", "prediction_wet", "probability_hot", "probability_wet",
    ]  # fmt: skip
    truth, predicted = DATA["test"][LABELS].astype(int), frame[["prediction_hot", "prediction_wet"]]
    expected = f1_score(truth.to_numpy(), predicted.to_numpy(), average="macro")
    assert run.result["metrics"]["test_f1"] == pytest.approx(expected)
    assert expected > 0.85


def test_they_are_those_of_the_libraries(tmp_path: Path) -> None:
    import catboost

    x, y = (DATA["train"][names].to_numpy("float32") for names in (NAMES, VALUES))
    test = DATA["test"][NAMES].to_numpy("float32")

    def outputs(model: str, target: list[str], **options: Any) -> tuple[np.ndarray, Any]:
        model_ = {"type": model, "n_estimators": 10, **options}
        settings = config(model_, target) | {"checkpoint": {"save_top_k": 0}}
        loaded = trainwright.load(trainwright.train(settings, runs_dir=tmp_path, data=DATA).path)
        return loaded.outputs(DATA["test"]), loaded.native

    mine, native = outputs("random_forest", VALUES)
    own = {key: value for key, value in native.get_params().items() if key != "n_jobs"}
    assert mine == pytest.approx(RandomForestRegressor(**own).fit(x, y).predict(test), rel=1e-5)
    labels = DATA["train"][LABELS].to_numpy("int64")
    mine, native = outputs("random_forest", LABELS)
    own = {key: value for key, value in native.get_params().items() if key != "n_jobs"}
    reference = RandomForestClassifier(**own).fit(x, labels).predict_proba(test)
    assert mine == pytest.approx(np.stack([part[:, 1] for part in reference], axis=1), abs=1e-6)
    for loss, target, y_ in (("MultiRMSE", VALUES, y), ("MultiLogloss", LABELS, labels)):
        mine, native = outputs("catboost", target, max_depth=3)
        booster = catboost.CatBoost(
            {
                "loss_function": loss, "iterations": 10, "depth": 3, "learning_rate": 0.1, "verbose": False,
                "thread_count": 1, "random_seed": native.get_all_params()["random_seed"],
                "allow_writing_files": False,
            }
        )  # fmt: skip
        booster.fit(x, y_)
        kind = "RawFormulaVal" if loss == "MultiRMSE" else "Probability"
        assert mine == pytest.approx(booster.predict(test, prediction_type=kind), abs=1e-6), loss


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        ("lightgbm", VALUES, r"LightGBM takes one target, the data has 2; train a model for each"),
        ("random_forest", ["price", "nope"], r"data.target: there is no column 'nope'"),
        ("random_forest", ["price", "price"], r"data.target names a column twice"),
        ("random_forest", ["price", "a"], r"data.features names the target 'a'"),
        ("random_forest", ["price", "word"], r"the target 'word' holds text values; several targets must be"),
        ("random_forest", ["price", "one"], r"the target 'one' has only one value \(1\)"),
        ("gradient_boosting", VALUES, r"predicts one value, but the data have 2; use random_forest"),
    ],
)  # fmt: skip
def test_targets_that_cannot_be_are_refused(
    model: str, target: list[str], message: str, tmp_path: Path
) -> None:
    data = {name: part.assign(word="x", one=1) for name, part in DATA.items()}
    with pytest.raises(InputError, match=message):
        trainwright.train(config(model, target), runs_dir=tmp_path, data=data)


def test_a_task_that_takes_one_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names 2 columns, but the task is classification"):
        trainwright.train(config("xgboost", LABELS, task="classification"), runs_dir=tmp_path, data=DATA)
    with pytest.raises(DataError, match="task is multilabel, which takes 0 or 1 for each label of a row"):
        trainwright.train(
            config("xgboost", ["hot", "price"], task="multilabel"), runs_dir=tmp_path, data=DATA
        )


def test_unlike_scales_are_said() -> None:
    config_ = DataConfig(target=VALUES, features=NAMES)
    tables = {name: part.assign(price=part["price"] * 1000) for name, part in DATA.items()}
    (warning,) = [line for line in from_objects(tables, config_).warnings if "varies" in line]
    assert "the target 'price' varies" in warning
    assert "set data.target_transform: standardize" in warning
    scaled = config_.model_copy(update={"target_transform": "standardize"})
    bundle = from_objects(tables, scaled)
    assert not [line for line in bundle.warnings if "varies" in line]


def test_keras_takes_values(tmp_path: Path) -> None:
    keras_in_one_thread()
    settings = config({"type": "keras_mlp", "hidden": [32]}, VALUES, target_transform="standardize")
    run = trainwright.train(
        settings | {"training": {"epochs": 5, "threads": 1}}, runs_dir=tmp_path, data=DATA
    )
    frame = trainwright.load(run.path).predict(DATA["test"])
    error = root_mean_squared_error(DATA["test"]["rent"], frame["prediction_rent"])
    assert run.result["metrics"]["test_rmse_rent"] == pytest.approx(error, rel=1e-5)


def test_arrays_take_the_names(tmp_path: Path) -> None:
    pairs = {name: (part[NAMES].to_numpy(), part[VALUES].to_numpy()) for name, part in DATA.items()}
    settings = {"data": {"target": VALUES}, "model": {"type": "random_forest", "n_estimators": 3}}
    run = trainwright.train(settings, runs_dir=tmp_path, data=pairs)
    assert "test_rmse_rent" in run.result["metrics"]
    with pytest.raises(DataError, match=r"data.target names 3 targets, but y has 2"):
        trainwright.train({**settings, "data": {"target": [*VALUES, "x"]}}, runs_dir=tmp_path, data=pairs)


@pytest.mark.slow
def test_from_a_file_to_a_report(tmp_path: Path) -> None:
    DATA["train"].to_csv(tmp_path / "homes.csv", index=False)
    settings = config({"type": "random_forest", "n_estimators": 5}, VALUES, path=str(tmp_path / "homes.csv"))
    run = trainwright.train(settings, runs_dir=tmp_path)
    assert list(trainwright.predict(run.path, tmp_path / "homes.csv").columns) == [
        "prediction_price", "prediction_rent",
    ]  # fmt: skip
    again = trainwright.evaluate(run.path, data=tmp_path / "homes.csv")
    assert {"test_rmse_price", "test_rmse_rent"} <= set(again)
    report = (Path(run.path) / "report.html").read_text(encoding="utf-8")
    assert "Predicted against true price" in report
