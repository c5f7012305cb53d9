"""The page of a tuning study: the trials, how they got better, and what each parameter has to do with it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from trainwright.errors import CheckpointError
from trainwright.numerals import number
from trainwright.records.result import AttemptRecord
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, read_trials, status_of
from trainwright.records.tuning_result import BracketSizes, TuningResult
from trainwright.reports import tuning_charts
from trainwright.reports.explanation_charts import Bar, bars
from trainwright.reports.history import title as metric_title
from trainwright.reports.scales import LOG_FROM, duration
from trainwright.reports.study_charts import Point, Spread, dot_plot, point_plot
from trainwright.reports.tuning_charts import natural

_MOST_CURVES = 60
_MOST_LINES = 200  # of the parallel coordinates
_MOST_AXES = 12
_MOST_ROWS = 500
_MOST_BRACKETS = 30


def section(folder: Path, result: TuningResult, metric: str, mode: str) -> dict[str, Any]:
    """Return what the page of a study shows of its trials.

    Args:
        folder: The folder of the study.
        result: Its result; without values before the end.
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
        "asked": _asked(trials, result, name, mode),
        "commands": _commands(folder, result),
        "figures": _figures(trials, result, name),
        "pruned": any(trial.ending and trial.ending.status == "pruned" for trial in trials),
        "brackets": _brackets(trials, result, mode),
        "picture": Markup(_history(trials, name, mode)) if valued else None,
        "importance": Markup(_importance(result.importance)) if result.importance else None,
        "slices": [Markup(chart) for chart in _slices(valued, name)],
        "curves": Markup(_curves(trials, result, name)) if valued else None,
        "parallel": _markup(_parallel(valued, name, mode)),
        "contour": _markup(_contour(valued, result, name, mode)),
        "timeline": _timeline(folder, trials),
        "front": _front(trials, result),
        "trials": _table(folder, trials, name, mode),
    }


def _asked(trials: Sequence[LoggedTrial], result: TuningResult, name: str, mode: str) -> str:
    """Return what was searched, and what was found, in sentences."""
    if not trials:
        return ""
    several = [metric_title(one) for one in result.metrics]
    wanted = (
        f"a good trade-off of {' and '.join(several)}"
        if len(several) > 1
        else f"the {'lowest' if mode == 'min' else 'highest'} {name}"
    )
    count = "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
    words = f"{count}, in search of {wanted}: {', '.join(_keys(trials))} varied."
    if result.best is None:
        return words
    found = ", ".join(f"{key} {_text(value)}" for key, value in result.best.params.items())
    return f"{words} The best is trial {result.best.trial}: {found}."


def _commands(folder: Path, result: TuningResult) -> list[tuple[str, str]]:
    """Return what to do with the result of a study, and the commands for it."""
    config = folder / "best.yaml"
    if not config.is_file():
        return []
    train = ("train the best one again", f"trainwright train {shlex.quote(str(config))}")
    if result.best is None or not result.best.run_id:
        return [train]
    run = shlex.quote(str(folder.parent / result.best.run_id))
    return [train, ("predict with it", f"trainwright predict {run} rows.csv")]


def _markup(chart: str | None) -> Markup | None:
    return None if chart is None else Markup(chart)


def _value(trial: LoggedTrial) -> float | None:
    return trial.ending.value if trial.ending else None


def _figures(trials: Sequence[LoggedTrial], result: TuningResult, name: str) -> list[dict[str, str]]:
    ended = [trial.ending for trial in trials if trial.ending]
    counts = {status: sum(end.status == status for end in ended) for status in ("pruned", "failed")}
    more = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    figures = []
    if (best := result.best) is not None:
        figures.append(
            {
                "kind": "metric",
                "name": f"{name}, best",
                "value": number(best.value),
                "note": f"trial {best.trial}",
            }
        )
        note = "only the best model is tested"
        figures += [
            {"kind": "metric", "name": metric_title(one), "value": number(value), "note": note}
            for one, value in best.metrics.items()
            if one != "test_loss"
        ]
    figures.append({"kind": "cost", "name": "trials", "value": str(len(ended)), "note": more})
    seconds = sum(trial.ending.seconds for trial in trials if trial.ending and trial.same_as is None)
    figures.append({"kind": "cost", "name": "training time", "value": duration(seconds), "note": ""})
    return figures


def _history(trials: Sequence[LoggedTrial], name: str, mode: str) -> str:
    """Draw the value of each trial, and the best one so far."""
    best = (np.fmin if mode == "min" else np.fmax).accumulate([_number(trial) for trial in trials])
    points = [_point(trial, float(trial.number)) for trial in trials]
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
    rows = [Bar(key, value) for key, value in importance.items()]
    return bars(rows, "Importance of each parameter", "share of the variance")


