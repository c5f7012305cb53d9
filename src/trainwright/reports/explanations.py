"""Make the section of the page that explains the model, from `evaluation/explanation.json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from markupsafe import Markup

from trainwright.numerals import number
from trainwright.plugins import task_of
from trainwright.records.document import parse_json
from trainwright.reports.explanation_charts import (
    KINDS,
    SHADES,
    Bar,
    Curve,
    Dependence,
    Dots,
    bars,
    dependence,
    mark,
    shade,
    swarm,
)
from trainwright.reports.rundir import Json, RunFiles
from trainwright.safe_files import read_regular
from trainwright.tasks.base import Task

Section = dict[str, Any]

FILE = "explanation.json"
MAX_BARS = 15
MAX_KINDS = 4  # of the library's own measures
_SPLITS = {"test": "test", "val": "validation", "train": "training"}
_UNITS = {
    "probability": "probability",
    "log-odds": "log-odds",
    "score": "score before softmax",
    "log of the value": "log of",
}


def section(run: RunFiles) -> Section | None:
    """Return the section for the template; None if the run was not explained.

    Raises:
        ValueError: The file is damaged.
    """
    path = run.folder / "evaluation" / FILE
    try:
        explanation = parse_json(read_regular(path, depth=2))
    except FileNotFoundError:
        return None
    if explanation.get("version") != 1:
        raise ValueError(f"this version cannot show {FILE}")
    return {
        "split": _SPLITS[explanation["split"]],
        "rows": number(explanation["rows"]),
        "notes": [str(note) for note in explanation["notes"]],
        "bars": [*_permutation(explanation), *_shap(explanation)],
        "outputs": _by_output(explanation),
        "swarms": _swarms(explanation),
        "shades": [Markup(shade(level)) for level in range(SHADES)],
        "curves": _curves(explanation),
        "library": _library(explanation),
    }


def ranking(explanation: Json) -> list[tuple[str, float | None, float | None]]:
    """Return name, permutation importance and mean |SHAP| of each column, in the order of the first."""
    shuffled = {
        row["name"]: float(row["mean"]) for row in (explanation["permutation"] or {}).get("features", [])
    }
    shap = {row["name"]: float(row["mean"]) for row in (explanation["shap"] or {}).get("features", [])}
    return [(name, shuffled.get(name), shap.get(name)) for name in shuffled or shap]


def _figure(title: str, chart: str, caption: str) -> Section:
    return {"title": title, "chart": Markup(chart), "caption": caption, "legend": []}


def _permutation(explanation: Json) -> Iterator[Section]:
    if not (made := explanation["permutation"]):
        return
    metric, what = str(made["metric"]).replace("_", " "), "drop" if made["mode"] == "max" else "rise"
    rows = [Bar(row["name"], float(row["mean"]), float(row["std"])) for row in made["features"][:MAX_BARS]]
    caption = (
        f"How much worse the {metric} gets when a column is shuffled among the rows: "
        f"mean of {made['repeats']} times, and the standard deviation. "
        f"Unshuffled it is {number(float(made['baseline']))}.{_more(explanation)}"
    )
    yield _figure(
        "Permutation importance", bars(rows, "Permutation importance", f"{what} of {metric}"), caption
    )


def _more(explanation: Json) -> str:
    return (
        f" The first {MAX_BARS} of {number(explanation['columns'])} columns."
        if explanation["columns"] > MAX_BARS
        else ""
    )


def _shap(explanation: Json) -> Iterator[Section]:
    if not (made := explanation["shap"]):
        return
    unit = _unit(made, explanation)
    rows = [Bar(row["name"], float(row["mean"])) for row in made["features"][:MAX_BARS]]
    several = f", and over the {_task(explanation).noun}"
    how = (
        "exact for these trees"
        if made["explainer"] == "tree"
        else f"sampled against {made['background']} rows"
    )
    caption = (
        f"By how much a column moves the {unit} on average over {made['rows']} rows"
        f"{several if len(made['outputs']) > 1 else ''}; SHAP values, {how}.{_more(explanation)}"
    )
    yield _figure("Mean |SHAP|", bars(rows, "Mean |SHAP|", f"mean |SHAP|: {unit}"), caption)


def _task(explanation: Json) -> type[Task]:
    return task_of(explanation["task"])


def _unit(shap: Json, explanation: Json) -> str:
    """Return the quantity that the SHAP values add up to."""
    outputs = shap["outputs"]
    unit = _UNITS.get(shap["unit"], "")
    if not _task(explanation).gives_probabilities:
        return f"{unit} {outputs[0]}".strip() if len(outputs) == 1 else f"{unit} value".strip()
    return f"{unit} of {outputs[0]}" if len(outputs) == 1 else unit


def _by_output(explanation: Json) -> Section | None:
    """Return mean |SHAP| of each output as a table; None if there is only one."""
    shap = explanation["shap"] or {}
    if len(shap.get("outputs", ())) < 2:
        return None
    rows = [
        (row["name"], [float(value) for value in row["by_output"]]) for row in shap["features"][:MAX_BARS]
    ]
    most = max((value for _, values in rows for value in values), default=0.0) or 1.0
    return {
        "names": [str(name) for name in shap["outputs"]],
        "unit": _unit(shap, explanation),
        "rows": [
            (name, [(number(value), f"{50 * value / most:.0f}%") for value in values])
            for name, values in rows
        ],
    }


def _swarms(explanation: Json) -> list[Section]:
    shap = explanation["shap"] or {}
    single = len(shap.get("outputs", ())) == 1
    made = []
    for entry in shap.get("swarms", []):
        title = "SHAP values" if single else f"SHAP values: {entry['output']}"
        rows = [_dots(row) for row in entry["features"]]
        made.append(_figure(title, swarm(rows, title, f"adds to the {_unit(shap, explanation)}"), ""))
    return made


def _dots(row: Json) -> Dots:
    ranks = row["rank"] if row["rank"] is not None else [None] * len(row["shap"])
    return Dots(
        row["name"],
        np.array(row["shap"], np.float64),
        np.array([np.nan if rank is None else rank for rank in ranks], np.float64),
        None if row["correlation"] is None else float(row["correlation"]),
    )


def _curves(explanation: Json) -> Section | None:
    """Return the charts of partial dependence, all with the same axis so that they can be compared."""
    shown = [_dependence(row) for row in explanation["dependence"]]
    if not shown:
        return None
    names, classes = shown[0].outputs, _task(explanation).gives_probabilities
    several = len(names) > 1
    drawn = [part for one in shown for curve in one.curves for part in ([curve.mean] if several else curve)]
    span = float(min(part.min() for part in drawn)), float(max(part.max() for part in drawn))
    what = (
        ("The probability" if classes else "The predicted value") if several else f"The predicted {names[0]}"
    )
    what = f"The probability of {names[0]}" if classes and not several else what
    band = "" if several else "; the band holds the curves of 80% of the rows, each moved to the same mean"
    return {
        "figures": [_figure(one.name, dependence(one, span, what.removeprefix("The ")), "") for one in shown],
        "caption": f"{what}, on average over the rows, if a column had the same value in all of them{band}.",
        "legend": [(Markup(mark(kind)), name) for kind, name in zip(KINDS, names, strict=False)]
        if several
        else [],
    }


def _dependence(row: Json) -> Dependence:
    curves = [Curve(*(np.array(line[part], np.float64) for part in Curve._fields)) for line in row["outputs"]]
    outputs = [str(line["name"]) for line in row["outputs"]]
    return Dependence(str(row["name"]), row["grid"], row["kind"] == "category", curves, outputs)


def _library(explanation: Json) -> list[Section]:
    made = []
    for measure in explanation["importance"][:MAX_KINDS]:
        kind = str(measure["kind"]).replace("_", " ")
        rows = [Bar(row["name"], float(row["value"])) for row in measure["features"][:MAX_BARS]]
        made.append(_figure(f"The library's own: {kind}", bars(rows, kind, kind), ""))
    return made
