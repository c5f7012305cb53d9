"""The statistics of drift against scipy's."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance

from trainwright.monitoring.columns import fit
from trainwright.monitoring.statistics import (
    chi_square,
    jensen_shannon,
    kolmogorov_smirnov,
    psi,
    scores,
    shares_of,
)

NO_BEYOND = np.zeros(2)


def counts(seed: int, cells: int = 8) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(1, 200, cells), draw.integers(1, 90, cells)


@pytest.mark.parametrize("seed", range(5))
def test_chi_square_is_scipys(seed: int) -> None:
    first, second = counts(seed)
    statistic, freedom = chi_square(first, second)
    theirs = stats.chi2_contingency(np.stack([first, second]), correction=False)
    assert float(statistic) == pytest.approx(theirs.statistic)
    assert int(freedom) == theirs.dof


@pytest.mark.parametrize("seed", range(5))
def test_kolmogorov_smirnov_is_scipys_of_the_bins(seed: int) -> None:
    first, second = counts(seed)
    one, two = (np.repeat(np.arange(8), of) for of in (first, second))
    assert float(kolmogorov_smirnov(first, second)) == pytest.approx(stats.ks_2samp(one, two).statistic)


def test_kolmogorov_smirnov_of_numbers_is_that_of_the_values_but_for_the_width_of_a_bin() -> None:
    draw = np.random.default_rng(0)
    train, window = draw.normal(size=3000), draw.normal(0.3, 1.2, 700)
    fitted = fit("x", train, "input")
    assert fitted is not None
    column, cells = fitted
    found = kolmogorov_smirnov(
        np.bincount(cells, minlength=column.cells)[1:],
        np.bincount(column.cells_of(window), minlength=column.cells)[1:],
    )
    exact = stats.ks_2samp(train, window).statistic
    assert exact - 0.02 <= found <= exact


@pytest.mark.parametrize("seed", range(5))
def test_jensen_shannon_is_scipys(seed: int) -> None:
    first, second = (shares_of(one) for one in counts(seed))
    assert jensen_shannon(first, second) == pytest.approx(distance.jensenshannon(first, second, base=2))


def test_psi_by_hand() -> None:
    one, two = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert psi(one, two) == pytest.approx(-0.25 * np.log(0.5) + 0.25 * np.log(1.5))
    assert psi(one, one) == 0


def test_scores_are_the_probabilities_of_scipys_tests() -> None:
    train = np.array(["a"] * 500 + ["b"] * 300 + [None] * 40, dtype=object)
    fitted = fit("plan", train, "input")
    assert fitted is not None
    column, cells = fitted
    first = np.bincount(cells, minlength=column.cells)
    second = np.array([30, 12, 100, 60])  # missing, unseen, a, b
    shape, missing, unseen = scores(column, first, second, NO_BEYOND)
    theirs = stats.chi2_contingency(np.stack([first[2:], second[2:]]), correction=False).pvalue
    assert shape == pytest.approx(-np.log10(theirs))
    share = second.sum() / (first.sum() + second.sum())
    assert missing == pytest.approx(-np.log10(2 * stats.binom.sf(29, 70, share)))
    present = second[1:].sum() / (first[1:].sum() + second[1:].sum())
    assert unseen == pytest.approx(-np.log10(stats.binom.sf(11, 12, present)))


def test_score_of_kolmogorov_smirnov_is_the_asymptotic_one() -> None:
    draw = np.random.default_rng(1)
    fitted = fit("x", draw.normal(size=2000), "input")
    assert fitted is not None
    column, cells = fitted
    first = np.bincount(cells, minlength=column.cells)
    second = np.bincount(column.cells_of(draw.normal(0.15, 1, 500)), minlength=column.cells)
    d = float(kolmogorov_smirnov(first[1:], second[1:]))
    expected = -np.log10(stats.kstwobign.sf(np.sqrt(2000 * 500 / 2500) * d))
    assert scores(column, first, second, NO_BEYOND)[0] == pytest.approx(expected)


def test_values_beyond_all_others_have_an_exact_score() -> None:
    """The largest three of 2,500 values are all of the 500 with the probability (1 / 5) ** 3."""
    fitted = fit("x", np.random.default_rng(1).normal(size=2000), "input")
    assert fitted is not None
    column, cells = fitted
    first = np.bincount(cells, minlength=column.cells)
    second = np.round(first / 4).astype(int)
    found = scores(column, first, second, np.array([0, 3]))[2]
    share = second.sum() / (first.sum() + second.sum())
    assert found == pytest.approx(-np.log10(2 * share**3))
