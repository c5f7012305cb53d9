"""Findings from the data: a column that gives the target away, rows in two splits, unlike splits."""

from __future__ import annotations

from trainwright.reports.diagnosis.base import NO_CHANGES, Changes, Finding, setting
from trainwright.reports.diagnosis.changes import advised
from trainwright.reports.diagnosis.measures import expected
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.reports.verdict import SPLITS

_ALONE = 0.98
_REPEATED = 0.05  # of the rows of a split
_APART = 0.65  # area under the ROC curve
_SHIFTED = 0.1  # of 1 for columns that are told apart
_TELLS = 0.1  # of 1 for the target itself
_ERRORS = 4.0  # standard errors above chance


def leakage(run: RunFiles) -> Finding | None:
    """Find columns that tell the target nearly by themselves."""
    if int(run.profile.get("features", 0)) < 2:
        return None
    names = [str(one["name"]) for one in run.profile.get("suspects", ()) if float(one["alone"]) >= _ALONE]
    if not names:
        return None
    alone = max(float(one["alone"]) for one in run.profile["suspects"])
    column = f"column {names[0]}" if len(names) == 1 else f"columns {', '.join(names)}"
    seen = (
        f"of 1 for the target itself, {column} alone {'reaches' if len(names) == 1 else 'reach'} {alone:.3f}"
        "; ask whether it is known before the target is"
    )
    title = f"{names[0]} may give the target away" if len(names) == 1 else "Columns may give the target away"
    changes = _without(run, names)
    words = "no column tells the target alone; the metrics fall to what the model does without it"
    less = expected(run, changes, "alone", "lower", words)
    return Finding("leakage", title, seen, changes, less)


def repeated(run: RunFiles) -> Finding | None:
    """Find a split whose rows are also training rows."""
    for one in run.manifest.data.repeated if run.manifest else ():
        if one.count >= _REPEATED * one.rows:
            names = [SPLITS.get(name, name) for name in (one.split, one.other)]
            seen = (
                f"{one.count} of {one.rows} {names[0]} rows are also {names[1]} rows, so the metrics flatter "
                "the model"
            )
            return Finding("repeated rows", "The model is judged by rows that it has seen", seen)
    return None


def shift(run: RunFiles) -> Finding | None:
    """Find a split whose rows are unlike training rows (adversarial validation)."""
    for split, told in part(run.profile, "adversarial").items():
        values = numbers(told)
        if values["auc"] < _APART or values["auc"] - 0.5 < _ERRORS * values["error"]:
            continue
        columns = [str(one["name"]) for one in told["columns"] if float(one["shift"]) >= _SHIFTED]
        seen = (
            f"a linear model tells {SPLITS[split]} rows from training rows with an area under the ROC curve "
            f"of {values['auc']:.2f} (alike: 0.50)"
        )
        if columns:
            seen += f"; most different: {', '.join(columns)}"
        if time := setting(run, "data.split.time"):
            seen += f". The rows are split by {time}: newer ones are unlike older ones"
        changes = _without_shifted(run, split)
        words = "the rows of the splits are told apart less well; the columns tell little of the target"
        less = expected(run, changes, "apart", "lower", words)
        title = f"The {SPLITS[split]} rows are unlike the training rows"
        return Finding("shift", title, seen, changes, less)
    return None


def _without_shifted(run: RunFiles, split: str) -> Changes:
    """Return the change that excludes the columns that differ most, if they tell little of the target."""
    shifted = [one for one in run.profile.get("columns", ()) if _shift(one, split) >= _SHIFTED]
    shifted.sort(key=lambda one: -_shift(one, split))
    if not shifted or float(shifted[0].get("alone", 1.0)) > _TELLS:
        return NO_CHANGES  # without it, the model would be worse wherever rows are alike
    return _without(run, [str(one["name"]) for one in shifted if float(one.get("alone", 1.0)) <= _TELLS])


def _shift(column: Json, split: str) -> float:
    return numbers(part(column, "shift")).get(split, 0.0)


def _without(run: RunFiles, names: list[str]) -> Changes:
    """Return the change that excludes columns, too; none if no column would be left."""
    features = run.manifest.data.features if run.manifest else []
    if not set(features) - set(names):
        return NO_CHANGES
    excluded = list(dict.fromkeys([*(setting(run, "data.exclude") or ()), *names]))
    chosen = setting(run, "data.features")
    if isinstance(chosen, list):
        return advised(run, {"data.features": [name for name in chosen if name not in names]})
    return advised(run, {"data.exclude": excluded})
