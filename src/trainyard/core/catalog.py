"""What the config loader asks about adapters and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from trainyard.core import registry
from trainyard.evaluation.metrics import METRICS

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
        return list(self._offered(kind, framework))

    def params(self, kind: str, name: str, framework: str | None = None) -> type[BaseModel] | None:
        """The options of an adapter, or None if there is no such adapter."""
        if kind == "dataset":
            known = name in registry.dataset_names() or ":" in name
            return registry.dataset_of(name).Params if known else None
        if kind == "tracker":
            found = registry.find(kind, name)
            return None if found is None else found.Params
        offered = self._offered(kind, framework)
        return offered.get(name) if isinstance(offered, Mapping) else None

    def framework_of(self, model_type: str) -> str | None:
        """The framework that answers to a short model name."""
        return registry.framework_of(model_type)

    def _offered(self, kind: str, framework: str | None) -> Mapping[str, type[BaseModel]] | Iterable[str]:
        """The models, optimizers or losses of one framework, or of all."""
        found: dict[str, Any] = {}
        for name in (framework,) if framework else registry.names("framework"):
            offered = getattr(registry.adapter("framework", name), _ATTRIBUTES[kind])
            found.update(offered if isinstance(offered, Mapping) else dict.fromkeys(offered))
        return found
