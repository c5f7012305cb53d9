"""The runs of a trial: one, or one for each fold and each seed; their configs, and how long they train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.config import Resolved
from trainwright.config.options import ROUNDS
from trainwright.config.schedules import PlateauSchedule
from trainwright.config.schema import RunConfig
from trainwright.config.tuning import HalvingPruner, NoPruner, TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial
from trainwright.samplers.base import Space
from trainwright.studies.configs import StudyConfig
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.resources import Threads

Params = Mapping[str, Any]
_ROUNDS = f"model.params.{ROUNDS}"


@dataclass(frozen=True)
class TrialConfigs:
    """The configs of a study's runs, by the parameters of a trial."""

    base: StudyConfig
    tuning: TuningConfig
    threads: Threads

    @cached_property
    def _splits(self) -> Sequence[StudyConfig]:
        folds = self.tuning.folds
        if folds is None:
            return [self.base]
        return [self.base.with_val_fold(folds, fold) for fold in range(folds)]

    def of(self, params: Params) -> list[Resolved]:
        """Return the configs of the runs of a trial: of all folds with the first seed, and so on."""
        seed = params.get("experiment.seed", self.base.resolved.config.experiment.seed)
        return [
            self._config(split, params, {"experiment.seed": seed + repeat} if repeat else {})
            for repeat in range(self.tuning.repeats)
            for split in self._splits
        ]

    @property
    def has_final(self) -> bool:
        """Whether the best configuration is trained once more."""
        return self.tuning.refit or self.tuning.folds is not None

    def final(self, best: LoggedTrial, runs: Path) -> Resolved:
        """Return the config of the run of the best configuration.

        With `refit`, it has no validation split, and the length that was best.
        """
        if not self.tuning.refit:
            return self._config(self.base, best.params, {})
        assert best.ending is not None, "the best trial has ended"
        assert best.ending.step is not None, "it has a value"
        whole = self._config(self.base, best.params, {}).config
        length = best_length(whole, RunDir(runs / best.run_id).require_result(), best.ending.step)
        own = {"data.split.val": 0, "training.early_stopping": None, **length}
        return self._config(self.base, {**best.params, **own}, {})

    def _config(self, split: StudyConfig, params: Params, more: Params) -> Resolved:
        resolved = split.with_overrides({**params, **more}).resolved
        return resolved.with_placement({"training.threads": self.threads.of(resolved)})


def check_trial_configs(base: StudyConfig, tuning: TuningConfig, goals: Goals) -> None:
    """Check that folds, repeats and the last training go with the rest of the config.

    Raises:
        ConfigError: One does not.
    """
    several = next((name for name in ("folds", "repeats") if getattr(tuning, name) not in (None, 1)), None)
    if several and not isinstance(tuning.pruner, NoPruner | HalvingPruner):
        message = (
            f"is {tuning.pruner.type}, which judges one run, but tuning.{several} makes several of each "
            "trial; allowed: none, halving, hyperband"
        )
        raise ConfigError([Problem(message, "tuning.pruner")])
    if several and goals.measured:
        key = "constraints" if goals.constraints else "metric"
        message = f"is of one run, but tuning.{several} makes several of each trial; leave one of them out"
        raise ConfigError([Problem(message, f"tuning.{key}")])
    config = base.resolved.config
    if not tuning.refit:
        return
    if config.data is not None and config.data.val_path is not None:
        message = (
            "also trains on the validation rows, but data.val_path has these; give all rows as data.path"
        )
        raise ConfigError([Problem(message, "tuning.refit")])
    if isinstance(config.training.scheduler, PlateauSchedule):
        message = "leaves no rows for validation, which training.scheduler: plateau needs; keep one"
        raise ConfigError([Problem(message, "tuning.refit")])


def with_length(base: StudyConfig, pruner: HalvingPruner, space: Space) -> StudyConfig:
    """Return the config of the trials of a study with rungs: of the length that the pruner gives, if any.

    Raises:
        ConfigError: The length is searched, too, or is too short for one rung before its end; or the model is
            not trained step by step.
    """
    key = length_key(base.resolved.config)
    if any(parameter.key == key for parameter in space):
        message = f"is searched, but pruner {pruner.type} decides how long a trial trains; keep one"
        raise ConfigError([Problem(message, f"tuning.space.{key}")])
    if pruner.max_resource is not None:
        base = base.with_overrides({key: pruner.max_resource})
    length, first = length_of(base.resolved.config), pruner.min_resource * pruner.reduction_factor
    if length < first:
        message = (
            f"the first of two rungs would end at {pruner.min_resource} and the second at {first}, but {key} "
            f"is {length}; train longer, or give a smaller min_resource or reduction_factor"
        )
        raise ConfigError([Problem(message, "tuning.pruner")])
    return base


def length_key(config: RunConfig) -> str:
    """Return the key that says how long a trial is.

    Raises:
        ConfigError: There is none.
    """
    if config.model.params.get(ROUNDS):
        return _ROUNDS
    for name in ("max_steps", "epochs"):
        if getattr(config.training, name) is not None:
            return f"training.{name}"
    message = f"{config.model.type} is trained in one step, which no rung divides; allowed: none"
    raise ConfigError([Problem(message, "tuning.pruner")])


def length_of(config: RunConfig) -> int:
    """Return the length of a trial, by its `length_key`.

    Raises:
        ConfigError: There is none.
    """
    section, _, name = length_key(config).rpartition(".")
    value = config.model.params[name] if section == "model.params" else getattr(config.training, name)
    return int(value)


def best_length(config: RunConfig, result: Result, step: int) -> dict[str, Any]:
    """Return the keys, with values, of a training that ends where another one was best.

    Args:
        config: The config of a whole training.
        result: The result of the other one.
        step: The step at which it was best.
    """
    try:
        key = length_key(config)
    except ConfigError:
        return {}  # one step
    epochs = result.epochs * step / max(1, result.steps)
    if key == "training.epochs":
        whole = round(epochs)
        is_end = abs(epochs - whole) < 1e-6 and whole > 0
        return {key: whole} if is_end else {key: None, "training.max_steps": step}
    return {} if step == result.steps and result.status == "completed" else {key: step}
