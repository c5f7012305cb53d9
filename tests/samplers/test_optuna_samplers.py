"""Optuna's samplers: each proposal is that of Optuna's own, given the same trials by hand."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from scipy.stats import ks_2samp

from trainwright.samplers.base import Observation, Parameter, trial_seed
from trainwright.samplers.optuna import (
    CmaEsParams,
    CmaEsSampler,
    GpParams,
    GpSampler,
    Nsga2Params,
    Nsga2Sampler,
    TpeParams,
    TpeSampler,
    frozen,
)
from trainwright.testing.sampler_suite import SamplerSuite

SPACE = [
    Parameter("rate", 1e-5, 1e-1, log=True),
    Parameter("layers", 1, 4, integer=True),
    Parameter("kind", choices=["adam", "sgd"]),
    Parameter("momentum", 0.0, 0.99, when={"kind": ["sgd"]}),
]
DISTRIBUTIONS = {
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "layers": IntDistribution(1, 4),
    "kind": CategoricalDistribution(["adam", "sgd"]),
    "momentum": FloatDistribution(0.0, 0.99),
}


class TestTpe(SamplerSuite):
    cls = TpeSampler
    params: ClassVar[Mapping[str, Any]] = {"n_startup_trials": 4}


class TestTpeOfGroups(SamplerSuite):
    cls = TpeSampler
    params: ClassVar[Mapping[str, Any]] = {"n_startup_trials": 4, "multivariate": True, "group": True}


class TestGp(SamplerSuite):
    cls = GpSampler
    params: ClassVar[Mapping[str, Any]] = {"n_startup_trials": 4}
    trials = 6


class TestCmaEs(SamplerSuite):
    cls = CmaEsSampler
    params: ClassVar[Mapping[str, Any]] = {"popsize": 4}


class TestNsga2(SamplerSuite):
    cls = Nsga2Sampler
    params: ClassVar[Mapping[str, Any]] = {"population_size": 4}


def value_of(params: dict[str, Any]) -> float:
    return abs(params["rate"] - 0.01) * 50 + params["layers"] * 0.1 + params.get("momentum", 0.4)


def suggested(trial: optuna.Trial) -> dict[str, Any]:
    params: ClassVar[Mapping[str, Any]] = {
        "rate": trial.suggest_float("rate", 1e-5, 1e-1, log=True),
        "layers": trial.suggest_int("layers", 1, 4),
        "kind": trial.suggest_categorical("kind", ["adam", "sgd"]),
    }
    if params["kind"] == "sgd":
        params["momentum"] = trial.suggest_float("momentum", 0.0, 0.99)
    return params


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("horizon", [1, 3])
def test_each_proposal_is_optunas(horizon: int, mode: Any) -> None:
    """A study by hand: a fresh one for each trial, with its own seed, and the newest trials running."""
    ours = TpeSampler(TpeParams(n_startup_trials=5), SPACE, mode, 9)
    done: list[Observation] = []
    for number in range(16):
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=5, constant_liar=True, seed=trial_seed(9, number)
        )
        study = optuna.create_study(direction={"min": "minimize", "max": "maximize"}[mode], sampler=sampler)
        known = []
        for i, one in enumerate(done):
            distributions = {name: DISTRIBUTIONS[name] for name in one.params}
            if i <= number - horizon:
                known.append(one)
                trial = create_trial(params=dict(one.params), distributions=distributions, value=one.value)
            else:
                known.append(Observation(one.params, "running"))
                trial = create_trial(
                    state=TrialState.RUNNING, params=dict(one.params), distributions=distributions
                )
            study.add_trial(trial)
        theirs = suggested(study.ask())
        assert ours.propose(number, known) == theirs
        done.append(Observation(theirs, "completed", value_of(theirs)))


def test_a_gaussian_process_finds_the_minimum_of_a_parabola() -> None:
    space = [Parameter("x", -5.0, 5.0), Parameter("y", -5.0, 5.0)]
    sampler = GpSampler(GpParams(n_startup_trials=5), space, "min", 1)
    done: list[Observation] = []
    for number in range(12):
        params = sampler.propose(number, done)
        value = (params["x"] - 1) ** 2 + (params["y"] + 2) ** 2
        done.append(Observation(params, "completed", value))
    assert min(one.value or 0.0 for one in done) < 0.5


def test_the_seeds_of_trials_are_unrelated() -> None:
    seeds = {trial_seed(seed, number) for seed in range(30) for number in range(100)}
    assert len(seeds) > 2990
    assert all(0 <= seed < 2**32 for seed in seeds)


STATEFUL: dict[str, tuple[Any, Any, list[str]]] = {
    "cmaes": (
        CmaEsSampler(CmaEsParams(popsize=4), SPACE, "min", 9),
        lambda seed: optuna.samplers.CmaEsSampler(popsize=4, seed=seed, warn_independent_sampling=False),
        ["minimize"],
    ),
    "nsga2": (
        Nsga2Sampler(Nsga2Params(population_size=4), SPACE, ["min", "max"], 9),
        lambda seed: optuna.samplers.NSGAIISampler(population_size=4, seed=seed),
        ["minimize", "maximize"],
    ),
    "tpe": (
        TpeSampler(TpeParams(n_startup_trials=5), SPACE, ["min", "max"], 9),
        lambda seed: optuna.samplers.TPESampler(n_startup_trials=5, constant_liar=True, seed=seed),
        ["minimize", "maximize"],
    ),
}


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("name", STATEFUL)
def test_several_metrics_constraints_and_what_a_sampler_keeps_in_trials(name: str, horizon: int) -> None:
    """A study by hand, in which each of Optuna's own trials keeps what its sampler wrote into it."""
    ours, theirs, directions = STATEFUL[name]
    again = type(ours)(type(ours).Params(**ours._options), SPACE, ["min", "max"][: len(directions)], 9)
    ours._states.clear()
    done: list[Observation] = []
    own: list[dict[str, Any]] = []  # of Optuna's trials: all but the state
    for number in range(15):
        study = optuna.create_study(directions=directions, sampler=theirs(trial_seed(9, number)))
        known = []
        for i, one in enumerate(done):
            if i <= number - horizon:
                known.append(one)
                study.add_trial(create_trial(**own[i], values=list(one.values), constraints=one.violations))
            else:
                known.append(Observation(one.params, "running"))
                study.add_trial(create_trial(**own[i], state=TrialState.RUNNING))
        trial = study.ask()
        params = suggested(trial)
        assert ours.propose(number, known) == params
        frozen = study.trials[-1]
        own.append(
            {"params": params, "distributions": frozen.distributions, "system_attrs": frozen.system_attrs}
        )
        values = (value_of(params), params["layers"] + params["rate"])[: len(directions)]
        violations = {} if name == "cmaes" else {"rate": params["rate"] - 0.05}
        done.append(Observation(params, "completed", values[0], values=values, violations=violations))
    assert again.propose(14, known) == done[14].params, "a study that is resumed"


