"""The findings of a diagnosis, and the facts of a run that its rules look up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from trainwright.config.emit import inline
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
    "learning rate",
    "lagging average",
    "underfitting",
]

Changes = Mapping[str, Any]
NO_CHANGES: Changes = MappingProxyType({})


_MORE_ROWS = "more rows, or columns that tell more,"
# Remedies outside the config.
_MAY_HELP: Mapping[Kind, str] = {
    "overfitting": "more rows, or fewer columns,",
    "leakage": "leaving it out of the data, and of what the model expects,",
    "repeated rows": "leaving them out of one of the splits",
    "shift": "training rows that are like the newer ones",
    "too few rows": "more rows",
    "missed class": "more rows of this class, or columns that tell more of it,",
}


class Expected(NamedTuple):
    """A consequence of a change, by which it can be judged: see `measures.measured`.

    `value` is the measure in the run at hand, and `words` says what is expected of it.
    """

    measure: str
    better: Literal["higher", "lower"]
    value: float
    words: str


class Finding(NamedTuple):
    """A fault of a run: a title, the evidence, the change that fixes it, and the effect expected of that.

    `changes` are values of the config by their dotted keys, which this config takes; empty where no change of
    it is known to help. `command` is one that helps without them, and costs less: it is tried first. It has
    CONFIG in place of the config's path, RUN of the run's name and FILE of the rows to predict.
    """

    kind: Kind
    title: str
    seen: str
    changes: Changes = NO_CHANGES
    expected: Expected | None = None
    command: str = ""

    @property
    def mend(self) -> str:
        """The command and the lines of config that mend it; empty where nothing is known to."""
        lines = (f"{key}: {inline(value)}" for key, value in self.changes.items())
        return "\n".join(filter(None, (self.command, *lines)))

    @property
    def otherwise(self) -> str:
        """A line on what may help where no setting is known to; else empty."""
        if self.mend:
            return ""
        return f"no setting is known to help here; {_MAY_HELP.get(self.kind, _MORE_ROWS)} may"

    def to_json(self) -> Json:
        """Return the finding as a document: `override` has the changes as arguments of commands."""
        return {
            "kind": self.kind,
            "title": self.title,
            "seen": self.seen,
            "mend": self.mend,
            "otherwise": self.otherwise,
            "override": [f"{key}={inline(value)}" for key, value in self.changes.items()],
            "expected": self.expected._asdict() if self.expected else None,
        }


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


def params_of(run: RunFiles) -> Json:
    """Return the options of the run's model."""
    return part(run.settings, "model", "params")


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


def rows_of(run: RunFiles) -> Json:
    """Return the number of rows by split."""
    splits = run.manifest.data.splits if run.manifest else {}
    return {name: split.rows for name, split in splits.items() if split.rows is not None}