def _slices(trials: Sequence[LoggedTrial], name: str) -> list[str]:
    """Draw the metric over each parameter."""
    keys = _keys(trials)
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
        groups.setdefault(_text(value, null="null"), []).append(_number(trial))
    groups = {one: groups[one] for one in sorted(groups, key=natural)}
    rows = [Spread(value, scores, float(np.mean(scores)), kind="other") for value, scores in groups.items()]
    return dot_plot(rows, title, f"{name}, by {key}", width=420)


def _curves(trials: Sequence[LoggedTrial], result: TuningResult, name: str) -> str:
    """Draw the metric over the steps of the best trial and the last ones."""
    best = None if result.best is None else result.best.trial
    shown = [one for one in trials if one.ending and len(one.ending.curve) > 1 and one.same_as is None]
    shown = [one for one in shown if one.number == best] + [one for one in shown if one.number != best][
        -_MOST_CURVES:
    ]
    curves = [
        tuning_charts.Curve(
            trial.ending.curve,
            "best" if trial.number == best else trial.ending.status,
            f"{_label(trial)}, {trial.ending.status}",
        )
        for trial in shown
        if trial.ending
    ]
    return (
        tuning_charts.learning_curves(curves, f"{name} of each trial over its steps", name) if curves else ""
    )


def _keys(trials: Sequence[LoggedTrial]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in trial.params))


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key, where it tells it apart from the others."""
    last = {key: key.rpartition(".")[2] for key in keys}
    return {key: name if list(last.values()).count(name) == 1 else key for key, name in last.items()}


def _parallel(trials: Sequence[LoggedTrial], name: str, mode: str) -> str | None:
    """Draw the parameters and the value of the best trials."""
    keys = _keys(trials)
    if len(trials) < 2 or not 1 <= len(keys) <= _MOST_AXES:
        return None
    sign = 1.0 if mode == "min" else -1.0
    kept = sorted(trials, key=lambda trial: sign * _number(trial))[:_MOST_LINES]
    names = _short_names(keys)
    columns = [tuning_charts.axis(names[key], [_param(trial, key) for trial in kept]) for key in keys]
    values = np.array([_number(trial) for trial in kept])
    columns.append(tuning_charts.axis(name, values.tolist()))
    ranks, _ = tuning_charts.shade_of(values, mode)
    return tuning_charts.parallel(columns, ranks, [_label(one) for one in kept], f"Parameters and {name}")


def _param(trial: LoggedTrial, key: str) -> Any:
    """Return a parameter as axes show it; None for a trial without it, for which they have a gap."""
    return "null" if trial.params.get(key, 0) is None else trial.params.get(key)


def _contour(trials: Sequence[LoggedTrial], result: TuningResult, name: str, mode: str) -> str | None:
    """Draw the metric over the two most important parameters."""
    keys = [key for key in result.importance if any(key in trial.params for trial in trials)][:2]
    if len(keys) < 2:
        return None
    names = _short_names(keys)
    first, second = (tuning_charts.axis(names[key], [_param(trial, key) for trial in trials]) for key in keys)
    _, goodness = tuning_charts.shade_of(np.array([_number(trial) for trial in trials]), mode)
    title = f"{name} over {first.name} and {second.name}"
    return tuning_charts.contour(first, second, goodness, [_label(trial) for trial in trials], title)


def _timeline(folder: Path, trials: Sequence[LoggedTrial]) -> dict[str, Any] | None:
    """Return the chart of when trials were trained, with the share of idle time."""
    spans = [
        tuning_charts.Span(
            attempt.started,
            attempt.ended,
            status_of(trial, folder),
            f"{_label(trial)}, {duration(attempt.ended - attempt.started)}",
        )
        for trial in trials
        if trial.run_id and trial.same_as is None
        for attempt in RunDir(folder.parent / trial.run_id).attempts()
        if attempt.ended is not None and not _is_end_of_pause(trial, attempt)
    ]
    if not spans:
        return None
    return {
        "chart": Markup(tuning_charts.timeline(spans, "When the workers trained which trial")),
        "workers": len(tuning_charts.lanes(spans)),
        "kinds": [
            kind for kind in ("completed", "pruned", "failed") if any(one.kind == kind for one in spans)
        ],
        "idle": f"{tuning_charts.idle_share(spans):.0%}",
    }


def _is_end_of_pause(trial: LoggedTrial, attempt: AttemptRecord) -> bool:
    """Return whether an attempt only ended a trial that was paused at a rung: it trained nothing."""
    last = trial.stints[-1].ending if trial.stints else None
    return attempt.status == "pruned" and last is not None and last.status == "paused"


def _front(trials: Sequence[LoggedTrial], result: TuningResult) -> dict[str, Any] | None:
    """Return the chart of the Pareto front by the first two metrics, and what it leaves out."""
    metrics = list(result.metrics)
    if len(metrics) < 2:
        return None
    front = set(result.front or ())
    points = []
    for trial in trials:
        values = (trial.ending.values if trial.ending else None) or {}
        if all(name in values for name in metrics):
            kind = "front" if trial.number in front else "other" if _keeps(values, result) else "broken"
            words = ", ".join(f"{metric_title(name)} {number(values[name])}" for name in metrics)
            point = (values[metrics[0]], values[metrics[1]])
            points.append(tuning_charts.Candidate(*point, kind, f"trial {trial.number}: {words}"))
    if not points:
        return None
    labels = (metric_title(metrics[0]), metric_title(metrics[1]))
    modes = ", ".join(f"{metric_title(name)} ({mode})" for name, mode in result.metrics.items())
    return {
        "chart": Markup(tuning_charts.front_plot(points, labels, f"{labels[0]} against {labels[1]}")),
        "count": len(front),
        "metrics": modes,
        "constraints": result.constraints,
    }


def _keeps(values: Mapping[str, float], result: TuningResult) -> bool:
    """Return whether values keep the constraints of a result, written as `parameters <= 1000`."""
    for constraint in result.constraints:
        name, sign, bound = constraint.split()
        value = values.get(name, math.nan)
        if not (value <= float(bound) if sign == "<=" else value >= float(bound)):
            return False
    return True


def _table(folder: Path, trials: Sequence[LoggedTrial], name: str, mode: str) -> dict[str, Any]:
    keys, more = _keys(trials), _measured(trials, name)
    sign = -1.0 if mode == "max" else 1.0
    ordered = sorted(
        trials, key=lambda one: (math.inf if (v := _value(one)) is None else sign * v, one.number)
    )
    rows = [
        (
            trial.run_id,
            [
                str(trial.number),
                status_of(trial, folder),
                "" if (value := _value(trial)) is None else number(value),
                *(_text(((trial.ending.values if trial.ending else None) or {}).get(one)) for one in more),
                *(_text(trial.params[key], null="null") if key in trial.params else "" for key in keys),
                (trial.ending.error or "") if trial.ending else "",
            ],
        )
        for trial in ordered[:_MOST_ROWS]
    ]
    runs = {run_id for run_id, _ in rows if run_id}
    pages = {run_id for run_id in runs if (folder.parent / run_id / "report.html").exists()}
    head = ["trial", "status", name, *map(metric_title, more), *keys, ""]
    return {"head": head, "rows": rows, "pages": pages, "are_without_page": pages != runs}


def _measured(trials: Sequence[LoggedTrial], name: str) -> list[str]:
    """Return the other metrics and the measures that trials have."""
    values = [trial.ending.values or {} for trial in trials if trial.ending]
    return [one for one in dict.fromkeys(key for each in values for key in each) if metric_title(one) != name]


def _text(value: Any, null: str = "") -> str:
    return null if value is None else number(value) if isinstance(value, float) else str(value)


def _brackets(trials: Sequence[LoggedTrial], result: TuningResult, mode: str) -> dict[str, Any] | None:
    """Return the table of the brackets; None for a study without, or before its end."""
    brackets = [one for one in result.brackets if one.first < len(trials)]  # those that began
    if not brackets:
        return None
    rows = [_bracket_row(index, one, trials, mode) for index, one in enumerate(brackets[:_MOST_BRACKETS])]
    return {"unit": result.unit, "rows": rows, "more": len(brackets) - len(rows)}


def _bracket_row(index: int, bracket: BracketSizes, trials: Sequence[LoggedTrial], mode: str) -> list[str]:
    sizes, resources = bracket.sizes, bracket.resources
    members = trials[bracket.first : bracket.first + sizes[0]]
    reached = [sum(len(trial.stints) > rung for trial in members) for rung in range(len(sizes))]
    rungs = " → ".join(f"{count} to {length}" for count, length in zip(reached, resources, strict=True))
    valued = [
        (trial.ending.value, trial.number)
        for trial in members
        if trial.ending is not None and trial.ending.value is not None
    ]
    if not valued:
        return [str(index + 1), rungs, "", ""]
    best = min(valued) if mode == "min" else max(valued, key=lambda one: (one[0], -one[1]))
    return [str(index + 1), rungs, number(best[0]), str(best[1])]
