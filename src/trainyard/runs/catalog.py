"""What the config loader asks about adapters and metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from trainyard import registry
from trainyard.evaluation.metrics import METRICS

CORE_TRAINING_KEYS = ("early_stopping", "determinism", "threads")  # what core does for every framework
_ATTRIBUTES = {"model": "models", "optimizer": "optimizers", "loss": "losses"}


class Catalog:
    """What the config loader asks of adapters (`config.Adapters`)."""

    def names(self, kind: str, framework: str | None = None) -> Sequence[str]:
        """The names that a config may use for `kind`."""
        if kind == "dataset":
            return registry.dataset_names()
        if kind == "metric":
            return list(METRICS)
        if kind in ("framework", "tracker"):
            return registry.names(kind)
        return list(dict.fromkeys(name for offered in self._offered(kind, framework) for name in offered))

    def params(self, kind: str, name: str, framework: str | None = None) -> type[BaseModel] | None:
        """The options of an adapter, or None if there is no such adapter."""
        if kind == "dataset":
            known = name in registry.dataset_names() or ":" in name
            return registry.dataset_of(name).Params if known else None
        if kind == "tracker":
            found = registry.find(kind, name)
            return None if found is None else found.Params
        offering = (
            some for some in self._offered(kind, framework) if isinstance(some, Mapping) and name in some
        )
        return next((some[name] for some in offering), None)

    def defaults(self, framework: str, model: str) -> Mapping[str, Any]:
        """The defaults of a framework's model, by dotted key of the config."""
        found: Mapping[str, Any] = registry.adapter("framework", framework).defaults(model)
        return found

    def training_keys(self, framework: str, model: str, params: Mapping[str, Any]) -> Collection[str]:
        """The keys of `training` that have an effect on a model with these options."""
        return {*registry.adapter("framework", framework).training_keys(model, params), *CORE_TRAINING_KEYS}

    def framework_of(self, model_type: str) -> str | None:
        """The framework that answers to a short model name."""
        return registry.framework_of(model_type)

    def _offered(
        self, kind: str, framework: str | None
    ) -> list[Mapping[str, type[BaseModel]] | Sequence[str]]:
        """The models, optimizers or losses of one framework, or of each.

        They are not put together: a framework of many models makes the options of one when they are asked for.
        """
        frameworks = [framework] if framework else self.names("framework")
        return [getattr(registry.adapter("framework", name), _ATTRIBUTES[kind]) for name in frameworks]
