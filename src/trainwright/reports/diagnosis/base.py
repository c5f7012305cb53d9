"""The findings of a diagnosis, and the facts of a run that its rules look up."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from trainwright.plugins import task_of
from trainwright.reports.curves import Curve, Floats
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.reports.verdict import Gain, evaluated, gains

Kind = Literal[
    "diverged",
    "flat loss",
    "one class",
    "missed class",
    "leakage",
    "repeated rows",
    "shift",
    "overfitting",
    "too few rows",
    "unfinished",
]


class Finding(NamedTuple):
    """A fault of a run: in a line, what was seen to say so, and what mends it.

    `mend` is a line of config, or a command with CONFIG in place of the config's path.
    """

    kind: Kind
    title: str
    seen: str
    mend: str


class Series(NamedTuple):
    """The finite values of a curve, (points,) each, by step."""

    steps: Floats
    values: Floats

    def at(self, step: float) -> float:
        """Return the value at a step: that of the nearest point."""
        return float(self.values[int(np.abs(self.steps - step).argmin())])


def series(run: RunFiles, *names: str) -> Series | None:
    """Return the first of the curves that the run has with at least two finite values."""
    for name in names:
        curve: Curve | None = run.history.curves.get(name)
        if curve is None:
            continue
        known = np.isfinite(curve.envelope.mean)
        if known.sum() > 1:
            return Series(curve.envelope.x[known], curve.envelope.mean[known])
    return None


def setting(run: RunFiles, key: str, default: Any = None) -> Any:
    """Return a value of the config by its dotted key."""
    *sections, name = key.split(".")
    return part(run.settings, *sections).get(name, default)


def rate(run: RunFiles) -> float | None:
    """Return the learning rate of the config, if it is a number."""
    value = setting(run, "training.learning_rate")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def against(run: RunFiles, baseline: str) -> tuple[Gain, Gain] | None:
    """Return how the model does against a baseline (answers, certainty); None if that is not known."""
    judged = evaluated(run)
    for one in part(judged[1], "compared").get("baselines", ()) if judged else ():
        if one["name"] == baseline:
            return gains(one)
    return None


def skills(run: RunFiles) -> dict[str, float]:
    """Return, by split, how far the model is from the constant answer (0) to perfection (1).

    It is computed from the metric that answers are judged by first.
    """
    judged = evaluated(run)
    if judged is None:
        return {}
    constant = next(one for one in judged[1]["compared"]["baselines"] if one["name"] == "constant")
    shown = numbers(part(constant, "metrics"))
    name = next((name for name in part(constant, "gains") if f"{judged[0]}_{name}" in shown), None)
    if name is None:
        return {}
    task = task_of(str(judged[1]["task"]))
    base = shown[f"{judged[0]}_{name}"]
    best = task.metrics[name].best
    if best is None or abs(best - base) < 1e-12:
        return {}
    values = {split: numbers(part(tables, "metrics")) for split, tables in run.evaluations.items()}
    return {
        split: (metrics[f"{split}_{name}"] - base) / (best - base)
        for split, metrics in values.items()
        if np.isfinite(metrics.get(f"{split}_{name}", np.nan))
    }


def excluding(run: RunFiles, names: list[str]) -> str:
    """Return the line that excludes columns, besides those that the config excludes already."""
    from trainwright.config.emit import inline

    return f"data.exclude: {inline(list(dict.fromkeys([*(setting(run, 'data.exclude') or ()), *names])))}"


def rows_of(run: RunFiles) -> Json:
    """Return the number of rows by split."""
    splits = run.manifest.data.splits if run.manifest else {}
    return {name: split.rows for name, split in splits.items() if split.rows is not None}
