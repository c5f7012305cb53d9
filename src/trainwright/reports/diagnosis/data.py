"""Findings from the data: a column that gives the target away, rows in two splits, unlike splits."""

from __future__ import annotations

from trainwright.reports.diagnosis.base import Finding, excluding, setting
from trainwright.reports.rundir import RunFiles, numbers, part
from trainwright.reports.verdict import SPLITS

_ALONE = 0.98
_REPEATED = 0.05  # of the rows of a split
_APART = 0.65  # area under the ROC curve
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
    return Finding("leakage", title, seen, excluding(run, names))


def repeated(run: RunFiles) -> Finding | None:
    """Find a split whose rows are also training rows."""
    for one in run.manifest.data.repeated if run.manifest else ():
        if one.count >= _REPEATED * one.rows:
            names = [SPLITS.get(name, name) for name in (one.split, one.other)]
            seen = (
                f"{one.count} of {one.rows} {names[0]} rows are also {names[1]} rows, so the metrics flatter "
                "the model"
            )
            mend = "data.split.group: COLUMN   # equal values stay in one split"
            return Finding("repeated rows", "The model is judged by rows that it has seen", seen, mend)
    return None


def shift(run: RunFiles) -> Finding | None:
    """Find a split whose rows are unlike training rows (adversarial validation)."""
    for split, told in part(run.profile, "adversarial").items():
        values = numbers(told)
        if values["auc"] < _APART or values["auc"] - 0.5 < _ERRORS * values["error"]:
            continue
        columns = [str(one["name"]) for one in told["columns"] if float(one["shift"]) >= 0.1]
        seen = (
            f"a linear model tells {SPLITS[split]} rows from training rows with an area under the ROC curve "
            f"of {values['auc']:.2f} (alike: 0.50)"
        )
        if columns:
            seen += f"; most different: {', '.join(columns)}"
        if time := setting(run, "data.split.time"):
            seen += f". The rows are split by {time}: newer ones are unlike older ones"
        return Finding(
            "shift", f"The {SPLITS[split]} rows are unlike the training rows", seen, _mend(run, columns)
        )
    return None


def _mend(run: RunFiles, columns: list[str]) -> str:
    """Return how to make splits alike: split one file at random, or leave the columns out that differ."""
    if setting(run, "data.train_path") is not None:
        return "data.path: ALL_ROWS.csv   # instead of a file for each split"
    if columns:
        return excluding(run, columns[:1])
    if setting(run, "data.split.time") is not None:
        return "data.split.time: null"
    if ":" in str(setting(run, "data.type")):  # Python objects, or those of a function, may come divided
        return "data.split.test: 0.2   # of all rows in one pair (X, y)"
    seed = setting(run, "data.split.seed", 0)
    return f"data.split.seed: {seed + 1 if isinstance(seed, int) else 1}   # divides the rows anew"
