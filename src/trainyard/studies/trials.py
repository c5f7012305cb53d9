"""The configs of a study's runs, made from the one that the user gave."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.config import Config, Overrides, Resolved
from trainyard.config import load as load_config
from trainyard.config.checks import OBJECTS
from trainyard.config.emit import inline
from trainyard.errors import ConfigError, Problem
from trainyard.records.listing import find_run
from trainyard.redact import redacted
from trainyard.runs.catalog import Catalog
from trainyard.studies.study import Json
from trainyard.types import SplitName

log = logging.getLogger("trainyard")
DEFAULT_FOLDS = 5


@dataclass(frozen=True)
class Source:
    """A config as it was given; `resolved` is what it says by itself, or beside data that are `objects`."""

    config: Config
    overrides: Overrides
    resolved: Resolved
    objects: bool

    @staticmethod
    def read(config: Config, overrides: Overrides, runs_dir: Path, *, objects: bool) -> Source:
        """Reads it, with what all runs have in common made plain.

        Raises:
            ConfigError: with every problem.
            RunNotFoundError: `model.init_from` leads to no run.
        """
        source = Source(
            config, overrides, load_config(config, overrides, Catalog(), objects=objects), objects
        )
        if source.resolved.config.data is None:
            if not objects:
                where = "" if isinstance(config, Mapping) else str(config)
                raise ConfigError([Problem("no data section: there are no rows to train on", file=where)])
            source = source.with_overrides({"data.type": OBJECTS})
        initial = source.resolved.config.model.init_from
        if initial is not None and not initial.endswith(".safetensors"):
            # `last` would be the run before each run: that of another fold.
            path = redacted(
                str(find_run(initial, runs_dir).path)
            )  # with `${env:NAME}`: it is written to disk
            source = source.with_overrides({"model.init_from": path})
        return source

    def with_overrides(self, more: Mapping[str, Any]) -> Source:
        """With some values laid over it, by dotted key."""
        return self._with(self.overrides, more)

    def with_model(self, model: str, params: Mapping[str, Any]) -> Source:
        """With another model; what was said of the model holds for its own type alone.

        Args:
            params: options of the model.
        """
        own = self.resolved.config.model.type == model
        return self._with(
            self.overrides if own else _without_model(self.overrides),
            ({} if own else {"model.type": model})
            | {f"model.params.{key}": value for key, value in params.items()},
        )

    def with_fold(self, folds: int, fold: int) -> Source:
        """With one of the folds as the test split; rows for validation or test that have a source of their own are left out."""
        changes: dict[str, Any] = {
            "data.split.folds": folds,
            "data.split.fold": fold,
            "data.split.test": None,
        }
        data = self.resolved.config.data
        if data is not None and data.train_path is not None:
            path = self.resolved.templates.get("data.train_path", data.train_path)
            changes |= {
                "data.path": path,
                "data.train_path": None,
                "data.val_path": None,
                "data.test_path": None,
            }
        return self.with_overrides(changes)

    def folds(self, wanted: int | None) -> int:
        """How many folds: those asked for, those of the config, or 5."""
        data = self.resolved.config.data
        return wanted or (data.split.folds if data is not None else None) or DEFAULT_FOLDS

    def say_what_folds_replace(self) -> None:
        """Names in the log what has no effect where each fold is the test split of its run."""
        data = self.resolved.config.data
        if data is None:
            return
        for key, value in (("val_path", data.val_path), ("test_path", data.test_path)):
            if value is not None:
                log.warning("data.%s is not used: folds are made of the training rows", key)
        if data.split.test is not None:
            log.warning("data.split.test is not used: each fold is the test split of its run")

    def is_without(self, split: SplitName) -> bool:
        """Whether the config rules out that there are rows of a split, as far as it alone can tell."""
        data = self.resolved.config.data
        if data is None or data.type == OBJECTS:
            return False
        share, path = (data.split.val, data.val_path) if split == "val" else (data.split.test, data.test_path)
        if share is None:  # the default: a part of the one source, or none where training rows have their own
            return path is None and data.train_path is not None
        return path is None and share == 0

    def asked(self) -> Json:
        """What makes a study the same one: what it computes, and from which data."""
        data = {key: value for key, value in self.resolved.flat().items() if key.startswith("data.")}
        return {"computation_hash": self.resolved.computation_hash(), "data": data}

    def _with(self, overrides: Overrides, more: Mapping[str, Any]) -> Source:
        if isinstance(overrides, Mapping):
            laid: Overrides = {**overrides, **more}
        else:
            laid = [*overrides, *(f"{key}={inline(value)}" for key, value in more.items())]
        resolved = load_config(self.config, laid, Catalog(), objects=self.objects)
        return Source(self.config, laid, resolved, self.objects)


def _without_model(overrides: Overrides) -> Overrides:
    if isinstance(overrides, Mapping):
        return {key: value for key, value in overrides.items() if not _of_model(str(key))}
    return [text for text in overrides if not _of_model(text.partition("=")[0].strip())]


def _of_model(key: str) -> bool:
    return key.partition(".")[0] == "model"
