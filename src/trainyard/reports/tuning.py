"""The page of a tuning study: the trials, how they got better, and what each parameter has to do with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from trainyard.errors import CheckpointError
from trainyard.records.trials import LoggedTrial, read_trials
from trainyard.reports.charts import Line, LineChart, line_chart
from trainyard.reports.curves import single_points
from trainyard.reports.history import title as metric_title
from trainyard.reports.rundir import Json, part
from trainyard.reports.scales import LOG_FROM, duration, number
from trainyard.reports.study_charts import Point, Spread, dot_plot, point_plot

_MOST_CURVES = 40
_MOST_ROWS = 500


def section(folder: Path, result: Json, metric: str, mode: str) -> dict[str, Any]:
    """Return what the page of a study shows of its trials.

    Args:
        folder: The folder of the study.
        result: Its result; empty before the end.
        metric: The metric that is tuned.
        mode: `min` or `max`.
    """
    try:
        trials = read_trials(folder)
    except CheckpointError as error:
        return {"notes": [str(error)]}
    name = metric_title(metric)
    valued = [trial for trial in trials if _value(trial) is not None]
    return {
        "figures": _figures(trials, result, name),
        "picture": Markup(_history(trials, name, mode)) if valued else None,
        "importance": Markup(_importance(part(result, "importance"))) if result.get("importance") else None,
        "slices": [Markup(chart) for chart in _slices(valued, name)],
        "curves": Markup(_curves(trials, name)) if valued else None,
        "trials": _table(trials, name, mode),
    }


def _value(trial: LoggedTrial) -> float | None:
    return trial.ending.value if trial.ending else None


def _figures(trials: Sequence[LoggedTrial], result: Json, name: str) -> list[dict[str, str]]:
    ended = [trial.ending for trial in trials if trial.ending]
    counts = {status: sum(end.status == status for end in ended) for status in ("pruned", "failed")}
    more = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    figures = []
    if best := part(result, "best"):
        figures.append(
            {
                "kind": "metric",
                "name": f"{name}, best",
                "value": number(best["value"]),
                "note": f"trial {best['trial']}",
            }
        )
    figures.append({"kind": "cost", "name": "trials", "value": str(len(ended)), "note": more})
    seconds = sum(trial.ending.seconds for trial in trials if trial.ending and trial.same_as is None)
    figures.append({"kind": "cost", "name": "training time", "value": duration(seconds), "note": ""})
    return figures


def _history(trials: Sequence[LoggedTrial], name: str, mode: str) -> str:
    """Draw the value of each trial, and the best one so far."""
    best = (np.fmin if mode == "min" else np.fmax).accumulate([_number(trial) for trial in trials])
    points = [_point(trial, trial.number) for trial in trials]
    title = f"{name} of each trial, and the best so far"
    return point_plot(points, title, ("trial", name), best=best.tolist())


def _number(trial: LoggedTrial) -> float:
    """Return the value of a trial, NaN if it has none."""
    value = _value(trial)
    return math.nan if value is None else value


def _point(trial: LoggedTrial, x: float) -> Point:
    is_pruned = trial.ending is not None and trial.ending.status == "pruned"
    return Point(_label(trial), x, _number(trial), "other" if is_pruned else "val")


def _label(trial: LoggedTrial) -> str:
    value = _value(trial)
    return f"trial {trial.number}: {'no value' if value is None else number(value)}"


def _importance(importance: Mapping[str, float]) -> str:
    rows = [Spread(key, [], value) for key, value in importance.items()]
    return dot_plot(rows, "Importance of each parameter", "share of the variance")


def _slices(trials: Sequence[LoggedTrial], name: str) -> list[str]:
    """Draw the metric over each parameter."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    return [_slice(key, [trial for trial in trials if key in trial.params], name) for key in keys]


def _slice(key: str, trials: Sequence[LoggedTrial], name: str) -> str:
    values = [trial.params[key] for trial in trials]
    title = f"{name} by {key}"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        points = [_point(trial, float(x)) for trial, x in zip(trials, values, strict=True)]
        log = min(values) > 0 and max(values) / min(values) > LOG_FROM
        return point_plot(points, title, (key, name), log=log)
    groups: dict[str, list[float]] = {}
    for trial, value in zip(trials, values, strict=True):
        groups.setdefault(str(value), []).append(_number(trial))
    rows = [Spread(value, scores, float(np.mean(scores)), kind="other") for value, scores in groups.items()]
    return dot_plot(rows, title, f"{name}, by {key}", width=420)


def _curves(trials: Sequence[LoggedTrial], name: str) -> str:
    """Draw the metric over the steps of the last trials."""
    curves = [trial.ending.curve for trial in trials if trial.ending and len(trial.ending.curve) > 1]
    lines = []
    for curve in curves[-_MOST_CURVES:]:
        steps, values = zip(*curve, strict=True)
        lines.append(Line("", single_points(np.array(steps), np.array(values)), "other"))
    if not lines:
        return ""
    return line_chart(LineChart(f"{name} of each trial over its steps", lines), width=720)


def _table(trials: Sequence[LoggedTrial], name: str, mode: str) -> dict[str, Any]:
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    sign = -1.0 if mode == "max" else 1.0
    ordered = sorted(
        trials, key=lambda one: (math.inf if (v := _value(one)) is None else sign * v, one.number)
    )
    rows = [
        (
            trial.run_id,
            [
                str(trial.number),
                trial.ending.status if trial.ending else "running",
                "" if (value := _value(trial)) is None else number(value),
                *(_text(trial.params.get(key)) for key in keys),
                (trial.ending.error or "") if trial.ending else "",
            ],
        )
        for trial in ordered[:_MOST_ROWS]
    ]
    return {"head": ["trial", "status", name, *keys, ""], "rows": rows}


def _text(value: Any) -> str:
    return "" if value is None else number(value) if isinstance(value, float) else str(value)
