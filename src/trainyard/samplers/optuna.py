"""Samplers of Optuna: TPE and Gaussian processes.

Each proposal comes from a study in memory that holds exactly the trials that it may know, by a sampler that
is seeded for the trial.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from trainyard.config.fields import Section
from trainyard.require import require
from trainyard.samplers.base import Observation, Parameter, Space, exists, trial_seed
from trainyard.types import Mode

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


class _Optuna:
    """A sampler of Optuna's, by the name of its class."""

    cls: ClassVar[str]
    size = None

    def __init__(self, params: BaseModel, space: Space, mode: Mode, seed: int) -> None:
        self._optuna: Any = require("optuna", "tuning")
        self._options, self._space, self._seed = params.model_dump(exclude_none=True), space, seed
        self._direction = "minimize" if mode == "min" else "maximize"
        self._distributions = {parameter.key: self._distribution(parameter) for parameter in space}

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:
        """Return the parameters of a trial; see `Sampler.propose`."""
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            sampler = getattr(self._optuna.samplers, self.cls)(
                seed=trial_seed(self._seed, number), **self._options
            )
            study = self._optuna.create_study(direction=self._direction, sampler=sampler)
            study.add_trials([self._trial(observation) for observation in known])
            trial = study.ask()
            params: dict[str, Any] = {}
            for parameter in self._space:
                if exists(parameter, params):
                    params[parameter.key] = _own(parameter, self._suggest(trial, parameter))
        return params

    def importances(self, trials: Sequence[Observation]) -> dict[str, float]:
        """Return the importance of each parameter, the most important one first; see `importances`."""
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        study = self._optuna.create_study(direction=self._direction)
        study.add_trials([self._trial(trial) for trial in trials])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            found = self._optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {key: float(value) for key, value in found.items()}

    def _suggest(self, trial: Any, parameter: Parameter) -> Any:
        theirs = self._distributions[parameter.key]
        if parameter.choices is not None:
            return trial.suggest_categorical(parameter.key, theirs.choices)
        suggest = trial.suggest_int if parameter.integer else trial.suggest_float
        return suggest(parameter.key, theirs.low, theirs.high, step=theirs.step, log=theirs.log)

    def _trial(self, observation: Observation) -> Any:
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
            value=observation.value if observation.status == "completed" else None,
            params={key: _theirs(by_key[key], value) for key, value in observation.params.items()},
            distributions=distributions,
            intermediate_values=dict(observation.curve),
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


class TpeSampler(_Optuna):
    """The tree-structured Parzen estimator."""

    cls = "TPESampler"
    Params: ClassVar[type[BaseModel]] = TpeParams


class GpSampler(_Optuna):
    """Bayesian optimization with a Gaussian process, which is fitted by torch."""

    cls = "GPSampler"
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
