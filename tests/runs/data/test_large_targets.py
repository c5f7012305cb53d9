"""Targets whose differences float32 loses: models learn them, and metrics are those of the user's values."""

import contextlib
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import trainwright
from trainwright.config.schema import RunConfig
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import DataError, InputError
from trainwright.types import Array, ArraySpec, DataInfo, features_spec

LARGE = 1.7e9  # Unix seconds


def rows(count: int, seed: int, large: float = LARGE) -> pd.DataFrame:
    """Return rows whose target differs by 300 seconds, of which a model can tell most."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.uniform(-1, 1, (count, 2)), columns=["a", "b"])
    return frame.assign(when=large + 130 * frame["a"] + draw.uniform(0, 40, count))


DATA = {"train": rows(400, 0), "val": rows(120, 1)}
NETWORK = {"epochs": 20, "learning_rate": 0.02, "batch_size": 50}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "xgboost": ({"n_estimators": 40}, {}),
    "lightgbm": ({"n_estimators": 40}, {}),
    "catboost": ({"n_estimators": 60}, {}),
    "ridge": ({}, {}),
    "mlp": ({"hidden": [16]}, NETWORK),
    "keras_mlp": ({"hidden": [16]}, NETWORK),
}


def config(model: str, **data: Any) -> dict[str, Any]:
    options, training = MODELS[model]
    return {
        "data": {"target": "when", **data},
        "model": {"type": model, **options},
        "training": {"threads": 1, **training},  # TensorFlow cannot change them in a process
        "experiment": {"seed": 3},
    }


def rmse(targets: Array, predictions: Array) -> float:
    return float(np.sqrt(np.mean((np.asarray(predictions, np.float64) - np.asarray(targets)) ** 2)))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_metrics_are_those_of_the_users_values(model: str, tmp_path: Path) -> None:
    """A run is as good as one on seconds since noon, say, and says how good it is."""
    run = trainwright.train(config(model), runs_dir=tmp_path, data=DATA)
    loaded = trainwright.load(run.path)
    predicted = loaded.predict(DATA["val"])["prediction"].to_numpy()
    true = rmse(DATA["val"]["when"], predicted)
    assert predicted.dtype == np.float64
    assert run.result["metrics"]["val_rmse"] == pytest.approx(true, rel=1e-6)
    assert loaded.evaluate(rows=DATA["val"]).metrics["test_rmse"] == pytest.approx(true, rel=1e-6)
    assert 10 < true < 20  # what is left of the target is uniform in 40 seconds, whose deviation is 11.5


@pytest.mark.slow
def test_a_booster_is_the_one_trained_by_hand_on_the_shifted_target(tmp_path: Path) -> None:
    import xgboost

    run = trainwright.train(config("xgboost"), runs_dir=tmp_path, data=DATA)
    loaded = trainwright.load(run.path)
    (offset,) = loaded.info.target_offset
    assert abs(offset - DATA["train"]["when"].mean()) < DATA["train"]["when"].std()
    x, y = DATA["train"][["a", "b"]].to_numpy(np.float32), DATA["train"]["when"].to_numpy()
    rounds = loaded.native.num_boosted_rounds()  # of the best model
    by_hand = xgboost.train({"seed": 3}, xgboost.QuantileDMatrix(x, y - offset), rounds)
    new = DATA["val"][["a", "b"]].to_numpy(np.float32)
    expected = by_hand.predict(xgboost.DMatrix(new)).astype(np.float64) + offset
    assert loaded.predict(DATA["val"])["prediction"].to_numpy() == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_a_fork_that_would_take_the_values_themselves_is_refused(tmp_path: Path) -> None:
    """Trees that have learned a shifted target answer in its unit: other trees cannot be added to them."""
    run = trainwright.train(config("xgboost"), runs_dir=tmp_path, data=DATA)
    longer = {"model.n_estimators": 60}
    with pytest.raises(
        InputError, match=r"its target was shifted by 17\d+\.0 .* and that of this run is not"
    ):
        trainwright.fork(run.path, {"model.metric": "rmsle", **longer}, runs_dir=tmp_path, data=DATA)
    fork = trainwright.fork(run.path, {"model.metric": "mphe", **longer}, runs_dir=tmp_path, data=DATA)
    predicted = trainwright.load(fork.path).predict(DATA["val"])["prediction"].to_numpy()
    assert 10 < rmse(DATA["val"]["when"], predicted) < 20


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lightgbm", "mlp", "random_forest"])
def test_amounts_are_scored_as_scikit_learn_scores_them(model: str, tmp_path: Path) -> None:
    given = {name: rows(200, seed, 1e9) for name, seed in (("train", 0), ("val", 1))}
    settings = config(model) if model in MODELS else {"data": {"target": "when"}, "model": model}
    run = trainwright.train(settings, runs_dir=tmp_path, data=given)
    predicted = trainwright.load(run.path).predict(given["val"])["prediction"].to_numpy()
    measured = run.result["metrics"]
    true = given["val"]["when"].to_numpy()
    assert measured["val_rmse"] == pytest.approx(root_mean_squared_error(true, predicted), rel=1e-6)
    assert measured["val_mae"] == pytest.approx(mean_absolute_error(true, predicted), rel=1e-6)
    assert measured["val_r2"] == pytest.approx(r2_score(true, predicted), rel=1e-6)


@pytest.mark.slow
def test_exports_and_explanations_know_the_offset(tmp_path: Path) -> None:
    run = trainwright.train(config("lightgbm"), runs_dir=tmp_path, data=DATA)
    loaded = trainwright.load(run.path)
    predicted = loaded.predict(DATA["val"])["prediction"].to_numpy()
    path = trainwright.export(run.path, tmp_path / "model", "native")
    reader = runpy.run_path(str(path / "reader.py"))
    feeds = {name: DATA["val"][name].to_numpy()[:, None] for name in ("a", "b")}
    assert reader["open_artifact"](path)(feeds)["prediction"][:, 0] == pytest.approx(predicted, abs=1e-6)
    trainwright.export(run.path, tmp_path / "plain.txt")
    assert "when less 17" in (tmp_path / "plain.txt.certificate.json").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("xgboost", {"objective": "count:poisson"}),
        ("lightgbm", {"objective": "mape"}),
        pytest.param("xgboost", {"base_score": 1.7e9}, marks=pytest.mark.soak),
        pytest.param("catboost", {"objective": "Tweedie:variance_power=1.5"}, marks=pytest.mark.soak),
    ],
)
def test_what_depends_on_values_is_not_shifted_and_says_so(
    model: str, options: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(model)
    settings["model"] |= options
    run = trainwright.train(settings, runs_dir=tmp_path, data=DATA)
    loaded = trainwright.load(run.path)
    assert not loaded.info.target_offset
    assert "the model learns it in float32" in str(run.manifest)
    true = rmse(DATA["val"]["when"], loaded.predict(DATA["val"])["prediction"].to_numpy())
    assert run.result["metrics"]["val_rmse"] == pytest.approx(true, rel=1e-6)


class Items:
    """A map-style data set of such rows."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._x = frame[["a", "b"]].to_numpy(np.float32)
        self._y = frame["when"].to_numpy()

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Array, float]:
        return self._x[index], float(self._y[index])


