"""What the loader has to know of adapters; `registry.py` knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel

Kind = Literal["dataset", "model", "framework", "optimizer", "loss", "tracker", "metric"]


class Adapters(Protocol):
    """The installed adapters, looked up by what a config calls them. No call imports a heavy library."""

    def names(self, kind: Kind, framework: str | None = None) -> Sequence[str]:
        """The short names of a kind; models, optimizers and losses of one framework, or of all of them."""

    def params(self, kind: Kind, name: str, framework: str | None = None) -> type[BaseModel] | None:
        """The options of one adapter; None where there is no such adapter or it takes none.

        The class must forbid extra keys. It is validated strictly, from JSON, so a list is fine for a tuple.
        """

    def defaults(self, framework: str, model: str) -> Mapping[str, Any]:
        """The defaults of a framework's model, by dotted key of the config."""

    def training_keys(self, framework: str, model: str, params: Mapping[str, Any]) -> Collection[str]:
        """The keys of `training` that have an effect on a model with these options."""

    def framework_of(self, model_type: str) -> str | None:
        """The framework that answers to the short model name, or None."""
