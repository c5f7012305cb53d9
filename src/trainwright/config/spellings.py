"""Other spellings of the options of models and optimizers, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

METRICS = ("eval_metric", "custom_metric", "metric")  # options that name metrics


def unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value


class Setting(NamedTuple):
    """A setting of ours that an option of a library means.

    `read` returns the value of the setting; None if this value of the option says nothing (`n_jobs: -1`).
    """

    key: str
    read: Callable[[Any], Any] = unchanged


class Refusal(NamedTuple):
    """The reason why an option cannot be used, and what to do instead; values in `unless` change nothing.

    `means_null`: null is a value of the option like any other.
    """

    reason: str
    unless: Collection[Any] = ()
    means_null: bool = False

    def changes_nothing(self, value: Any) -> bool:
        """Return whether the option has no effect with this value; NaN and null mean that it is not set."""
        is_nan = isinstance(value, float) and math.isnan(value)
        is_unset = is_nan or (value is None and not self.means_null)
        return is_unset or (not callable(value) and value in self.unless)


@dataclass(frozen=True)
class Spellings:
    """The meanings of the names that a library's users know.

    Args:
        aliases: Another name -> the option. `betas.0` is the first item of the option `betas`.
        values: Option -> another value -> the option, or the dotted key of a setting, and its value.
        settings: Name -> the setting of ours that it means.
        metrics: The library's metric, in lower case -> ours, which is listed in `evaluation.metrics`; None:
            the loss, which is always there. They are values of the option `metric`.
        library_metrics: Metrics that the option `metric` takes itself, if one is given alone.
        unused: Name -> why it has no effect here.
        refused: Name -> why it cannot be used.
        lists: Options that are lists, of which a single value is the only item.
        classes: Whether the library's own classes are also relieved of what means a setting of ours.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, tuple[str, Any]]] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    metrics: Mapping[str, str | None] = field(default_factory=dict)
    library_metrics: Collection[str] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    lists: Collection[str] = ()
    classes: bool = False

    def names_of(self, option: str) -> list[str]:
        """Return the other names of an option."""
        return [name for name, meant in self.aliases.items() if meant == option]

    def names(self) -> set[str]:
        """Return all names that are not those of options."""
        return {*self.aliases, *self.settings, *self.unused, *self.refused}

    def metrics_meant(self, value: Any) -> list[str] | None:
        """Return our metrics that a value of the option `metric` names; None if the option takes it."""
        listed = value if isinstance(value, list | tuple) else [value]
        if len(listed) == 1 and listed[0] in self.library_metrics:
            return None
        if not all(isinstance(name, str) and name.lower() in self.metrics for name in listed):
            return None
        ours = [self.metrics[name.lower()] for name in listed]
        return list(dict.fromkeys(metric for metric in ours if metric is not None))

    def settings_in(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of an estimator that mean settings of ours, under their own names."""
        plain = {key: value for key, value in options.items() if isinstance(value, int | float | str | list)}
        return {
            key: value
            for key, value in plain.items()
            if key in self.settings
            or (self.aliases.get(key, key) in METRICS and self.metrics_meant(value) is not None)
        }


def spelled(groups: Mapping[str, str]) -> dict[str, str]:
    """Return alias -> option, from option -> its aliases, divided by blanks."""
    return {alias: option for option, aliases in groups.items() for alias in aliases.split()}


def each(names: str, meaning: Any) -> dict[str, Any]:
    """Return name -> meaning, for names that are divided by blanks."""
    return dict.fromkeys(names.split(), meaning)


def threads(value: Any) -> Any:
    """Return a number of threads; None for -1 and 0, which mean all of them."""
    return None if _number(value) and value <= 0 else value


def device(value: Any) -> Any:
    """Return a device under our name."""
    name = str(value).lower()
    kind, _, number = name.partition(":")
    return f"cuda:{number}" if number and kind == "gpu" else "cuda" if kind == "gpu" else name


def patience(value: Any) -> Any:
    """Return a number of rounds without improvement; None for 0, false and below, which mean no end."""
    return None if value is False or (_number(value) and value <= 0) else value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
