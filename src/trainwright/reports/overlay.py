"""Write a page that overlays the curves of several runs: what differs first, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from trainwright.numerals import number
from trainwright.redact import redacted_value
from trainwright.reports import charts, history
from trainwright.reports.charts import Line, LineChart
from trainwright.reports.diagnosis import diagnose
from trainwright.reports.evaluations import interval_of
from trainwright.reports.rundir import Json, RunFiles, part, read_run, understanding
from trainwright.reports.scales import duration
from trainwright.reports.templates import script, style, template, write_page
from trainwright.reports.verdict import is_lower_better

FILE = "runs.html"
MAX_CHARTS = 10
_SHOWN = 60  # characters of a value
_NAMES = ("run_id", "name")  # config keys that differ in any case, or say nothing


class _Named(NamedTuple):
    """A run, its short name on the page, and the class of its color."""

    name: str
    color: str
    run: RunFiles


def write_overlay(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of several runs (at most 12) to `path`, and return it.

    Raises:
        CheckpointError: A table of an evaluation has a form that cannot be shown.
        OSError: The file cannot be written.
    """
    runs = [_Named(chr(ord("A") + i), f"c{i}", read_run(folder)) for i, folder in enumerate(folders)]
    page = template("overlay.html.j2").render(
        style=style(),
        script=script(),
        problems=[f"{name}: {problem}" for name, _, run in runs for problem in run.problems],
        runs=[_described(run) for run in runs],
        differences=_differences([run for _, _, run in runs]),
        metrics=_metrics([run for _, _, run in runs]),
        charts=_charts(runs),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    write_page(path, page)
    return path


def _described(named: _Named) -> Json:
    run = named.run
    with understanding(run.folder):
        findings = diagnose(run)
    return {
        "color": named.color,
        "name": named.name,
        "id": run.run_id,
        "experiment": run.experiment,
        "model": str(part(run.settings, "model").get("type", "")),
        "origin": f"It {run.lineage.in_words()}." if run.lineage else "",
        "status": run.status,
        "steps": number(run.steps),
        "time": duration(run.result.train_seconds) if run.result else "",
        "findings": [finding.title for finding in findings],
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted keys."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        made |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return made


def _differences(runs: Sequence[RunFiles]) -> list[tuple[str, list[str]]]:
    """Return keys and inputs that differ between the runs."""
    settings = [{**flat(run.settings), **_inputs(run)} for run in runs]
    keys = list(dict.fromkeys(key for values in settings for key in values))
    return [
        (key, [_short(redacted_value(key, values.get(key))) for values in settings])
        for key in keys
        if any(values.get(key) != settings[0].get(key) for values in settings) and key not in _NAMES
    ]


def _inputs(run: RunFiles) -> dict[str, Any]:
    manifest = run.manifest
    if manifest is None:
        return {}
    git = manifest.code.git
    return {
        "data (hash)": (manifest.data.hash or "")[:12],
        "code (hash)": (manifest.code.hash or "")[:12],
        "git commit": git and git.commit[:12] + (" with changes" if git.dirty else ""),
        "Trainwright": manifest.code.trainwright,
        "environment (hash)": (manifest.environment.hash or "")[:12],
    }


def _short(value: Any) -> str:
    shown = "" if value is None else str(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def _metrics(runs: Sequence[RunFiles]) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return the metrics of the runs, those of the test first; the best value of each is marked."""
    values = [run.metrics for run in runs]
    names = list(dict.fromkeys(name for metrics in values for name in metrics))
    names.sort(key=lambda name: not name.startswith("test_"))
    return [(history.title(name), _marked(name, runs)) for name in names]


def _marked(name: str, runs: Sequence[RunFiles]) -> list[tuple[str, bool]]:
    row = [run.metrics.get(name) for run in runs]
    best = _best(name, runs)
    return [("" if value is None else number(value), index == best) for index, value in enumerate(row)]


def _best(name: str, runs: Sequence[RunFiles]) -> int | None:
    """Return which run has the best value of a metric; None where noise explains its lead."""
    sign = -1.0 if is_lower_better(name) else 1.0
    known = {
        index: sign * value
        for index, run in enumerate(runs)
        if (value := run.metrics.get(name)) is not None and math.isfinite(value)
    }
    if len(set(known.values())) < 2:
        return None
    first, second = sorted(known, key=lambda index: -known[index])[:2]
    return first if _leads(name, runs[first], runs[second]) else None


def _leads(name: str, first: RunFiles, second: RunFiles) -> bool:
    """Return whether a metric of one run is better than another's by more than the noise of the rows.

    The noise is that of both intervals. Where a metric has none, such as the loss, the first one of the
    split that has an interval decides.
    """
    split = name.partition("_")[0]
    tables = [run.evaluations.get(split, {}) for run in (first, second)]
    named = [name, *part(tables[0], "intervals")]
    for one in named:
        ends = [known for table in tables if (known := interval_of(table, one)) is not None]
        values = [run.metrics[one] for run in (first, second) if one in run.metrics]
        if len(ends) < 2 or len(values) < 2:
            continue
        noise = math.hypot(*((high - low) / 2 for low, high in ends))
        gap = (values[0] - values[1]) * (-1.0 if is_lower_better(one) else 1.0)
        return gap > noise
    return first.metrics[name] != second.metrics[name]


def _charts(runs: Sequence[_Named]) -> list[tuple[str, Markup]]:
    """Return a chart for each curve that at least two runs have, the validation's first."""
    names = list(dict.fromkeys(name for _, _, run in runs for name in run.history.curves))
    counts = {name: sum(name in run.history.curves for _, _, run in runs) for name in names}
    shared = [name for name in names if counts[name] > 1 and name != "epoch" and "system_" not in name]
    if "loss" in shared and counts["loss"] == counts.get("train_loss"):
        shared.remove("loss")  # the loss of every step, of which `train_loss` is the mean
    shared.sort(key=lambda name: (name != "val_loss", not name.startswith("val_"), name != "train_loss"))
    return [(history.title(name), Markup(_chart(name, runs))) for name in shared[:MAX_CHARTS]]


def _chart(curve: str, runs: Sequence[_Named]) -> str:
    having = [one for one in runs if curve in one.run.history.curves]
    lines = [Line(name, run.history.curves[curve].envelope, color) for name, color, run in having]
    span = max(history.span(run.history.curves)[1] for _, _, run in having)
    log = None if curve.endswith("loss") else False
    chart = LineChart(history.title(curve), lines, log=log, points=160, span=(0.0, span))
    return charts.line_chart(chart)
