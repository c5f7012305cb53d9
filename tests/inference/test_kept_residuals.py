"""A run keeps the residuals of its validation rows, so that intervals need the rows no more."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

import trainwright
from trainwright.config import load
from trainwright.evaluation.metrics import EvaluationResult
from trainwright.inference.intervals import FILE, Residuals, around_quantile, calibrated, residuals
from trainwright.types import DataInfo, features_spec

INFO = DataInfo("regression", features_spec((1,)), 1, target="y")


def evaluation(errors: np.ndarray) -> EvaluationResult:
    """Predictions of zero, off by these amounts."""
    shuffled = np.random.default_rng(0).permutation(errors)
    return EvaluationResult("val", {}, np.zeros(len(errors)), shuffled, np.arange(len(errors)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.99])
@pytest.mark.parametrize("rows", [150, 5000])
def test_the_radius_is_the_residual_of_its_rank_or_one_just_above(rows: int, level: float) -> None:
    kept = residuals(evaluation(np.arange(1.0, rows + 1)), INFO)
    assert len(kept.values) == min(rows, 1000)
    radius = float(calibrated(Residuals.from_json(kept.to_json()), level, INFO).radius[0])
    rank = math.ceil((rows + 1) * level)
    assert rank <= radius <= rank + rows // 1000
    assert rows == 5000 or radius == rank


@pytest.mark.parametrize(("alpha", "is_told"), [(0.9, True), (0.5, False), (None, False)])
def test_intervals_around_another_quantile_than_the_median_are_told(
    alpha: float | None, is_told: bool
) -> None:
    params = {} if alpha is None else {"objective": "quantile", "alpha": alpha}
    config = load({"model": {"type": "lightgbm", **params}, "data": {"type": "diabetes"}}).config
    assert (around_quantile(config) is not None) == is_told


def test_intervals_after_training_on_a_frame_and_when_the_file_is_gone(tmp_path: Path) -> None:
    frame: pd.DataFrame = load_diabetes(as_frame=True).frame
    config = {"data": {"target": "target"}, "model": {"type": "ridge"}, "experiment": {"name": "frame"}}
    given = trainwright.train(config, data=frame, runs_dir=tmp_path)
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    read = trainwright.train(
        {**config, "data": {"path": str(path), "target": "target"}, "experiment": {"name": "file"}},
        runs_dir=tmp_path,
    )
    again = trainwright.load(read)
    (read.path / FILE).unlink()  # as of a run that has not ended: the rows are read
    expected = again.predict_interval(frame, 0.8)
    path.unlink()
    told = trainwright.load(given).predict_interval(frame, 0.8)
    pd.testing.assert_frame_equal(told[["lower", "upper"]], expected[["lower", "upper"]])
    inside = (told.lower <= frame.target) & (frame.target <= told.upper)
    assert 0.7 < inside.mean() < 0.95
