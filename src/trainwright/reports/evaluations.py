"""Make the tables of the splits that a run was evaluated on: metrics, classes, and the greatest errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from markupsafe import Markup

from trainwright.numerals import number
from trainwright.plugins import adapters
from trainwright.redact import redacted
from trainwright.reports import charts, figures, history
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.tasks.support.positive import in_words

Section = dict[str, Any]
_OF_MORE = re.compile(r"; (macro average )?of 3 or more.*")  # what a metric is of more than two classes
_RATIOS = (1, 2, 5, 10, 50)  # how many times as much as a false alarm a missed row costs

MAX_CLASSES = 60  # rows of the table of classes; with more, the worst are shown


def section(run: RunFiles) -> list[Section]:
    """Return the tables of each split that was evaluated, the test split first."""
    order = [split for split in ("test", "val", "train") if split in run.evaluations]
    return [_evaluation(split, run.evaluations[split], first=split == order[0]) for split in order]


def unevaluated(run: RunFiles) -> str:
    """Return why a run that another trainer made has no tables of its evaluation, and what to do for them."""
    trainer = run.manifest.trainer if run.manifest else None
    if trainer is None or run.evaluations:
        return ""
    why = (
        f"The Trainer of {trainer.name} gives its callbacks the metrics of an evaluation, but neither rows "
        "nor predictions, so there are no tables of them."
    )
    if any(name.startswith(("val_", "test_")) for name in (*run.metrics, *run.history.curves)):
        return f"{why} Any metric that its evaluation computes (compute_metrics, self.log) is drawn above."
    way = "give it evaluation data (eval_dataset and eval_strategy, or val_dataloaders)"
    return f"{why} It made no evaluation: {way}."


def _evaluation(split: str, tables: Json, *, first: bool) -> Section:
    name = {"test": "Test", "val": "Validation", "train": "Training"}[split]
    made: Section = {
        "name": name,
        "positive": _positive(tables) if first else "",
        "worst_head": [],
        "worst_note": "",
        "rows": number(tables.get("rows", 0)),
        "metrics": [
            (
                history.title(metric),
                number(value),
                interval_in_words(tables, metric),
                _meaning(tables, metric) if first else "",
            )
            for metric, value in numbers(part(tables, "metrics")).items()
        ],
        "has_intervals": bool(part(tables, "intervals")),
        "methods": _methods(tables),
        "sample": bool(tables.get("sample")),
        "confusion": None,
        "broad": False,
        "scatter": None,
        "figures": [],
        "costs": None,
        "classes": None,
        "more_classes": 0,
        "worst": [],
    }
    confusion, points = part(tables, "confusion"), part(tables, "scatter")
    if confusion:
        chart = charts.heat_map(
            confusion["labels"], confusion["matrix"], f"Confusion matrix, {name.lower()} split"
        )
        made |= {"confusion": Markup(chart), "broad": len(confusion["labels"]) > 16}
    if points:
        target = str(tables.get("target", "value"))
        title = f"Predicted against true {target}, {name.lower()} split"
        made["scatter"] = Markup(charts.scatter(points["true"], points["predicted"], title, target))
    if first:  # showing them for one split is enough
        made["figures"] = [figures.drawn(one) for one in (tables.get("figures") or [])[: figures.MAX_FIGURES]]
        made["costs"] = _costs(tables)
        rows = tables.get("per_class") or []
        shown = rows if len(rows) <= MAX_CLASSES else sorted(rows, key=lambda row: row["f1"])[:MAX_CLASSES]
        made |= {"classes": [_class_row(row) for row in shown], "more_classes": len(rows) - len(shown)}
        made["worst"] = [_worst_row(row) for row in (tables.get("worst") or [])[:8]]
        made["worst_head"], made["worst_note"] = _worst_names(tables)
    return made


def interval_of(tables: Json, metric: str) -> tuple[float, float] | None:
    """Return the 95% interval of a metric; None if it has none."""
    ends = numbers(part(tables, "intervals", metric))
    return (ends["low"], ends["high"]) if ends.keys() >= {"low", "high"} else None


def interval_in_words(tables: Json, metric: str) -> str:
    """Return the 95% interval of a metric; empty if it has none."""
    ends = interval_of(tables, metric)
    return "" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def _methods(tables: Json) -> str:
    """Return in words how the intervals of an evaluation were made."""
    by_method: dict[str, list[str]] = {}
    for metric, one in part(tables, "intervals").items():
        by_method.setdefault(str(one.get("method")), []).append(metric.partition("_")[2])
    said = {
        "Wilson": "Wilson's for shares of rows",
        "normal": "the normal one for other means",
        "bootstrap": "the bootstrap (200 resamples, seeded)",
    }
    return "; ".join(f"{said.get(how, how)} ({', '.join(names)})" for how, names in by_method.items())


def _meaning(tables: Json, metric: str) -> str:
    """Return what a metric measures, and which way is better; nothing for one of the user's own."""
    bare = metric.partition("_")[2]
    if bare == "loss":
        return "what the training lowers; less is better"
    task = next((task for name, task in adapters("task") if name == tables.get("task")), None)
    known = task.metrics.get(bare) if task else None
    if known is None or not known.mode:
        return ""
    words = known.description if tables.get("positive") is None else _OF_MORE.sub("", known.description)
    return f"{words}; {'less' if known.mode == 'min' else 'more'} is better"


