"""The runs of a trial: one, or one for each fold and each seed; and the run of the best configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.config import Resolved
from trainwright.config.schedules import PlateauSchedule
from trainwright.config.tuning import HalvingPruner, NoPruner, TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial
from trainwright.studies.trials import StudyConfig
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.lengths import best_length
from trainwright.studies.tuning.resources import Threads

Params = Mapping[str, Any]


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
