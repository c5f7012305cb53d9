"""The sketch of quantiles against NumPy's exact ones, within its stated error."""

import numpy as np
import pytest

from trainwright.monitoring.quantiles import BUCKETS, Quantiles

SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SAMPLES = {
    "normal": lambda draw: draw.normal(3, 10, 20_000),
    "long tail": lambda draw: draw.lognormal(0, 4, 20_000),
    "negative": lambda draw: -draw.exponential(1e-6, 5_000),
    "whole numbers": lambda draw: draw.integers(-5, 60, 5_000).astype(float),
    "constant": lambda draw: np.full(1000, 66.5),
    "wide": lambda draw: draw.normal(size=50_000) * 10.0 ** draw.integers(-150, 150, 50_000),
}


def sketch(values: np.ndarray, parts: int = 1) -> Quantiles:
    made = Quantiles()
    for part in np.array_split(values, parts):
        made.add(part)
    return made


@pytest.mark.parametrize("name", SAMPLES)
def test_quantiles_are_those_of_numpy_within_the_error(name: str) -> None:
    values = SAMPLES[name](np.random.default_rng(0))
    made = sketch(values, parts=7)
    exact = np.quantile(values, SHARES, method="inverted_cdf")
    found = np.array(made.at(SHARES))
    assert (np.abs(found - exact) <= made.error * np.abs(exact)).all()
    assert made.error <= 1 / 64 or name == "wide"
    assert len(made) == len(values)


@pytest.mark.parametrize("name", SAMPLES)
def test_sketches_add_up_in_any_order(name: str) -> None:
    values = SAMPLES[name](np.random.default_rng(1))
    first, second = sketch(values[:700]), sketch(values[700:])
    one, other = Quantiles.from_json(first.to_json()), Quantiles.from_json(second.to_json())
    one.merge(second)
    other.merge(first)
    assert one.at(SHARES) == pytest.approx(other.at(SHARES), rel=1e-9)
    exact = np.quantile(values, SHARES, method="inverted_cdf")
    assert (np.abs(np.array(one.at(SHARES)) - exact) <= one.error * np.abs(exact) * (1 + 1e-9)).all()


def test_memory_is_bounded() -> None:
    draw = np.random.default_rng(2)
    made = sketch(draw.normal(size=100_000) * 10.0 ** draw.integers(-300, 300, 100_000))
    assert len(made.to_json()["keys"]) <= BUCKETS


def test_infinite_values_count_and_nan_does_not() -> None:
    made = sketch(np.array([np.nan, -np.inf, 1.0, np.inf, np.inf, 1e308, 1e308]))
    assert len(made) == 6
    assert made.at((0.0, 1.0)) == [-np.inf, np.inf]
    assert made.at((0.5,)) == [pytest.approx(1e308, rel=made.error)]
    assert Quantiles().at((0.5,)) == [None]
    assert Quantiles.from_json(made.to_json()).at((0.0, 1.0)) == [-np.inf, np.inf]
