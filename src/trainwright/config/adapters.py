"""The questions of the loader about adapters; `runs.catalog` answers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel

from trainwright.config.spellings import Spellings

Kind = Literal[
    "dataset",
    "model",
    "framework",
    "strategy",
    "optimizer",
    "loss",
    "task",
    "tracker",
    "metric",
    "sampler",
    "tuner",
]


class Meaning(NamedTuple):
    """The meaning of another name of a model: the model, its framework, and the task that the name implies.

    `other_tasks` are those that the names of other classes of this model imply.
    """

    name: str
    framework: str
    task: str | None = None
    other_tasks: Collection[str] = ()


class Adapters(Protocol):
    """The installed adapters, looked up by the names that configs use. No call imports a heavy library."""

    def names(self, kind: Kind, framework: str | None = None) -> Sequence[str]:
        """Return the names of a kind; of models, optimizers and losses those of one framework, or of all."""

    def has(self, kind: Kind, name: str, framework: str | None = None) -> bool:
        """Return whether `names` holds a name, without importing the adapters of other names.

        Raises:
            InputError: The adapter is installed but cannot be used; the message says why.
        """

    def params(self, kind: Kind, name: str, framework: str | None = None) -> type[BaseModel] | None:
        """Return the options of an adapter; None if there is no such adapter or it takes none.

        The class must forbid extra keys. It is validated strictly, from JSON, so a list is fine for a tuple.
        """

    def spellings(self, kind: Kind, name: str | None, framework: str | None = None) -> Spellings | None:
        """Return what other names of the options of a model or an optimizer mean; None if nothing is known.

        Args:
            kind: `model` or `optimizer`.
            name: The name, or the import path of a class; None: the default.
            framework: The framework, if it is known.
        """

    def defaults(self, framework: str, model: str) -> Mapping[str, Any]:
        """Return the defaults of a framework's model, by dotted key of the config."""

    def training_keys(self, framework: str, model: str, params: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of `training` that have an effect on a model with these options."""

    def has_processes(self, framework: str) -> bool:
        """Return whether a framework trains a model in several processes."""

    def framework_of(self, model_type: str) -> str | None:
        """Return the framework that has a model of this short name, or None."""

    def framework_meant(self, name: str) -> str | None:
        """Return the framework that another common name means (`pytorch`), or None."""

    def model_meant(self, name: str, framework: str | None = None) -> Meaning | None:
        """Return the model that another common name means (a class name, `xgb`), or None."""

    def metric_meant(self, name: str) -> str | None:
        """Return the metric that another common name means (`auc`), or None."""

    def sampler_meant(self, name: str) -> str | None:
        """Return the sampler that another common name means (`bayesian`), or None."""

    def pin(self, kind: str, reference: Mapping[str, str | None]) -> tuple[Mapping[str, str], str | None]:
        """Return the keys of the exact version that a reference to data means now, and their `data.type`.

        Args:
            kind: The system that keeps the versions.
            reference: The keys of the reference.

        Raises:
            InputError: There is no such version.
        """

    @property
    def versions_in(self) -> str:
        """The URL of the folder of runs, which keeps versions of data."""

    def broken(self, kind: Kind) -> Sequence[str]:
        """Return one line for each installed adapter of a kind that cannot be used."""
