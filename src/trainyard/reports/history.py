"""The journal as curves and markers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.records import journal
from trainyard.records.journal import Record
from trainyard.reports.charts import Line, LineChart, Marker
from trainyard.reports.rundir import RunFiles, part
from trainyard.reports.scales import number
from trainyard.types import Array

Series = tuple[Array, Array]  # steps (points,) int64, values (points,) float64

_KINDS = {
    "early_stop": "stop",
    "time_limit": "stop",
    "learning_rate_drop": "drop",
}  # the markers of events; others: a diamond
_UNMARKED = ("best",)  # comes again and again; the last one has a star of its own
_NAMED = {
    "learning_rate": "learning rate",
    "samples_per_second": "samples per second",
    "grad_norm": "gradient norm",
}
_MAYBE_LOG = ("grad_norm",)


def series(records: Sequence[Record]) -> dict[str, Series]:
    """Each metric over the steps, with the loss of every single step as `loss`; the test is no curve."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if record["kind"] in ("metrics", "evaluation"):
            for name, value in record["values"].items():
                if isinstance(value, int | float | str) and not name.startswith("test_"):
                    found.setdefault(name, {})[int(record["step"])] = journal.number(value)
    single = journal.losses(records)
    if single:
        found["loss"] = single
    return {name: _arrays(points) for name, points in found.items()}


def _arrays(points: Mapping[int, float]) -> Series:
    steps = np.fromiter(points.keys(), np.int64, len(points))
    order = np.argsort(steps, kind="stable")
    return steps[order], np.fromiter(points.values(), np.float64, len(points))[order]


def best_marker(run: RunFiles) -> list[Marker]:
    """The star at the best model."""
    best = part(run.result, "best")
    if not isinstance(best.get("step"), int):
        return []
    return [
        Marker(
            best["step"],
            "best",
            f"best model at step {number(best['step'])}: {best.get('metric')} {number(best.get('value'))}",
        )
    ]


def markers(run: RunFiles) -> list[Marker]:
    """The best step, the resumes, and the events of the run."""
    found = best_marker(run)
    for attempt in run.attempts[1:]:
        found.append(
            Marker(
                attempt.from_step,
                "resume",
                f"attempt {attempt.number} resumed from step {number(attempt.from_step)}",
            )
        )
    for record in run.records:
        if record["kind"] == "event" and record.get("name") not in _UNMARKED:
            step = journal.last_step(record)
            found.append(
                Marker(
                    step, _KINDS.get(str(record.get("name")), "event"), f"step {number(step)}: {told(record)}"
                )
            )
    return sorted(found, key=lambda marker: marker.x)


def first_of_each(marks: Sequence[Marker], count: int) -> list[Marker]:
    """The first `count` of each kind, so that a frequent one does not hide the others."""
    seen: Counter[str] = Counter()
    kept = []
    for mark in marks:
        seen[mark.kind] += 1
        if seen[mark.kind] <= count:
            kept.append(mark)
    return kept


def told(record: Record) -> str:
    """An event in words: its name, and its details."""
    detail = record.get("detail")
    pairs = [f"{key} {_brief(value)}" for key, value in detail.items()] if isinstance(detail, Mapping) else []
    return f"{str(record.get('name', 'event')).replace('_', ' ')}{' (' if pairs else ''}{', '.join(pairs)}{')' if pairs else ''}"


def _brief(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


def loss_chart(data: Mapping[str, Series], marks: Sequence[Marker]) -> LineChart | None:
    """The losses of training and validation together; None before the first of them."""
    trained = data.get("loss") or data.get("train_loss")
    lines = [Line("train", *trained, "train")] if trained else []
    if "val_loss" in data:
        lines.append(Line("validation", *data["val_loss"], "val"))
    return LineChart("Loss", lines, marks, log=None, span=span(data)) if lines else None


def other_charts(data: Mapping[str, Series], marks: Sequence[Marker]) -> list[LineChart]:
    """A chart for each other metric that changes: those of the validation first, then how the training went."""
    left_out = ("loss", "train_loss", "val_loss", "epoch")
    validated = [name for name in data if name.startswith("val_") and name not in left_out]
    rest = [
        name for name in data if name not in validated and name not in left_out and not constant(data[name])
    ]
    charts = []
    for name in validated + rest:
        kind = "val" if name in validated else "train" if name.startswith("train_") else "other"
        shown = marks if kind == "val" or name == "learning_rate" else ()
        log = None if name in _MAYBE_LOG or name.endswith("loss") else False
        charts.append(
            LineChart(
                title(name),
                [Line(title(name), *data[name], kind)],
                shown,
                log=log,
                points=160,
                span=span(data),
            )
        )
    return charts


def span(data: Mapping[str, Series]) -> tuple[float, float]:
    """From the start of the run to its last step."""
    return 0.0, float(max((steps[-1] for steps, _ in data.values() if len(steps)), default=1))


def constant(points: Series) -> bool:
    """Whether a series never changes, so that a sentence says it better than a picture."""
    return len(points[1]) == 0 or bool(np.all(points[1] == points[1][0]))


def title(metric: str) -> str:
    """A metric's name for people: `val_f1_macro` -> `validation f1 macro`."""
    split, _, rest = metric.partition("_")
    long = {"val": "validation", "test": "test", "train": "training"}.get(split)
    return _NAMED.get(metric) or (
        f"{long} {rest.replace('_', ' ')}" if long and rest else metric.replace("_", " ")
    )
