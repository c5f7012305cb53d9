"""Models, data and callbacks that are given in Python instead of being named in a config."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainyard import registry
from trainyard.config import Config, Overrides, Resolved
from trainyard.errors import ConfigError, InputError, Problem
from trainyard.records.run_dir import RunDir
from trainyard.require import class_name

if TYPE_CHECKING:
    from trainyard.callbacks.base import Callback
    from trainyard.datasets.base import DataBundle

log = logging.getLogger("trainyard")
NO_DATA = "no data section: train needs one, for example `data: {type: csv, path: data.csv, target: y}`"


@dataclass(frozen=True)
class Objects:
    """What was given in Python instead of being named in the config."""

    model: Any = None
    data: DataBundle | None = None
    callbacks: Sequence[Callback] = field(default=())

    @property
    def names(self) -> list[str]:
        """The inputs that the config does not name."""
        return [name for name in ("model", "data") if getattr(self, name) is not None]


def make_objects(resolved: Resolved, model: Any, data: Any, callbacks: Sequence[Callback]) -> Objects:
    """Return what was given in Python, the data divided as the config says."""
    objects = Objects(model, make_bundle(resolved, data), callbacks)
    if objects.names:
        log.warning(
            "%s given as objects: only their author can reproduce this run", " and ".join(objects.names)
        )
    return objects


def make_bundle(resolved: Resolved, data: Any) -> DataBundle | None:
    """Return data that were given in Python, divided as the config says; None without such data."""
    if data is None:
        return None
    from trainyard.datasets.rows.objects import from_objects

    return from_objects(data, resolved.config.data)


def name_model(config: Config, overrides: Overrides, model: Any) -> tuple[Config, Overrides]:
    """Name the object's class and its framework in the config."""
    named = {"type": class_name(type(model)), "framework": registry.framework_of_class(type(model))}
    if isinstance(config, Mapping):
        return {**config, "model": named}, overrides
    settings = {f"model.{key}": value for key, value in named.items()}
    if isinstance(overrides, Mapping):
        return config, {**overrides, **settings}
    return config, [*overrides, *(f"{key}={value}" for key, value in settings.items())]


def require_data(resolved: Resolved, config: Config) -> None:
    """Check that a config has a data section.

    Raises:
        ConfigError: It has none.
    """
    if resolved.config.data is None:
        raise ConfigError([Problem(NO_DATA, file="" if isinstance(config, Mapping) else str(config))])


def passed_objects(run: RunDir) -> list[str]:
    """Return which of `model` and `data` the run was given as objects."""
    manifest = run.manifest()
    return list(manifest.objects) if manifest else []


def require_objects(run: RunDir, verb: str, **given: Any) -> None:
    """Check that the objects that a run was given are given again.

    Raises:
        InputError: One is missing; the message shows the call that passes it.
    """
    names = [name for name in passed_objects(run) if name in given]
    if any(given[name] is None for name in names):
        again = ", ".join(f"{name}=..." for name in names)
        kind, them = ("an object", "it") if len(names) == 1 else ("objects", "them")
        raise InputError(
            f"run {run.id} was given {' and '.join(names)} as {kind}, "
            f"which no file holds: pass {them} again from Python: trainyard.{verb}({run.id!r}, {again}); "
            "the command line cannot"
        )
