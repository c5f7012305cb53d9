"""The charts of a run: its curves, and markers for what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from trainwright.numerals import number
from trainwright.records.decision import ENDS
from trainwright.reports.charts import Line, LineChart, Marker
from trainwright.reports.curves import Curve
from trainwright.reports.rundir import RunFiles

Curves = Mapping[str, Curve]

# The kinds of events by their names; any other is an `event`.
_KINDS = {
    "early_stop": "stop",
    "learning_rate_drop": "drop",
    **dict.fromkeys(ENDS, "stop"),
    "resume": "resume",
}
_NAMED = {
    "learning_rate": "learning rate",
    "samples_per_second": "samples per second",
    "grad_norm": "gradient norm",
}
_MAYBE_LOG = ("grad_norm",)


def best_marker(run: RunFiles) -> list[Marker]:
    """Return the star at the best model."""
    if (best := run.best) is None:
        return []
    text = f"best model at step {number(best.step)}: {best.metric} {number(best.value)}"
    return [Marker(best.step, "best", text)]


def markers(run: RunFiles) -> list[Marker]:
    """Return markers for the best step, the resumes, and the events of the run."""
    marks = best_marker(run)
    for attempt in run.attempts[1:]:
        text = f"attempt {attempt.number} resumed from step {number(attempt.from_step)}"
        marks.append(Marker(attempt.from_step, "resume", text))
    for event in run.history.events:
        kind = _KINDS.get(event.name, "event")
        marks.append(Marker(event.step, kind, f"step {number(event.step)}: {event.text}"))
    return sorted(marks, key=lambda mark: mark.x)


def first_of_each(marks: Sequence[Marker], count: int) -> list[Marker]:
    """Return the first `count` of each kind, so that a frequent one does not hide the others."""
    seen: Counter[str] = Counter()
    kept = []
    for mark in marks:
        seen[mark.kind] += 1
        if seen[mark.kind] <= count:
            kept.append(mark)
    return kept


def loss_chart(curves: Curves, marks: Sequence[Marker]) -> LineChart | None:
    """Return the chart of the training and validation losses; None before the first of them."""
    trained = curves.get("loss") or curves.get("train_loss")
    lines = [Line("train", trained.envelope, "train")] if trained else []
    if "val_loss" in curves:
        lines.append(Line("validation", curves["val_loss"].envelope, "val"))
    return LineChart("Loss", lines, marks, log=None, span=span(curves)) if lines else None


def other_charts(curves: Curves, marks: Sequence[Marker]) -> list[LineChart]:
    """Return a chart for each other metric that changes, those of the validation split first."""
    left_out = ("loss", "train_loss", "val_loss", "epoch")
    moving = [name for name in curves if name not in left_out and not constant(curves[name])]
    moving.sort(key=lambda name: not name.startswith("val_"))
    return [_chart(name, curves, marks) for name in moving]


def _chart(name: str, curves: Curves, marks: Sequence[Marker]) -> LineChart:
    kind = "val" if name.startswith("val_") else "train" if name.startswith("train_") else "other"
    return LineChart(
        title(name),
        [Line(title(name), curves[name].envelope, kind)],
        marks if kind == "val" or name == "learning_rate" else (),
        log=None if name in _MAYBE_LOG or name.endswith("loss") else False,
        points=160,
        span=span(curves),
    )


def span(curves: Curves) -> tuple[float, float]:
    """Return the first and last step that charts show: from the start of the run to its last step."""
    return 0.0, float(max((curve.last_step for curve in curves.values()), default=1))


def constant(curve: Curve) -> bool:
    """Return whether a curve never changes, so that a sentence says it better than a picture."""
    low, high = curve.envelope.low, curve.envelope.high
    return len(low) == 0 or bool(np.all(low == low[0]) and np.all(high == low[0]))


# Words of metrics' names that are written otherwise.
_SPELLED = {word.lower(): word for word in ("ROC", "AUC", "F1", "RMSE", "MAE", "MSE", "MAPE", "MCC", "R2")}


def title(metric: str) -> str:
    """Return a metric's name for people: `val_f1_macro` -> `validation f1 macro`."""
    split, _, rest = metric.partition("_")
    long = {"val": "validation", "test": "test", "train": "training"}.get(split)
    spelled_out = f"{long} {rest.replace('_', ' ')}" if long and rest else metric.replace("_", " ")
    return _NAMED.get(metric) or " ".join(_SPELLED.get(word, word) for word in spelled_out.split(" "))
