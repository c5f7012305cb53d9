"""The configs of a study's runs, made from the one that the user gave."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.config import Config, Overrides, Resolved
from trainwright.config import load as load_config
from trainwright.config.checks import OBJECTS
from trainwright.config.metrics import metric_path
from trainwright.config.overrides import with_settings
from trainwright.errors import TrainwrightError
from trainwright.evaluation.metrics import LOSS, default_metrics, tasks_with, without_prefix
from trainwright.records.listing import find_run, has_model
from trainwright.records.whole_weights import is_weights
from trainwright.redact import fingerprinted, redacted
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import require_data
from trainwright.studies.study import Json, StudyRequest
from trainwright.types import SplitName

log = logging.getLogger("trainwright")
MOST_FOLDS = 1000  # each is a run
DEFAULT_FOLDS = 5


@dataclass(frozen=True)
class StudyConfig:
    """The user's config of a study, from which the configs of its runs are made.

    `resolved` is the config with its overrides, and `objects` says whether the data were given as Python
    objects. `runs_dir` is the folder of the runs.
    """

    config: Config
    overrides: Overrides
    resolved: Resolved
    objects: bool
    runs_dir: Path

    @staticmethod
    def read(config: Config, overrides: Overrides, runs_dir: Path, *, objects: bool) -> StudyConfig:
        """Load the config, and make explicit what all runs share.

        Args:
            config: A YAML file, or its content as a mapping.
            overrides: `key.path=value` texts, or a mapping from dotted keys.
            runs_dir: The folder in which `model.init_from` is looked up.
            objects: Whether the data are given as Python objects.

        Raises:
            ConfigError: The config is wrong; the error lists every problem.
            RunNotFoundError: `model.init_from` names no run.
        """
        resolved = load_config(config, overrides, Catalog(runs_dir), objects=objects)
        base = StudyConfig(config, overrides, resolved, objects, runs_dir)
        if versions := resolved.versions():
            base = base.with_overrides(versions)  # resolved once, for all runs
        if base.resolved.config.data is None:
            if not objects:
                require_data(base.resolved, config)
            base = base.with_overrides({"data.type": OBJECTS})
        given = base.resolved.config.model.init_from
        if given is not None and not is_weights(given.source):
            # Resolved once: `last` would name the run of the previous fold.
            # Redacted to `${env:NAME}`, as it is written to disk.
            path = redacted(str(find_run(given.source, runs_dir, fits=has_model).path))
            base = base.with_overrides({"model.init_from.source": path})
        return base

    def with_overrides(self, more: Mapping[str, Any]) -> StudyConfig:
        """Return the config with more values, by dotted key."""
        return self._with(self.overrides, more)

    def with_model(self, model: str, params: Mapping[str, Any]) -> StudyConfig:
        """Return the config with another model; the model section applies only to the model of its own type.

        Args:
            model: The value of `model.type`.
            params: Options of the model.
        """
        is_same = self.resolved.config.model.type == model
        return self._with(
            self.overrides if is_same else _without_model(self.overrides),
            ({} if is_same else {"model.type": model})
            | {f"model.params.{key}": value for key, value in params.items()},
        )

    def with_fold(self, folds: int, fold: int) -> StudyConfig:
        """Return the config with a fold as the test split, without `val_path` and `test_path`."""
        changes: dict[str, Any] = {
            "data.split.folds": folds,
            "data.split.fold": fold,
            "data.split.test": None,
        }
        return self.with_overrides(changes | self._training_rows())

    def with_val_fold(self, folds: int, fold: int) -> StudyConfig:
        """Return the config with a fold of the rows that do not test as validation, and no test split."""
        changes: dict[str, Any] = {"data.split.val_folds": folds, "data.split.val_fold": fold}
        if paths := self._training_rows():
            changes |= {**paths, "data.split.test": 0}
        return self.with_overrides(changes)

    def _training_rows(self) -> dict[str, Any]:
        """Return the keys that name the file of the training rows; empty if one file has all rows."""
        data = self.resolved.config.data
        if data is None or data.train_path is None:
            return {}
        path = self.resolved.templates.get("data.train_path", data.train_path)
        others = dict.fromkeys(("data.train_path", "data.val_path", "data.test_path"))
        return {"data.path": path, **others}

    def folds(self, wanted: int | None) -> int:
        """Return the number of folds: `wanted`, that of the config, or 5."""
        data = self.resolved.config.data
        return wanted or (data.split.folds if data is not None else None) or DEFAULT_FOLDS

    def warn_of_replaced_splits(self) -> None:
        """Warn of settings that have no effect because each fold is the test split of its run."""
        data = self.resolved.config.data
        if data is None:
            return
        for key, value in (("val_path", data.val_path), ("test_path", data.test_path)):
            if value is not None:
                log.warning("data.%s is not used: folds are made of the training rows", key)
        if data.split.test is not None:
            log.warning("data.split.test is not used: each fold is the test split of its run")

    def excludes(self, split: SplitName) -> bool:
        """Return whether the config alone shows that a split has no rows."""
        data = self.resolved.config.data
        if data is None or data.type == OBJECTS:
            return False
        share, path = (data.split.val, data.val_path) if split == "val" else (data.split.test, data.test_path)
        if share is None:  # the default: a share of `data.path`, or no rows beside a `train_path`
            return path is None and data.train_path is not None
        return path is None and share == 0

    def question(self) -> Json:
        """Return what two studies must share to be the same: the computation and the data."""
        values = self.resolved.flat().items()
        data = {key: fingerprinted(key, value) for key, value in values if key.startswith("data.")}
        return {"computation_hash": self.resolved.computation_hash(), "data": data}

    def _with(self, overrides: Overrides, more: Mapping[str, Any]) -> StudyConfig:
        merged = with_settings(overrides, more)
        resolved = load_config(self.config, merged, Catalog(self.runs_dir), objects=self.objects)
        return StudyConfig(self.config, merged, resolved, self.objects, self.runs_dir)


def _without_model(overrides: Overrides) -> Overrides:
    if isinstance(overrides, Mapping):
        return {key: value for key, value in overrides.items() if not _of_model(str(key))}
    return [text for text in overrides if not _of_model(text.partition("=")[0].strip())]


def _of_model(key: str) -> bool:
    return key.partition(".")[0] == "model"


def with_metric(base: StudyConfig, metric: str, request: StudyRequest) -> StudyConfig:
    """Add a metric to those that runs compute, and return the config."""
    name, listed = without_prefix(metric), base.resolved.config.evaluation.metrics
    if name == LOSS or ":" in metric_path(base.resolved.config, metric):
        return base
    metrics = list(default_metrics(_task_with(name, base, request)) if listed is None else listed)
    return base if name in metrics else base.with_overrides({"evaluation.metrics": [*metrics, name]})


def _task_with(metric: str, base: StudyConfig, request: StudyRequest) -> str:
    """Return the task of the data, among those that have the metric; the data are read only if several do."""
    tasks, data = tasks_with(metric), base.resolved.config.data
    if len(tasks) > 1:
        try:
            task = data.task if data and data.task != "auto" else request.load(base.resolved).info.task
        except TrainwrightError:  # the runs will report why
            return tasks[0]
        return task if task in tasks else tasks[0]
    return tasks[0]
