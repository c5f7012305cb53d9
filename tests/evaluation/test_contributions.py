"""Contributions are the Shapley values of their definition, and agree with shap and with LightGBM."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

from trainwright.evaluation.contributions import MOST_COLUMNS, MOST_MIXTURES, Contributions, Mixtures
from trainwright.types import Array

Model = Callable[[Array], Array]


def explained(model: Model, row: Array, background: Array, seed: int = 0, piece: int = 700) -> Contributions:
    mixtures = Mixtures(len(row), len(background), seed)
    parts = []
    for start in range(0, len(mixtures), piece):
        taken, ids = mixtures.at(start, start + piece)
        parts.append(model(np.where(taken, row, background[ids])))
    values = np.concatenate(parts) if parts else np.empty(0)
    return mixtures.contributions(float(model(row[None])[0]), model(background), values)


def by_definition(model: Model, row: Array, background: Array) -> Array:
    """The mean, over all orders of the columns, of what each column adds to the mean prediction."""
    count, cache = len(row), {}
    for size in range(count + 1):
        for chosen in combinations(range(count), size):
            rows = background.copy()
            rows[:, list(chosen)] = row[list(chosen)]
            cache[chosen] = float(model(rows).mean())
    values = np.zeros(count)
    for order in permutations(range(count)):
        for place, column in enumerate(order):
            before, after = tuple(sorted(order[:place])), tuple(sorted(order[: place + 1]))
            values[column] += (cache[after] - cache[before]) / math.factorial(count)
    return values


def bumpy(rows: Array) -> Array:
    """A model with interactions of two and three columns."""
    a = rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2])
    return np.asarray(a + (rows[:, 3] > 0) * rows[:, 0] * rows[:, -1] + rows.sum(axis=1) / 3)


def rows_of(columns: int, seed: int = 1) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=columns), draw.normal(size=(50, columns))


@pytest.mark.parametrize("columns", [4, 6])
def test_few_columns_get_the_values_of_the_definition(columns: int) -> None:
    row, background = rows_of(columns)
    found = explained(bumpy, row, background)
    np.testing.assert_allclose(found.values, by_definition(bumpy, row, background), rtol=0, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 2, 8, 9, 30, 300])
def test_base_and_contributions_sum_to_the_prediction(columns: int) -> None:
    row, background = rows_of(columns)

    def model(rows: Array) -> Array:
        return np.asarray(np.tanh(rows.sum(axis=1)) + rows[:, 0] * rows[:, -1])

    found = explained(model, row, background)
    assert found.base + found.values.sum() == pytest.approx(float(model(row[None])[0]), abs=1e-13)


def test_many_columns_are_within_their_standard_errors() -> None:
    """shap enumerates the sets of the ten columns that matter; the others count for nothing."""
    shap = pytest.importorskip("shap")
    row, background = rows_of(10)
    exact = shap.ExactExplainer(bumpy, shap.maskers.Independent(background, max_samples=50))(row[None])
    sampled = [explained(bumpy, row, background, seed) for seed in range(40)]
    differences = np.array([one.values for one in sampled]) - exact.values[0]
    errors = np.array([one.errors for one in sampled])
    assert exact.base_values[0] == pytest.approx(sampled[0].base, abs=1e-12)
    # The standard error counts the draw of the background, too, which is the same here.
    assert (np.abs(differences) <= 3 * errors).mean() > 0.99
    spread = differences.std(axis=0) / math.sqrt(len(sampled))
    assert (np.abs(differences.mean(axis=0)) <= 4 * spread + 1e-12).all()


def test_a_standard_error_is_that_of_another_background() -> None:
    row, _ = rows_of(10)
    draws = [explained(bumpy, row, rows_of(10, seed)[1], seed) for seed in range(2, 202)]
    spread = np.array([one.values for one in draws]).std(axis=0, ddof=1)
    stated = np.sqrt(np.mean([np.square(one.errors) for one in draws if one.errors is not None], axis=0))
    np.testing.assert_allclose(stated, spread, rtol=0.25)


def test_trees_get_the_values_of_lightgbm_where_columns_are_independent() -> None:
    """For a sum of one-column trees path-dependent and interventional values differ by the base alone."""
    lightgbm = pytest.importorskip("lightgbm")
    draw = np.random.default_rng(0)
    features = draw.normal(size=(400, 5))
    targets = features[:, 0] + np.sin(3 * features[:, 1]) + features[:, 2] ** 2
    booster = lightgbm.train(
        {"num_leaves": 2, "verbose": -1, "num_threads": 1}, lightgbm.Dataset(features, targets), 60
    )
    found = explained(booster.predict, features[0], features[:50])
    theirs: Any = booster.predict(
        features, pred_contrib=True
    )  # (rows, columns and base), of the training rows
    shift = theirs[:50, :-1].mean(axis=0)  # of the background rows from all training rows
    np.testing.assert_allclose(found.values, theirs[0, :-1] - shift, rtol=0, atol=1e-9)


def test_the_same_seed_gives_the_same_bits_and_another_one_other_orders() -> None:
    row, background = rows_of(12)
    first, again = (explained(bumpy, row, background, 3, piece) for piece in (700, 13))
    assert first.values.tobytes() == again.values.tobytes()
    assert explained(bumpy, row, background, 4).values.tobytes() != first.values.tobytes()


def test_the_number_of_predicted_rows_is_bounded() -> None:
    for columns in (1, 8, 9, 100, 201, 202, 1000, MOST_COLUMNS):
        assert len(Mixtures(columns, 50, 0)) <= MOST_MIXTURES
    assert Mixtures(201, 50, 0).background == 50
    assert Mixtures(MOST_COLUMNS, 50, 0).background == 5
    assert explained(bumpy, *(one[..., :5] for one in (rows_of(5)[0], rows_of(5)[1][:1]))).errors is None
