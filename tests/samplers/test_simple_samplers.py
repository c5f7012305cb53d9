"""Random, grid and quasi-random search, compared with formulas and SciPy."""

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.stats import kstest, qmc

from trainwright.errors import InputError
from trainwright.samplers.base import Parameter
from trainwright.samplers.grid import GridParams, GridSampler
from trainwright.samplers.qmc import QmcParams, QmcSampler
from trainwright.samplers.random import RandomParams, RandomSampler
from trainwright.testing.sampler_suite import GRID, SamplerSuite


class TestRandom(SamplerSuite):
    cls = RandomSampler


class TestGrid(SamplerSuite):
    cls = GridSampler
    space = GRID
    is_seeded = False


class TestSobol(SamplerSuite):
    cls = QmcSampler


class TestHalton(SamplerSuite):
    cls = QmcSampler
    params: ClassVar[Mapping[str, Any]] = {"qmc_type": "halton"}


def test_random_values_have_their_distribution() -> None:
    space = [
        Parameter("log", 1e-3, 10.0, log=True),
        Parameter("flat", -2.0, 3.0),
        Parameter("whole", 1, 4, integer=True),
        Parameter("log_whole", 1, 8, log=True, integer=True),
    ]
    sampler = RandomSampler(RandomParams(), space, "min", 5)
    drawn = [sampler.propose(number, []) for number in range(2000)]
    logs = np.log([one["log"] for one in drawn])
    assert kstest(logs, "uniform", args=(np.log(1e-3), np.log(10.0) - np.log(1e-3))).pvalue > 0.01
    assert kstest([one["flat"] for one in drawn], "uniform", args=(-2.0, 5.0)).pvalue > 0.01
    counts = np.bincount([one["whole"] for one in drawn], minlength=5)[1:] / 2000
    assert counts == pytest.approx([0.25] * 4, abs=0.05)
    # A whole number has the share of the logarithms from half a unit below to half a unit above.
    edges = np.log(np.arange(0.5, 9.0))
    expected = np.diff(edges) / (edges[-1] - edges[0])
    counts = np.bincount([one["log_whole"] for one in drawn], minlength=9)[1:] / 2000
    assert counts == pytest.approx(expected, abs=0.05)


def test_a_grid_has_all_combinations_once() -> None:
    sampler = GridSampler(GridParams(), GRID, "min", 0)
    found = [sampler.propose(number, []) for number in range(sampler.size)]
    expected = [
        {"layers": layers, "kind": kind} | ({"of_a": of_a} if of_a is not None else {})
        for layers in (1, 2, 3)
        for kind, values in (("a", (0.0, 0.5, 1.0)), ("b", (None,)), ([64], (None,)))
        for of_a in values
    ]
    assert found == expected


def test_steps_of_a_tenth_are_all_there() -> None:
    sampler = GridSampler(GridParams(), [Parameter("x", 0.1, 0.9, step=0.1)], "min", 0)
    assert [sampler.propose(i, [])["x"] for i in range(sampler.size)] == pytest.approx(np.arange(1, 10) / 10)


@pytest.mark.parametrize(
    ("parameter", "named"),
    [
        (Parameter("x", 0.0, 1.0), "a list of them, or a range with a step"),
        (Parameter("x", 0.1, 1.0, log=True), "a list of them"),
        (Parameter("x", 0, 10_000_000, integer=True), "10000001 values"),
    ],
)
def test_a_grid_of_what_cannot_be_counted_is_refused(parameter: Parameter, named: str) -> None:
    with pytest.raises(InputError, match=named):
        GridSampler(GridParams(), [parameter], "min", 0)


def test_a_grid_of_too_many_combinations_is_refused() -> None:
    space = [Parameter(str(i), choices=list(range(100))) for i in range(4)]
    with pytest.raises(InputError, match="100000000 combinations"):
        GridSampler(GridParams(), space, "min", 0)


@pytest.mark.parametrize("number", [0, 1, 7])
def test_quasi_random_points_are_those_of_scipy(number: int) -> None:
    space = [Parameter("a", 0.0, 1.0), Parameter("b", 0.0, 1.0), Parameter("c", 0.0, 1.0)]
    point = QmcSampler(QmcParams(), space, "min", 3).propose(number, [])
    expected = qmc.Sobol(3, scramble=True, rng=np.random.default_rng(3)).random(8)[number]
    assert list(point.values()) == pytest.approx(expected)


def test_quasi_random_points_fill_the_space_more_evenly() -> None:
    space = [Parameter("a", 0.0, 1.0), Parameter("b", 0.0, 1.0)]
    points = {}
    for name, sampler in (
        ("qmc", QmcSampler(QmcParams(), space, "min", 0)),
        ("random", RandomSampler(RandomParams(), space, "min", 0)),
    ):
        points[name] = np.array([list(sampler.propose(i, []).values()) for i in range(64)])
    assert qmc.discrepancy(points["qmc"]) < 0.3 * qmc.discrepancy(points["random"])
    assert len({tuple(p) for p in itertools.chain(*points.values())}) == 128