def _class_row(row: Json) -> Section:
    scores = [f"{row[name]:.3f}" for name in ("precision", "recall", "f1")]
    return {
        "label": row["label"],
        "rows": number(row["support"]),
        "scores": scores,
        "bar": f"{100 * row['f1']:.1f}%",
    }


def _worst_row(row: Json) -> list[str]:
    """Return the cells: the row's position and identifier in the user's own file first."""
    last = f"{row['probability']:.3f}" if "probability" in row else number(row["error"])
    where = number(row["number"] if "number" in row else row["row"])
    own = [str(row["id"])] if "id" in row else []
    return [where, *own, _as_given(row["true"]), number(row["predicted"]), last]


def _as_given(value: Any) -> str:
    """Return a target for people: a whole number without decimals, as it is in most files."""
    return number(int(value) if isinstance(value, float) and value.is_integer() else value)


def _worst_names(tables: Json) -> tuple[list[str], str]:
    """Return the head of the table of the greatest errors, and what its rows count."""
    rows, origin = tables.get("worst") or [{}], part(tables, "origin")
    own = [str(origin.get("id", "id"))] if "id" in rows[0] else []
    file = origin.get("file")
    if "number" in rows[0]:
        note = f"Rows count from 1{f' in {redacted(str(file))}' if file else ''}, without the header."
    else:
        note = "Rows count from 0 within the split."
    return ["row", *own], note


def _costs(tables: Json) -> Section | None:
    """Return the rows of the table, and what a script needs for other costs; None without two classes."""
    table = part(tables, "thresholds")
    if not table:
        return None
    values = {name: np.array(table[name], np.float64) for name in ("threshold", "tp", "fp")}
    positive, negative = float(table["positive"]), float(table["negative"])
    missed = positive - values["tp"]
    rows = []
    for ratio in _RATIOS:
        best = int(np.argmin(ratio * missed + values["fp"]))
        rows.append(
            {
                "ratio": str(ratio),
                "threshold": _threshold(float(values["threshold"][best])),
                "found": f"{_whole(values['tp'][best])} of {_whole(positive)}",
                "alarms": f"{_whole(values['fp'][best])} of {_whole(negative)}",
            }
        )
    return {
        "name": str(table["name"]),
        "rows": rows,
        "points": ";".join(
            f"{threshold:.6g},{hits:.6g},{alarms:.6g}"
            for threshold, hits, alarms in zip(*values.values(), strict=True)
        ),
        "positive": f"{positive:.6g}",
        "negative": f"{negative:.6g}",
    }


def _threshold(value: float) -> str:
    return "none" if value > 1 else f"{value:.3f}"


def _whole(value: float) -> str:
    return number(int(value) if float(value).is_integer() else float(value))


def _positive(tables: Json) -> str:
    """Return the positive one of two classes, and why it is that one."""
    if tables.get("positive") is None:
        return ""
    return in_words(tables["positive"], str(tables.get("positive_reason", "")))
