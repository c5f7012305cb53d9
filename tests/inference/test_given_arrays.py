"""npz files of other rows than a run's own: `predict` and `evaluate`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import root_mean_squared_error

import trainwright
from trainwright.errors import DataError, InputError
from trainwright.inference import predictor as models

CHEAP = {"model": {"type": "mlp", "hidden": [4]}, "training": {"max_steps": 4, "threads": 1}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(**arrays: Any) -> Any:
    np.savez("a.npz", **arrays)
    return trainwright.train({**CHEAP, "data": {"path": "a.npz"}})


def test_rows_of_several_dimensions_are_predicted_and_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4, 3))
    y = np.where(x.sum(axis=(1, 2)) > 0, "up", "down")
    run = trained(X=x, y=y)
    outputs = trainwright.load(run).outputs(x[:20])
    np.savez("rows.npz", X=x[:20], y=y[:20])
    monkeypatch.setattr(models, "_CHUNK_CELLS", 36)  # three rows
    frame = trainwright.predict(run, "rows.npz")
    np.testing.assert_allclose(frame[["probability_down", "probability_up"]], outputs, rtol=1e-6)
    assert frame["prediction"].tolist() == np.array(["down", "up"])[outputs.argmax(axis=1)].tolist()
    loss = trainwright.evaluate(run, data="rows.npz")["test_loss"]
    chosen = outputs[np.arange(20), (y[:20] == "up").astype(int)]
    assert loss == pytest.approx(-np.log(chosen).mean(), rel=1e-5)
    for arrays, says in (
        ({"X": x[:, :2]}, r"rows of shape \(2, 3\) given; the model takes \(4, 3\)"),
        ({"X_train": x, "y_train": y}, "rows.npz holds several splits"),
    ):
        np.savez("rows.npz", **arrays)
        with pytest.raises((InputError, DataError), match=says):
            trainwright.predict(run, "rows.npz")
    np.savez("rows.npz", X=x[:2], y=np.array(["up", "left"]))
    with pytest.raises(DataError, match=r"'left' in row 2.*a class without training rows"):
        trainwright.evaluate(run, data="rows.npz")
    with pytest.raises(InputError, match=r"rows\.npz has no columns to keep: it holds arrays"):
        trainwright.predict(run, "rows.npz", keep=["y"])


def test_columns_of_an_array_are_predicted_and_kept() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    y = x @ [1.0, 2.0, 3.0]
    run = trained(X=x, y=y)
    np.savez("rows.npz", X=x[:20], y=y[:20])
    frame = trainwright.predict(run, "rows.npz", keep=["x1"])
    assert frame["x1"].tolist() == x[:20, 1].tolist()
    np.testing.assert_array_equal(frame["prediction"], trainwright.load(run).outputs(x[:20]))
    rmse = trainwright.evaluate(run, data="rows.npz")["test_rmse"]
    assert rmse == pytest.approx(root_mean_squared_error(y[:20], frame["prediction"]), rel=1e-5)


def test_targets_of_several_values_are_evaluated() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    run = trained(X=x, y=x[:, :2])
    np.savez("rows.npz", X=x[:20], y=x[:20, :2])
    rmse = trainwright.evaluate(run, data="rows.npz")["test_rmse"]
    outputs = trainwright.load(run).outputs(x[:20])
    assert rmse == pytest.approx(root_mean_squared_error(x[:20, :2], outputs), rel=1e-5)
    np.savez("rows.npz", X=x[:20], y=x[:20])
    with pytest.raises(
        InputError, match=r"of shape \(20, 3\) given, for 20 rows; the model was trained on \(2,\)"
    ):
        trainwright.evaluate(run, data="rows.npz")
