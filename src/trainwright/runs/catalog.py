"""Answer the config loader's questions about adapters and metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trainwright import plugins
from trainwright.config.adapters import Kind, Meaning
from trainwright.config.file_types import type_of_names
from trainwright.config.spellings import Spellings
from trainwright.config.synonyms import fold
from trainwright.evaluation import metrics
from trainwright.frameworks.base import Framework
from trainwright.records.listing import runs_folder
from trainwright.storage.urls import store_url
from trainwright.versions.base import Version

ENGINE_TRAINING_KEYS = (  # what the engine does for every framework
    "class_weights",
    "early_stopping",
    "determinism",
    "max_minutes",
    "threads",
)
_ATTRIBUTES = {"model": "models", "optimizer": "optimizers", "loss": "losses"}


class Catalog:
    """The installed adapters, as the config loader asks for them (`config.Adapters`).

    Args:
        runs_dir: The folder of the runs, which keeps versions of data; default: that of the environment.
    """

    def __init__(self, runs_dir: Path | None = None) -> None:
        self._runs_dir = runs_dir

    @property
    def versions_in(self) -> str:
        """The URL of the folder of runs, which keeps versions of data."""
        return store_url(self._runs_dir or runs_folder())

    def pin(self, kind: str, reference: Mapping[str, str | None]) -> tuple[Mapping[str, str], str | None]:
        """Return the keys of the exact version that a reference to data means now, and their `data.type`.

        Raises:
            InputError: There is no such version.
        """
        versions: Version = plugins.adapter("version", kind)(self.versions_in)
        pin = versions.resolve(reference)
        names = [pin.file] if pin.file else versions.describe(pin).names
        return pin.reference, type_of_names(names)

    def names(self, kind: Kind, framework: str | None = None) -> Sequence[str]:
        """Return the names that a config may use for `kind`; plugins that cannot be used are left out."""
        if kind == "dataset":
            return plugins.dataset_names()
        if kind == "metric":
            return metrics.names()
        if kind in ("framework", "strategy", "task", "tracker", "sampler", "tuner"):
            return plugins.usable_names(kind)
        return list(dict.fromkeys(name for offered in self._offered(kind, framework) for name in offered))

    def has(self, kind: Kind, name: str, framework: str | None = None) -> bool:
        """Return whether a config may use this name for `kind`; only what the answer needs is imported.

        Raises:
            InputError: It is the name of a plugin that cannot be used.
        """
        if kind == "dataset":
            return plugins.find_dataset(name) is not None
        if kind == "metric":
            return any(name in cls.metrics for _, cls in plugins.adapters("task"))
        if kind == "strategy" and name in plugins.BUILT_IN[kind]:
            return True  # without its library
        if kind in ("framework", "strategy", "task", "tracker", "sampler", "tuner"):
            return plugins.find(kind, name) is not None
        return any(name in offered for offered in self._offered(kind, framework, name))

    def params(self, kind: Kind, name: str, framework: str | None = None) -> type[BaseModel] | None:
        """Return the options of an adapter, or None if there is no such adapter."""
        if kind in ("dataset", "tracker", "sampler", "tuner"):
            cls = plugins.find_dataset(name) if kind == "dataset" else plugins.find(kind, name)
            return None if cls is None else cls.Params
        offering = (
            offered
            for offered in self._offered(kind, framework, name)
            if isinstance(offered, Mapping) and name in offered
        )
        return next((offered[name] for offered in offering), None)

    def spellings(self, kind: Kind, name: str | None, framework: str | None = None) -> Spellings | None:
        """Return what other names of the options of a model or an optimizer mean, or None."""
        if kind == "model" and framework is None:
            framework = plugins.framework_of(name or "") or self._framework_of_module(name or "")
        if framework is None:
            offering = (cls for _, cls in plugins.adapters("framework") if name in cls.optimizers)
            cls = next(offering, None) if kind == "optimizer" else None
        else:
            cls = plugins.find("framework", framework)
        if cls is None:
            return None
        spellings: Spellings = cls.spellings if kind == "model" else cls.optimizer_spellings
        return spellings

    @staticmethod
    def _framework_of_module(path: str) -> str | None:
        """Return the framework whose library an import path begins with, or None."""
        package = path.partition(":")[0].partition(".")[0]
        return plugins.framework_of_package(package) if ":" in path else None

    def defaults(self, framework: str, model: str) -> Mapping[str, Any]:
        """Return the defaults of a framework's model, by dotted key of the config."""
        defaults: Mapping[str, Any] = plugins.adapter("framework", framework).defaults(model)
        return defaults

    def training_keys(self, framework: str, model: str, params: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of `training` that have an effect on a model with these options."""
        keys = plugins.adapter("framework", framework).training_keys(model, params)
        return {*keys, *ENGINE_TRAINING_KEYS, *(["drop_last"] if "batch_size" in keys else [])}

    def has_processes(self, framework: str) -> bool:
        """Return whether a framework trains a model in several processes."""
        starts: bool = plugins.adapter("framework", framework).processes is not Framework.processes
        return starts

    def framework_of(self, model_type: str) -> str | None:
        """Return the framework that has a model of this short name, or None."""
        return plugins.framework_of(model_type)

    def framework_meant(self, name: str) -> str | None:
        """Return the framework that another common name means, or None."""
        return _meant("framework", name)

    def model_meant(self, name: str, framework: str | None = None) -> Meaning | None:
        """Return the model that another common name means, or None.

        A class name in its own case comes first (`Ridge` is the regressor), then a short name in other case.
        """
        wanted = fold(name)

        def described() -> Iterator[tuple[str, Any]]:
            if framework is None:
                return plugins.frameworks_with(lambda one: fold(one) == wanted)
            return iter([(framework, plugins.adapter("framework", framework))])

        for one, cls in described():
            if name in (others := cls.other_names()):
                return _meaning(one, others, name)
        for one, cls in described():
            if (model := next((model for model in cls.models if fold(model) == wanted), None)) is not None:
                return Meaning(model, one)
        for one, cls in described():
            for other in (others := cls.other_names()):
                if fold(other) == wanted:
                    return _meaning(one, others, other)
        return None

    def metric_meant(self, name: str) -> str | None:
        """Return the metric that another common name means, or None."""
        return metrics.meant(name)

    def sampler_meant(self, name: str) -> str | None:
        """Return the sampler that another common name means, or None."""
        return _meant("sampler", name)

    def broken(self, kind: Kind) -> Sequence[str]:
        """Return one line for each plugin that might have had a name of `kind`, but cannot be used.

        Frameworks have names of models, optimizers and losses. Other plugins are named as their entry points,
        and refused where they are asked for.
        """
        return plugins.broken("framework") if kind in ("model", "optimizer", "loss") else []

    def _offered(
        self, kind: Kind, framework: str | None, name: str | None = None
    ) -> Iterator[Mapping[str, type[BaseModel]] | Sequence[str]]:
        """Yield the models, optimizers or losses of one framework, or of each that may have one of this name.

        They are not merged: a framework of many models makes the options of one when they are asked for.
        """
        is_named = kind == "model" and name is not None
        if framework is None and not is_named:
            for _, cls in plugins.adapters("framework"):
                yield getattr(cls, _ATTRIBUTES[kind])
        elif (one := framework or plugins.framework_of(name or "")) is not None:
            yield getattr(plugins.adapter("framework", one), _ATTRIBUTES[kind])


def _meant(kind: plugins.Kind, name: str) -> str | None:
    """Return the adapter that has a name among its `aliases`, in any case."""
    wanted = fold(name)
    named = ((one, {one, *getattr(cls, "aliases", ())}) for one, cls in plugins.adapters(kind))
    return next((one for one, names in named if wanted in map(fold, names)), None)


def _meaning(framework: str, others: Mapping[str, tuple[str, str | None]], name: str) -> Meaning:
    """Return what one of a framework's other names of models means."""
    model, task = others[name]
    tasks = {one for named, one in others.values() if named == model and one is not None}
    return Meaning(model, framework, task, tasks - {task} if task else ())