@pytest.mark.slow
def test_samples_that_are_read_one_by_one(tmp_path: Path) -> None:
    data = {name: Items(part) for name, part in DATA.items()}
    run = trainwright.train(config("xgboost"), runs_dir=tmp_path, data=data)
    in_memory = trainwright.train(config("xgboost"), runs_dir=tmp_path / "memory", data=DATA)
    loaded = trainwright.load(run.path)
    assert loaded.info.target_offset
    true = rmse(
        DATA["val"]["when"], loaded.predict(DATA["val"][["a", "b"]].to_numpy(np.float32))["prediction"]
    )
    assert run.result["metrics"]["val_rmse"] == pytest.approx(true, rel=1e-6)
    assert true == pytest.approx(in_memory.result["metrics"]["val_rmse"], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["xgboost", "mlp"])
def test_several_targets(model: str, tmp_path: Path) -> None:
    data = {name: part.assign(other=part["b"]) for name, part in DATA.items()}
    settings = config(model, standardize=False) | {"data": {"target": ["when", "other"]}}
    run = trainwright.train(settings, runs_dir=tmp_path, data=data)
    table = trainwright.load(run.path).predict(data["val"])
    true = rmse(data["val"]["when"], table["prediction_when"].to_numpy())
    assert run.result["metrics"]["val_rmse_when"] == pytest.approx(true, rel=1e-6)
    assert true < 60


