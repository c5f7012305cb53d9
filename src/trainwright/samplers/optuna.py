"""Samplers of Optuna: TPE, Gaussian processes, CMA-ES, NSGA-II.

Each proposal comes from a study in memory that holds exactly the trials that it may know, by a sampler that
is seeded for the trial.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.require import require
from trainwright.samplers.base import Modes, Observation, Parameter, Space, exists, trial_seed
from trainwright.types import Mode

_LEAST_TRIALS = 10  # from which importances are told
_PLAIN = (bool, int, float, str, type(None))  # choices that Optuna takes as they are


class TpeParams(Section):
    """Options of the tree-structured Parzen estimator (Bergstra et al., 2011), named as in Optuna."""

    n_startup_trials: int = Field(10, ge=0, description="random trials before it begins")
    n_ei_candidates: int = Field(24, gt=0, description="candidates of which the best is proposed")
    multivariate: bool | None = Field(
        None, description="model the parameters together; default: as Optuna does"
    )
    group: bool = Field(False, description="multivariate: model parameters that occur together as a group")
    constant_liar: bool = Field(True, description="count running trials as bad, so as not to repeat them")
    prior_weight: float | None = Field(None, gt=0, description="weight of the prior; default: Optuna's")


class GpParams(Section):
    """Options of Bayesian optimization with a Gaussian process (log EI), named as in Optuna."""

    n_startup_trials: int = Field(10, ge=0, description="random trials before it begins")
    deterministic_objective: bool = Field(False, description="the metric has no noise")


class CmaEsParams(Section):
    """Options of CMA-ES (Hansen, 2016), named as in Optuna; choices are drawn at random."""

    n_startup_trials: int = Field(1, ge=0, description="random trials before it begins")
    popsize: int | None = Field(None, ge=4, description="trials of a generation; default: by the space")
    use_separable_cma: bool = Field(False, description="a diagonal covariance, for large spaces")
    with_margin: bool = Field(False, description="for whole numbers and steps (Hamano et al., 2022)")
    lr_adapt: bool = Field(False, description="adapt the learning rate, for noisy metrics")


class Nsga2Params(Section):
    """Options of NSGA-II (Deb et al., 2002), named as in Optuna."""

    population_size: int = Field(50, gt=1, description="trials of a generation")
    mutation_prob: float | None = Field(None, ge=0, le=1, description="default: 1 / number of parameters")
    crossover_prob: float = Field(0.9, ge=0, le=1, description="share of children with two parents")
    swapping_prob: float = Field(0.5, ge=0, le=1, description="share of parameters of the second parent")


class _Optuna:
    """A sampler of Optuna's, by the name of its class."""

    cls: ClassVar[str]
    limits: ClassVar[Collection[str]] = ()
    keeps_state: ClassVar[bool] = False  # whether the sampler writes into trials what later ones read
    size = None

    def __init__(self, params: BaseModel, space: Space, mode: Modes, seed: int) -> None:
        self._optuna: Any = require("optuna", "tuning")
        self._options, self._space, self._seed = params.model_dump(exclude_none=True), space, seed
        modes = [mode] if isinstance(mode, str) else mode
        self._directions = ["minimize" if one == "min" else "maximize" for one in modes]
        self._distributions = {parameter.key: self._distribution(parameter) for parameter in space}
        self._states: dict[int, Mapping[str, Any]] = {}  # what the sampler wrote into each trial

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:
        """Return the parameters of a trial; see `Sampler.propose`."""
        if self.keeps_state:
            self._replay(number, known)
        return self._propose(number, known)

    def _propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:
        first = len(known) - number  # the trials of another study come before our own
        trials = [self.frozen(trial, self._states.get(i - first)) for i, trial in enumerate(known)]
        trial = self.ask(number, trials)
        params: dict[str, Any] = {}
        with _quiet(self._optuna):
            for parameter in self._space:
                if exists(parameter, params):
                    params[parameter.key] = _own(parameter, self._suggest(trial, parameter))
        if self.keeps_state:
            self._states[number] = dict(trial.study.get_trials(deepcopy=False)[-1].system_attrs)
        return params

    def ask(
        self,
        number: int,
        trials: Sequence[Any],
        pruner: Any = None,
        distributions: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return Optuna's own trial of a number, in a study in memory of the frozen trials before it.

        With `distributions`, it has parameters already.
        """
        with _quiet(self._optuna):
            sampler = self._sampler(trial_seed(self._seed, number), trials[: len(trials) - number])
            study = self._optuna.create_study(directions=self._directions, sampler=sampler, pruner=pruner)
            study.add_trials(trials)
            return study.ask(distributions)

    def _sampler(self, seed: int, earlier: Sequence[Any]) -> Any:  # noqa: ARG002 - most learn as from others
        """Return Optuna's sampler; `earlier` are the trials of an earlier study."""
        return getattr(self._optuna.samplers, self.cls)(seed=seed, **self._options)

    def _replay(self, number: int, known: Sequence[Observation]) -> None:
        """Make earlier proposals again whose states are not known here: the study was resumed.

        Each knew the results of as many trials less as it is earlier.
        """
        first = len(known) - number
        results = sum(trial.status != "running" for trial in known[first:])
        for earlier in range(number):
            if earlier in self._states:
                continue
            ended = first + max(0, results - (number - earlier))
            blank = [Observation(trial.params, "running") for trial in known[ended : first + earlier]]
            self._propose(earlier, [*known[:ended], *blank])

    def importances(self, trials: Sequence[Observation]) -> dict[str, float]:
        """Return the importance of each parameter, the most important one first; see `importances`."""
        with _quiet(self._optuna):
            study = self._optuna.create_study(direction=self._directions[0])
            study.add_trials([self.frozen(trial) for trial in trials])
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            shares = self._optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {key: float(value) for key, value in shares.items()}

    def _suggest(self, trial: Any, parameter: Parameter) -> Any:
        theirs = self._distributions[parameter.key]
        if parameter.choices is not None:
            return trial.suggest_categorical(parameter.key, theirs.choices)
        suggest = trial.suggest_int if parameter.integer else trial.suggest_float
        return suggest(parameter.key, theirs.low, theirs.high, step=theirs.step, log=theirs.log)

    def frozen(self, observation: Observation, state_of_sampler: Mapping[str, Any] | None = None) -> Any:
        """Return an observation as a frozen trial of Optuna's."""
        states = self._optuna.trial.TrialState
        state = {
            "running": states.RUNNING,
            "completed": states.COMPLETE,
            "pruned": states.PRUNED,
            "failed": states.FAIL,
        }[observation.status]
        distributions = {key: self._distributions[key] for key in observation.params}
        by_key = {parameter.key: parameter for parameter in self._space}
        return self._optuna.trial.create_trial(
            state=state,
            values=_values(observation) if observation.status == "completed" else None,
            params={key: _theirs(by_key[key], value) for key, value in observation.params.items()},
            distributions=distributions,
            intermediate_values=dict(observation.curve),
            system_attrs=dict(state_of_sampler or {}),
            constraints=dict(observation.violations) or None,
        )

    def _distribution(self, parameter: Parameter) -> Any:
        distributions = self._optuna.distributions
        if parameter.choices is not None:
            return distributions.CategoricalDistribution(
                [_theirs(parameter, choice) for choice in parameter.choices]
            )
        if parameter.integer:
            return distributions.IntDistribution(
                int(parameter.low), int(parameter.high), log=parameter.log, step=int(parameter.step or 1)
            )
        return distributions.FloatDistribution(
            parameter.low, parameter.high, log=parameter.log, step=parameter.step
        )


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep Optuna's progress lines and warnings of experimental features back."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _values(observation: Observation) -> Sequence[float | None]:
    return observation.values or [observation.value]


def _theirs(parameter: Parameter, value: Any) -> Any:
    """Return a value as Optuna takes it: a choice that is a list or a mapping as text."""
    plain = parameter.choices is None or isinstance(value, _PLAIN)
    return value if plain else json.dumps(value, sort_keys=True)


def _own(parameter: Parameter, value: Any) -> Any:
    """Return the choice that Optuna's value stands for."""
    if parameter.choices is None:
        return value
    texts: Mapping[Any, Any] = {
        (type(theirs), theirs): choice
        for choice in parameter.choices
        for theirs in [_theirs(parameter, choice)]
    }
    return texts[type(value), value]


def importances(space: Space, trials: Sequence[Observation], mode: Mode) -> dict[str, float]:
    """Return the share of the variance that each parameter explains among the better trials.

    The method is PED-ANOVA (Watanabe et al., 2023). Parameters that only some trials have are left out.
    Empty if Optuna is not installed, or fewer than ten trials have a value.
    """
    completed = [trial for trial in trials if trial.status == "completed" and trial.value is not None]
    if len(completed) < _LEAST_TRIALS or importlib.util.find_spec("optuna") is None:
        return {}
    sampler = TpeSampler(TpeParams.model_validate({}), space, mode, 0)
    return sampler.importances(completed)


def frozen(space: Space, trials: Sequence[Observation], modes: Modes) -> list[Any]:
    """Return trials as frozen ones of Optuna's."""
    sampler = TpeSampler(TpeParams.model_validate({}), space, modes, 0)
    return [sampler.frozen(trial) for trial in trials]


class TpeSampler(_Optuna):
    """The tree-structured Parzen estimator."""

    cls = "TPESampler"
    aliases = ("TPESampler",)
    Params: ClassVar[type[BaseModel]] = TpeParams


class GpSampler(_Optuna):
    """Bayesian optimization with a Gaussian process, which is fitted by torch."""

    cls = "GPSampler"
    aliases = ("bayes", "bayesian", "bayesian_optimization", "GPSampler")
    Params: ClassVar[type[BaseModel]] = GpParams

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:
        """Return the parameters of a trial; see `Sampler.propose`."""
        torch: Any = require("torch", "torch")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # their number may change the bits of a proposal
        try:
            return super().propose(number, known)
        finally:
            torch.set_num_threads(threads)


class CmaEsSampler(_Optuna):
    """Covariance matrix adaptation, of the numbers of the space; what was learned before is its start."""

    cls = "CmaEsSampler"
    aliases = ("CmaEsSampler",)
    Params: ClassVar[type[BaseModel]] = CmaEsParams
    limits = ("metrics", "constraints")
    keeps_state = True

    def _sampler(self, seed: int, earlier: Sequence[Any]) -> Any:
        require("cmaes", "tuning")
        source = {"source_trials": list(earlier)} if earlier else {}
        return self._optuna.samplers.CmaEsSampler(
            seed=seed, warn_independent_sampling=False, **source, **self._options
        )


class Nsga2Sampler(_Optuna):
    """The elitist genetic algorithm NSGA-II, for several metrics."""

    cls = "NSGAIISampler"
    aliases = ("NSGAIISampler",)
    limits = ("earlier",)
    Params: ClassVar[type[BaseModel]] = Nsga2Params
    keeps_state = True
