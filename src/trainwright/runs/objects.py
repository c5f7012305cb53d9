"""Models, data and callbacks that are given in Python instead of being named in a config."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from trainwright import plugins
from trainwright.config import Config, Overrides, Resolved
from trainwright.config.layers import Layers
from trainwright.config.overrides import with_settings
from trainwright.config.tree import DEFAULT, Problems, find, mapping
from trainwright.errors import ConfigError, InputError, Problem
from trainwright.records.run_dir import RunDir
from trainwright.require import class_name

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.datasets.base import DataBundle

log = logging.getLogger("trainwright")
_OF_OBJECTS = ("type", "framework", "params")  # the keys of `model` that an object replaces
_NEVER = ("init_from", "lora")  # whatever the type
_NO_EFFECT = "has no effect on a model that is given as an object, which has its own options"
_LOAD_BEFORE = (
    "has no effect on a model that is given as an object: load the weights into it before, for example "
    "net.load_state_dict(trainwright.load(RUN).native.state_dict())"
)
NO_DATA = "no data section: train needs one, for example `data: {type: csv, path: data.csv, target: y}`"


@dataclass(frozen=True)
class Objects:
    """The objects that were given in Python instead of being named in the config."""

    model: Any = None
    data: DataBundle | None = None
    callbacks: Sequence[Callback] = field(default=())

    @property
    def names(self) -> list[str]:
        """The inputs that the config does not name."""
        return [name for name in ("model", "data") if getattr(self, name) is not None]


def name_model(config: Config, overrides: Overrides, model: Any) -> tuple[Config, Overrides, Any]:
    """Name the model in the config; of an object its class and framework, and options that set ours.

    Returns:
        The config, the overrides, and the object; None for a name, a class or a function, which the config
        names.

    Raises:
        ConfigError: The config has options for a model that is given as an object.
        InputError: A class or function cannot be imported by its name, or the object is no estimator.
    """
    if isinstance(model, str | type | FunctionType):
        return *_with_settings(config, overrides, {"type": _importable(model)}), None
    _refuse_options(config, overrides)
    framework = plugins.framework_of_class(type(model))
    spellings = plugins.adapter("framework", framework).spellings
    if spellings.classes and not hasattr(model, "get_params"):
        raise InputError(
            f"a {class_name(type(model))} cannot be trained: pass an estimator of {framework} with `fit` and "
            "`get_params`, a classifier or a regressor"
        )
    given = spellings.settings_in(model.get_params()) if spellings.classes else {}
    named = {"type": class_name(type(model)), "framework": framework}
    if isinstance(config, Mapping):
        return {**config, "model": {**named, "params": given}}, overrides, model
    return *_with_settings(config, overrides, {**named, "params": given}), model


def _refuse_options(config: Config, overrides: Overrides) -> None:
    """Refuse options of a model that have no effect on an object, such as initial weights.

    Those of a model that the config names are replaced together with its `type`, as in a file of which
    another type is trained.

    Raises:
        ConfigError: There are some.
    """
    layers, problems = Layers(Problems(), []), Problems()
    root = layers.mapping(config) if isinstance(config, Mapping) else layers.file(Path(config), str(config))
    for layer in (root, layers.overrides(overrides)):
        section = mapping(find(layer, "model")) if layer is not None else {}
        options = {**section, **mapping(section.get("params"))}
        given = [key for key, node in options.items() if key not in _OF_OBJECTS and node.value is not None]
        refused = [key for key in given if key in _NEVER or "type" not in section]
        if "init_from" in refused:
            problems.report(_LOAD_BEFORE, "model.init_from", options["init_from"].source)
        elif refused:
            listed = "" if len(refused) == 1 else f" (nor have {', '.join(refused[1:])})"
            key = refused[0]
            problems.report(f"{_NO_EFFECT}{listed}; leave it out", f"model.{key}", options[key].source)
        elif given and isinstance(config, Mapping):  # of a file, its loading says so
            kind = section["type"].value
            log.info("config: the model given replaces model.type %s, with its %s", kind, ", ".join(given))
    if problems:
        raise ConfigError(problems)


def _with_settings(
    config: Config, overrides: Overrides, model: Mapping[str, Any]
) -> tuple[Config, Overrides]:
    """Return config and overrides that set keys of the section `model`; `params` are set one by one."""
    if isinstance(config, Mapping):
        section = config.get("model")
        return {**config, "model": {**(section if isinstance(section, Mapping) else {}), **model}}, overrides
    settings = {f"model.{key}": value for key, value in model.items() if key != "params"}
    settings |= {f"model.params.{key}": value for key, value in model.get("params", {}).items()}
    return config, with_settings(overrides, settings)


def _importable(model: Any) -> str:
    """Return the name of a model, or the import path of a class or function.

    Raises:
        InputError: It has no path that another process can import.
    """
    if isinstance(model, str):
        return model
    if model.__module__ == "__main__" or "<" in model.__qualname__:
        what = "an object of it: model=NAME(...)" if isinstance(model, type) else "what it returns"
        raise InputError(
            f"model {model.__qualname__} is defined where no other process can import it: put it into a "
            f"module of its own, or give {what}"
        )
    return f"{model.__module__}:{model.__qualname__}"


def name_batch_size(resolved: Resolved, overrides: Overrides, data: Any) -> Overrides | None:
    """Return the overrides with the batch size of the data loaders given; None if it is not to be used.

    A batch size in the config comes first.
    """
    from trainwright.datasets.samples.loaders import batch_size_of

    key, size, model = "training.batch_size", batch_size_of(data), resolved.config.model
    if size is None or resolved.sources.get(key) != DEFAULT:
        return None
    name = model.framework or plugins.framework_of(model.type)
    keys = plugins.adapter("framework", name).training_keys(model.type, model.params) if name else [key]
    if name and "batch_size" not in keys:
        return None
    log.info("%s: %d, as of the data loader", key, size)
    return with_settings(overrides, {key: size})


def require_data(resolved: Resolved, config: Config) -> None:
    """Check that a config has a data section.

    Raises:
        ConfigError: There is no data section.
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
        InputError: One is missing; the message shows the call that passes it. Or the model is a class.
    """
    manifest = run.manifest()
    if isinstance(model := given.get("model"), type):
        named = manifest is not None and "model" not in manifest.objects
        leave = ", or leave it out: the run's config names its class" if named else ""
        raise InputError(f"model is the class {model.__qualname__}; give an object of it{leave}")
    names = [name for name in (manifest.objects if manifest else ()) if name in given]
    if manifest and any(given[name] is None for name in names):
        again = ", ".join(f"{name}=..." for name in names)
        raise InputError(
            f"{manifest.objects_in_words(names)}; pass {'it' if names == ['model'] else 'them'} again: "
            f"trainwright.{verb}({run.id!r}, {again}); the command line cannot"
        )