@pytest.mark.parametrize("value", [2**60 + 1, 2**63 + 3])
def test_a_whole_number_beyond_float64_is_named(value: int, tmp_path: Path) -> None:
    whole = np.array([value + 2 * i for i in range(40)], np.uint64)
    frame = pd.DataFrame({"a": np.arange(40.0), "when": whole})
    settings = config("ridge", task="regression")
    with pytest.raises(DataError, match=r"float64 cannot hold exactly; subtract a constant"):
        trainwright.train(settings, runs_dir=tmp_path, data=frame)


def test_huge_whole_numbers_may_be_classes(tmp_path: Path) -> None:
    labels = [2**60 + 1, 2**60 + 3]
    draw = np.random.default_rng(0).normal(size=80)
    frame = pd.DataFrame({"a": draw, "when": [labels[int(one > 0)] for one in draw]})
    settings = {"data": {"target": "when"}, "model": {"type": "logistic_regression"}}
    run = trainwright.train(settings, runs_dir=tmp_path, data=frame)
    predicted = trainwright.load(run.path).predict(frame)["prediction"].tolist()
    assert set(predicted) == set(labels)
    assert np.mean([one == two for one, two in zip(predicted, frame["when"], strict=True)]) > 0.9


@pytest.mark.slow
def test_metrics_that_a_keras_model_was_compiled_with(tmp_path: Path) -> None:
    """Keras computes metrics in float32, in which the values themselves would be 128 apart."""
    import keras
    import tensorflow

    with contextlib.suppress(RuntimeError):  # it has begun, with the threads of another test here
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    measured = [keras.metrics.RootMeanSquaredError(), "mape"]
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse", metrics=measured)
    settings = {"data": {"target": "when"}, "training": {"epochs": 10, "batch_size": 50, "threads": 1}}
    run = trainwright.train(settings, model=model, data=DATA, runs_dir=tmp_path)
    metrics = run.result["metrics"]
    assert metrics["val_root_mean_squared_error"] == pytest.approx(metrics["val_rmse"], rel=1e-5)
    assert metrics["val_mape"] == pytest.approx(100 * metrics["val_mae"] / LARGE, rel=1e-2)


def test_heads_whose_targets_float32_rounds_are_named(caplog: pytest.LogCaptureFixture) -> None:
    from trainwright.frameworks.torch.heads import Heads
    from trainwright.frameworks.torch.state.custom import CustomLosses

    inputs = {name: ArraySpec((), "float32") for name in ("when", "size")} | features_spec((2,))
    settings = RunConfig.model_validate(
        {"model": {"type": "mlp"}, "training": {"heads": {"when": {}, "size": {}}}}
    )
    heads = Heads(settings, DataInfo("regression", inputs, 1), CustomLosses())
    frame = DATA["train"]
    arrays = {"when": frame["when"].to_numpy(np.float32), "size": frame["a"].to_numpy(np.float32)}
    heads.warn_of_rounding(Arrays(arrays))
    (line,) = caplog.messages
    assert line.startswith("the targets 'when' of a head")
