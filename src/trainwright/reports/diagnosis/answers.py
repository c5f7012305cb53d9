"""Findings from the answers of a model: a class never given, rows known by heart, too few rows."""

from __future__ import annotations

import numpy as np

from trainwright.numerals import number
from trainwright.reports.curves import Floats
from trainwright.reports.diagnosis.base import Finding, against, rows_of, setting, skills
from trainwright.reports.diagnosis.restraint import restraint
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.reports.verdict import SPLITS, evaluated

ALL_FOLDS = "trainwright cross-validate CONFIG --folds 5"  # where no setting of a single run mends it
_RARE = 0.2  # share of a class, below which imbalance explains that it is missed
_ENOUGH = 5  # rows of a class
_FEW_JUDGED = 25
_FEW_LEARNED = 60
_KNOWN_BY_HEART = 0.5  # of the way from the constant answer to perfection


def one_class(run: RunFiles) -> Finding | None:
    """Find a classifier that answers one class only, or never finds a rare one."""
    confusion = part(run.evaluations.get(run.judged_split, {}), "confusion")
    if not confusion:
        return None
    return _answered(np.array(confusion["matrix"], np.float64), list(confusion["labels"]), run.judged_split)


def _answered(counts: Floats, labels: list[object], split: str) -> Finding | None:
    true, answered = counts.sum(axis=1), counts.sum(axis=0)
    if (true > 0).sum() < 2:
        return None
    mend = "training.class_weights: balanced"
    if (answered > 0).sum() == 1:
        chosen = int(answered.argmax())
        share = true[chosen] / true.sum()
        seen = (
            f"it answers “{labels[chosen]}” for all {number(int(true.sum()))} {SPLITS[split]} rows, of which "
            f"{share:.0%} are “{labels[chosen]}”"
        )
        return Finding("one class", "It only ever answers one class", seen, mend)
    recall = np.divide(np.diag(counts), true, out=np.ones(len(true)), where=true > 0)
    rare = (true >= _ENOUGH) & (true < _RARE * true.sum()) & (recall < 0.1)
    if not rare.any():
        return None
    worst = int(np.flatnonzero(rare)[0])
    seen = (
        f"it finds {number(int(counts[worst, worst]))} of the {number(int(true[worst]))} {SPLITS[split]} "
        f"rows of “{labels[worst]}”, which are {true[worst] / true.sum():.1%} of the rows"
    )
    return Finding("missed class", f"It misses the rare class “{labels[worst]}”", seen, mend)


def known_by_heart(run: RunFiles) -> Finding | None:
    """Find a model that is far better on training rows than on others, and hardly better than a line."""
    known = skills(run)
    judged = next((split for split in ("val", "test") if split in known), None)
    if judged is None or "train" not in known or run.evaluations[judged]["rows"] < _FEW_JUDGED:
        return None
    gap = known["train"] - known[judged]
    behind = against(run, "linear")
    is_simple = behind is not None and behind[0] != "better"
    if gap < (_KNOWN_BY_HEART / 2 if is_simple else _KNOWN_BY_HEART):
        return None
    also = "; a linear model of the same columns does as well" if is_simple else ""
    seen = (
        f"on training rows it closes {known['train']:.0%} of the gap between one answer for all and a "
        f"perfect score, on {SPLITS[judged]} rows {max(0.0, known[judged]):.0%}{also}"
    )
    return Finding("overfitting", "It knows the training rows by heart", seen, restraint(run))


def few_rows(run: RunFiles) -> Finding | None:
    """Find a run with too few rows to learn from, or to judge it by."""
    rows, judged = rows_of(run), evaluated(run)
    if judged is None or "train" not in rows:
        return None
    split, tables = judged
    count = int(tables["rows"])
    share = setting(run, "data.split.test")
    mend = "data.split.test: 0.3" if not isinstance(share, float) or share < 0.3 else ALL_FOLDS
    if rows["train"] < _FEW_LEARNED:
        seen = f"{number(rows['train'])} rows train, and {number(count)} {SPLITS[split]} rows judge the model"
        return Finding("too few rows", "There are too few rows", f"{seen}{_margin(tables, split)}", ALL_FOLDS)
    if count < _FEW_JUDGED:
        seen = f"{number(count)} {SPLITS[split]} rows judge the model{_margin(tables, split)}"
        return Finding("too few rows", "Too few rows judge the model", seen, mend)
    return None


def _margin(tables: Json, split: str) -> str:
    """Return the range of the accuracy that such few rows leave open (Wilson's interval)."""
    metrics = numbers(part(tables, "metrics"))
    share, count = metrics.get(f"{split}_accuracy"), int(tables["rows"])
    if share is None or not np.isfinite(share):
        return ""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return f": an accuracy of {share:.2f} may as well be {middle - reach:.2f} or {middle + reach:.2f}"
