"""Make the pages and tables of studies from their folders, complete even if the study is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trainwright.errors import CheckpointError
from trainwright.numerals import number
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord, StudyRun, study_problems
from trainwright.records.study_results import (
    BenchmarkResult,
    CrossValidationResult,
    FoldResult,
    MetricSpread,
    ModelRow,
)
from trainwright.records.tuning_result import TuningResult, metrics_of
from trainwright.reports import charts, tuning
from trainwright.reports.history import title as metric_title
from trainwright.reports.rundir import Json, numbers, part
from trainwright.reports.scales import duration
from trainwright.reports.study_charts import Point, Spread, dot_plot, trade_off
from trainwright.reports.templates import style, template, write_page

Rows = list[list[str]]
Section = dict[str, Any]
_TEMPLATE = "study.html.j2"
_ALPHA = 0.05


def write_report(folder: Path) -> Path:
    """Write `report.html` into a study's folder, and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / "report.html"
    write_page(path, _rendered(folder))
    return path


def link_from_study(run_dir: Path) -> None:
    """Rewrite the report of the search that a run is a trial of, if any, so that it links to the run's page.

    The pages of other studies link to all of their runs.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        manifest = RunDir(run_dir).manifest()
    except CheckpointError:  # which the run's own page says
        return
    parent = manifest.parent if manifest else None
    if parent is None or parent.relation != "tune":
        return
    if (run_dir.parent / parent.run_id / StudyRecord.FILE).exists():
        write_report(run_dir.parent / parent.run_id)


def _rendered(folder: Path) -> str:
    record, result = _record(folder), _read(folder, StudyRecord.RESULT)
    kind, state = (record.kind, record.status) if record else ("", "unknown")
    ended = result if state in ("completed", "failed") else {}
    made: Section = dict.fromkeys(("picture", "summary", "detail", "trade_off", "pooled")) | {
        "figures": [],
        "notes": [],
    }
    made |= dict.fromkeys(("importance", "slices", "curves", "trials"))
    made |= dict.fromkeys(
        ("parallel", "contour", "timeline", "front", "brackets", "asked", "commands", "pruned")
    )
    if kind == "tune" and record is not None:
        found = TuningResult.undamaged(result)
        made |= tuning.section(folder, found, *_tuned(folder, record, found))
    elif kind == "benchmark" and (compared := BenchmarkResult.undamaged(ended)).models:
        made |= _benchmark(compared)
    elif kind == "cv" and (validated := CrossValidationResult.undamaged(ended)).folds:
        made |= _cross_validation(folder, validated)
    return template(_TEMPLATE).render(
        **made,
        style=style(),
        kind={"cv": "Cross-validation", "benchmark": "Benchmark", "tune": "Tuning"}.get(kind, "Study"),
        study_id=folder.name,
        experiment=record.experiment if record else folder.parent.name,
        status=state,
        error="; ".join([*([record.error] if record and record.error else []), *study_problems(folder)]),
        runs=[(_trial_name(run), run.run_id) for run in record.runs] if record else [],
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _tuned(folder: Path, record: StudyRecord, result: TuningResult) -> tuple[str, str]:
    """Return the metric of a tuning study, and its mode, as far as its files are whole."""
    if first := next(iter(metrics_of(folder).items()), None):
        return first
    asked = part(record.question, "tuning")
    named = asked.get("metric", "val_loss")
    metric = str(named[0] if isinstance(named, list) and named else named)
    mode = str(result.mode or asked.get("mode"))
    return metric, mode if mode in ("min", "max") else "min" if metric.endswith("loss") else "max"


def _record(folder: Path) -> StudyRecord | None:
    """Return the record of a study; None if it is missing or damaged."""
    try:
        return StudyRecord.load(folder / StudyRecord.FILE)
    except CheckpointError:
        return None


def _read(folder: Path, name: str) -> Json:
    """Return the content of a file of a study that is not a record; empty if it is missing or damaged."""
    try:
        return RunDir(folder).read_json(name)
    except CheckpointError:
        return {}


def _trial_name(run: StudyRun) -> str:
    return ", ".join(f"{name} {value}" for name, value in run.label.items())


def _figure(name: str, value: str, note: str = "", kind: str = "metric") -> dict[str, str]:
    return {"kind": kind, "name": name, "value": value, "note": note}


def _number(value: Any) -> str:
    values = numbers({"value": value})
    return number(values["value"]) if values else ""


# -- cross-validation

METRICS_HEAD = ["metric", "mean", "std", "95% interval"]


def _cross_validation(folder: Path, result: CrossValidationResult) -> Section:
    metrics, folds = result.metrics, result.folds
    figures = [
        _figure(metric_title(name), number(spread.mean), f"± {number(spread.std)}")
        for name, spread in metrics.items()
    ]
    figures = sorted(figures, key=lambda figure: figure["name"].endswith("loss"))[:4]
    figures.append(_figure("folds", str(len(folds)), f"{number(result.rows)} rows", "cost"))
    figures.append(_figure("training time", duration(result.train_seconds), "", "cost"))
    return {
        "asked": f"The model was trained {len(folds)} times, each time without the fold that then tested it.",
        "figures": figures,
        "picture": Markup(_fold_chart(metrics, folds)) if metrics else None,
        "summary": (METRICS_HEAD, [[metric_title(name), *rest] for name, *rest in metric_rows(metrics)]),
        "detail": _fold_rows(folds),
        "pooled": _pooled(_read(folder, "out_of_fold.json")),
    }


def metric_rows(metrics: Mapping[str, MetricSpread]) -> Rows:
    """Return a row for each metric of a cross-validation: name, mean, standard deviation, 95% interval."""
    return [
        [name, number(one.mean), number(one.std), f"{number(one.low)} to {number(one.high)}"]
        for name, one in metrics.items()
    ]


def _fold_chart(metrics: Mapping[str, MetricSpread], folds: Sequence[FoldResult]) -> str:
    name = next((name for name in metrics if not name.endswith("_loss")), next(iter(metrics)))
    each, summary = [fold.metrics.get(name, math.nan) for fold in folds], metrics[name]
    rows = [
        Spread(f"fold {fold.fold}", [], value, kind="other") for fold, value in zip(folds, each, strict=True)
    ]
    rows.append(Spread("mean", each, summary.mean, summary.low, summary.high))
    return dot_plot(
        rows, f"{metric_title(name)} of each fold, and the 95% interval of the mean", metric_title(name)
    )


def _fold_rows(folds: Sequence[FoldResult]) -> Section:
    names = list(folds[0].metrics) if folds else []
    head = ["fold", "train", "val", "test", *map(metric_title, names), "time"]
    rows = []
    for fold in folds:
        counts = [number(fold.rows.get(split) or 0) for split in ("train", "val", "test")]
        values = [_number(fold.metrics.get(name)) for name in names]
        rows.append((fold.run_id, [str(fold.fold), *counts, *values, duration(fold.train_seconds)]))
    return {"head": head, "rows": rows}


def _pooled(tables: Json) -> Section | None:
    """Return the chart of all rows, each predicted by the model that was not trained on it."""
    confusion, points = part(tables, "confusion"), part(tables, "scatter")
    if confusion:
        chart = charts.heat_map(
            confusion["labels"], confusion["matrix"], "Confusion matrix, out-of-fold predictions"
        )
    elif points:
        target = str(tables.get("target", "value"))
        chart = charts.scatter(
            points["true"], points["predicted"], f"Predicted against true {target}, out of fold", target
        )
    else:
        return None
    return {
        "chart": Markup(chart),
        "rows": number(tables.get("rows", 0)),
        "classes": bool(confusion),
        "broad": len(confusion.get("labels", ())) > 12,
    }


def cross_validation_table(folder: Path) -> str:
    """Return the metrics of a cross-validation as an HTML table, for notebooks."""
    result = CrossValidationResult.undamaged(_read(folder, StudyRecord.RESULT))
    return html_table(METRICS_HEAD, metric_rows(result.metrics))


# -- benchmark

BENCHMARK_HEAD = [
    "rank",
    "model",
    "metric",
    "mean",
    "std",
    "p (Holm)",
    "train s",
    "size KiB",
    "1 row ms",
    "rows/s",
]


def benchmark_rows(models: Sequence[ModelRow]) -> Rows:
    """Return a row for each model of a benchmark; for one that failed, most cells are empty."""
    return [_benchmark_row(model) for model in models]


def _benchmark_row(model: ModelRow) -> list[str]:
    if model.error:
        return ["", model.model, "failed", *[""] * (len(BENCHMARK_HEAD) - 3)]
    p_value = _number(model.p_adjusted) or ("best" if model.rank == 1 else "none")
    cost = [
        round(_known(model.train_seconds), 3),
        _known(model.model_bytes) / 1024,
        model.one_row_ms,
        model.rows_per_second and round(model.rows_per_second),
    ]
    named = [str(model.rank), model.model, str(model.metric)]
    return [*named, _number(model.mean), _number(model.std), p_value, *map(_number, cost)]


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _benchmark(result: BenchmarkResult) -> Section:
    models = result.models
    ranked = [model for model in models if model.rank]
    made: Section = {"summary": _shown_columns(models), "detail": None}
    if ranked:
        made["asked"] = _compared(result, models, ranked)
        made["figures"] = _benchmark_figures(result, ranked)
        made["picture"] = Markup(_benchmark_chart(ranked))
        made["trade_off"] = Markup(_trade_off(ranked))
    made["notes"] = [
        f"{model.model}: not tested against the best: {model.untested}" for model in ranked if model.untested
    ]
    made["notes"] += [f"{model.model}: {model.error}" for model in models if model.error]
    return made


def _shown_columns(models: Sequence[ModelRow]) -> tuple[list[str], Rows]:
    """Return the table for the page: without what is empty, or the same for all, so that it is narrow."""
    rows, head = benchmark_rows(models), [*BENCHMARK_HEAD]
    at, mean = head.index("metric"), head.index("mean")
    names = {str(model.metric) for model in models if not model.error}
    if len(names) == 1:
        head[mean] = f"{'mean ' if any(row[mean + 1] for row in rows) else ''}{metric_title(names.pop())}"
        for row, model in zip(rows, models, strict=True):
            row[mean], row[at] = row[at] if model.error else row[mean], ""
    kept = [index for index in range(len(head)) if any(row[index] for row in rows)]
    return [head[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _compared(result: BenchmarkResult, models: Sequence[ModelRow], ranked: Sequence[ModelRow]) -> str:
    """Return what was compared, and which model came out best, in sentences."""
    folds, metric = result.folds, metric_title(ranked[0].metric or "")
    rows = f"over {folds} folds" if folds else "on the same rows"
    best = [model.model for model in ranked if model.rank == 1]
    has = f"{' and '.join(best)} {'have' if len(best) > 1 else 'has'} the best, {_number(ranked[0].mean)}"
    return f"{len(models)} models were compared by their {metric} {rows}. {has}.{_simpler(ranked)}"


def _simpler(ranked: Sequence[ModelRow]) -> str:
    """Return a sentence that names a smaller model which is as good as the best; empty without one."""
    alike = [model for model in ranked[1:] if model.p_adjusted is not None and model.p_adjusted >= _ALPHA]
    if not alike:
        return ""
    smallest = min(alike, key=lambda model: _known(model.model_bytes))
    if not _known(smallest.model_bytes) < _known(ranked[0].model_bytes):
        return ""
    return f" Use the simpler one: {smallest.model} is smaller, and as good within the noise."


def _benchmark_figures(result: BenchmarkResult, ranked: Sequence[ModelRow]) -> list[dict[str, str]]:
    best, others = ranked[0], sum(model.rank == 1 for model in ranked[1:])
    named = f"{best.model} and {others} more" if others else best.model
    beaten = sum(model.p_adjusted is not None and model.p_adjusted < _ALPHA for model in ranked[1:])
    folds = result.folds
    std = f"± {_number(best.std)}" if best.std is not None else ""
    return [
        _figure(f"{metric_title(best.metric or '')} of {named}, the best", _number(best.mean), std),
        _figure(
            "models worse than the best by more than chance",
            f"{beaten} of {len(ranked) - 1}",
            "p < 0.05, Holm's method over all pairs",
            "cost",
        ),
        _figure("folds" if folds else "test split, without folds", str(folds or 1), "", "cost"),
    ]


def _benchmark_chart(ranked: Sequence[ModelRow]) -> str:
    metric, rows = metric_title(ranked[0].metric or ""), []
    for model in ranked:
        mean, std = _known(model.mean), _known(model.std)
        values = model.values if len(model.values) > 1 else []
        kind = "val" if model.rank == 1 else "other"
        rows.append(Spread(model.model, values, mean, mean - std, mean + std, kind))
    spread = ", with the standard deviation over the folds" if len(ranked[0].values) > 1 else ""
    return dot_plot(rows, f"{metric} of each model{spread}", metric)


def _trade_off(ranked: Sequence[ModelRow]) -> str:
    metric, points = metric_title(ranked[0].metric or ""), []
    for model in ranked:
        kind = "val" if model.rank == 1 else "other"
        points.append(Point(model.model, _known(model.train_seconds), _known(model.mean), kind))
    return trade_off(points, f"Training time and {metric}", ("seconds of training", metric))


def markdown_table(models: Sequence[ModelRow]) -> str:
    """Return the table of a benchmark as Markdown."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in benchmark_rows(models)]
    lines = [BENCHMARK_HEAD, ["---"] * len(BENCHMARK_HEAD), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def benchmark_table(folder: Path) -> str:
    """Return the table of a benchmark as HTML, for notebooks."""
    result = BenchmarkResult.undamaged(_read(folder, StudyRecord.RESULT))
    return html_table(BENCHMARK_HEAD, benchmark_rows(result.models))


def html_table(head: Sequence[str], rows: Rows) -> str:
    """Return a plain HTML table."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"
