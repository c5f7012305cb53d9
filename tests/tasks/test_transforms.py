"""Transformations of targets, compared with formulas and with scikit-learn's."""

import json

import numpy as np
import pytest
from sklearn.preprocessing import QuantileTransformer

from trainwright.errors import DataError
from trainwright.tasks.support.transforms import TargetTransform, fit

KINDS = ["log1p", "log", "sqrt", "quantile", "standardize"]


def amounts(rows: int = 3000, columns: int | None = None) -> np.ndarray:
    shape = (rows,) if columns is None else (rows, columns)
    return np.random.default_rng(1).lognormal(3, 1.5, shape)


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_inverse_gives_the_value_back(kind: str, columns: int | None) -> None:
    values = amounts(columns=columns)
    fitted = fit(kind, values)
    stored = json.loads(json.dumps(fitted.to_json()))
    same = TargetTransform(stored["kind"], stored["columns"])
    scores = same.forward(values)
    assert scores.shape == values.shape
    assert scores.dtype == np.float64
    assert same.inverse(scores) == pytest.approx(values, rel=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_monotone(kind: str) -> None:
    fitted = fit(kind, amounts())
    assert (np.diff(fitted.inverse(np.linspace(-9, 9, 2001))) >= 0).all()
    assert (np.diff(fitted.forward(np.linspace(1, 9999, 2001))) >= 0).all()


def test_the_formulas() -> None:
    values = np.array([0.5, 2, 7], np.float32)
    assert fit("log1p", values).forward(values) == pytest.approx(np.log(1 + values))
    assert fit("log", values).forward(values) == pytest.approx(np.log(values))
    assert fit("sqrt", values).forward(values) == pytest.approx(values**0.5)
    assert fit("standardize", values).forward(values) == pytest.approx(
        (values - values.mean()) / values.std()
    )
    assert fit("sqrt", values).inverse(np.array([-1.0, 3.0])).tolist() == [0.0, 9.0]


def test_ranks_are_those_of_scikit_learn() -> None:
    values = amounts(20_000)
    fitted = fit("quantile", values)
    reference = QuantileTransformer(n_quantiles=1000, output_distribution="normal", subsample=None)
    expected = reference.fit_transform(values[:, None])[:, 0]
    inner = abs(expected) < 2.5  # they differ in how far the ends go
    assert fitted.forward(values)[inner] == pytest.approx(expected[inner], abs=0.01)
    grid = np.linspace(-2.5, 2.5, 101)
    assert fitted.inverse(grid) == pytest.approx(reference.inverse_transform(grid[:, None])[:, 0], rel=0.01)


def test_equal_values_share_a_rank() -> None:
    values = np.array([0.0] * 50 + [1, 2, 3] * 10 + [9.0] * 20)
    fitted = fit("quantile", values)
    assert fitted.inverse(fitted.forward(values)) == pytest.approx(values, abs=1e-5)
    assert fitted.forward(np.array([0.0]))[0] == pytest.approx(
        -0.6745, abs=1e-3
    )  # the middle of 50 of 100 rows
    assert fitted.inverse(np.array([-9.0, 9.0])).tolist() == [0.0, 9.0]


@pytest.mark.parametrize(
    ("kind", "value", "wants"),
    [("log1p", -1.5, "at least 0"), ("log", 0.0, "above 0"), ("sqrt", -2.0, "at least 0")],
)
def test_values_that_it_cannot_take(kind: str, value: float, wants: str) -> None:
    values = np.append(amounts(20), value)
    message = f"{kind} takes values {wants}, but 1 of 21 training targets are not, the first \\[{value}\\]"
    with pytest.raises(DataError, match=message):
        fit(kind, values)
