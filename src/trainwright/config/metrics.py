"""The metrics that a config names: those that select a model or end training, and custom ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.config.schema import RunConfig

# The keys that select a metric.
METRIC_KEYS = ("checkpoint.metric", "training.early_stopping.metric", "training.scheduler.metric")


def deciding_metrics(config: RunConfig) -> dict[str, str]:
    """Map each key that selects a metric to its metric; omit unused keys."""
    return {key: section.metric for key, section in _deciding(config)}


def undecided_modes(config: RunConfig) -> dict[str, str]:
    """Map each key that selects a metric to it, where the config leaves its mode to the metric."""
    return {key: section.metric for key, section in _deciding(config) if section.mode == "auto"}


def _deciding(config: RunConfig) -> Iterator[tuple[str, Any]]:
    for key in METRIC_KEYS:
        section: Any = config
        for name in key.split(".")[:-1]:
            section = getattr(section, name)
        if section is config.checkpoint and not config.checkpoint.save_top_k:
            continue
        if hasattr(section, "metric"):  # no early stopping is None; only some schedules have a metric
            yield key, section


def of_head(config: RunConfig, metric: str) -> tuple[str, str] | None:
    """Return the head that a metric is of, and its name there: `val_rmse_cost` -> (`cost`, `val_rmse`)."""
    of = (name for name in config.training.heads if metric.endswith(f"_{name}"))
    head = max(of, key=len, default=None)
    return None if head is None else (head, metric.removesuffix(f"_{head}"))


def of_task(config: RunConfig) -> list[str]:
    """Return the selected metrics of the first output."""
    return [one for one in deciding_metrics(config).values() if of_head(config, one) is None]


def metrics_of_head(config: RunConfig, head: str) -> list[str]:
    """Return the selected metrics of a head, without its name and without `val_loss`."""
    found = (of_head(config, metric) for metric in deciding_metrics(config).values())
    return [metric for one in found if one and one[0] == head and (metric := one[1]) != "val_loss"]


def custom_name(path: str) -> str:
    """Return the name of a custom metric: `mine:profit` -> `profit`."""
    return path.rpartition(":")[2].rpartition(".")[2]


def metric_path(config: RunConfig, metric: str) -> str:
    """Return the import path of a custom metric (`val_profit`) that `evaluation.metrics` lists.

    Other metrics are returned unchanged.
    """
    listed = [config.evaluation.metrics or [], *(one.metrics or [] for one in config.training.heads.values())]
    own = {custom_name(path): path for metrics in listed for path in metrics if ":" in path}
    split, _, name = metric.partition("_")
    return own.get(name if split in ("train", "val", "test") else metric, metric)