def test_cma_es_starts_from_what_another_study_learned() -> None:
    space = [Parameter("x", -5.0, 5.0), Parameter("y", -5.0, 5.0)]
    earlier = [
        Observation({"x": x, "y": y}, "completed", (x - 3) ** 2 + (y + 3) ** 2)
        for x in (-4.0, 0.0, 2.5, 3.0, 3.5)
        for y in (-3.5, -3.0, -2.5, 1.0, 4.0)
    ]
    params = CmaEsSampler(CmaEsParams(), space, "min", 0).propose(0, earlier)
    assert abs(params["x"] - 3) < 1.5
    assert abs(params["y"] + 3) < 1.5


@pytest.mark.soak
def test_proposals_that_are_seeded_one_by_one_have_the_distribution_of_one_stream() -> None:
    """On one history; so what a study finds can differ from Optuna's own by chance alone."""
    space = [Parameter(f"x{i}", -5.0, 5.0) for i in range(3)]
    random = np.random.default_rng(0)
    points = random.uniform(-5.0, 5.0, size=(30, 3))
    history = [
        Observation(
            {f"x{i}": float(v) for i, v in enumerate(point)}, "completed", float(((point - 1) ** 2).sum())
        )
        for point in points
    ]
    known = frozen(space, history, "min")
    stream = optuna.samplers.TPESampler(seed=1)
    drawn: dict[str, list[list[float]]] = {"stream": [], "seeded": []}
    for number in range(300):
        for name, sampler in (
            ("stream", stream),
            ("seeded", optuna.samplers.TPESampler(seed=trial_seed(7, number))),
        ):
            study = optuna.create_study(sampler=sampler)
            study.add_trials(known)
            trial = study.ask()
            drawn[name].append([trial.suggest_float(f"x{i}", -5.0, 5.0) for i in range(3)])
    for one, other in zip(np.array(drawn["stream"]).T, np.array(drawn["seeded"]).T, strict=True):
        assert ks_2samp(one, other).pvalue > 0.01
