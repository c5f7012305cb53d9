"""Findings from the answers of a model: a class never given, rows known by heart, too few rows."""

from __future__ import annotations

import numpy as np

from trainwright.evaluation.intervals import wilson
from trainwright.numerals import number
from trainwright.reports.curves import Floats
from trainwright.reports.diagnosis.base import (
    NO_CHANGES,
    Changes,
    Finding,
    against,
    rows_of,
    setting,
    skills,
)
from trainwright.reports.diagnosis.changes import advised, balanced, is_number
from trainwright.reports.diagnosis.measures import expected
from trainwright.reports.diagnosis.restraint import relaxed, restraint
from trainwright.reports.rundir import Json, RunFiles, numbers, part
from trainwright.reports.verdict import CHANCE, SPLITS, evaluated, ranking

ALL_FOLDS = "trainwright cross-validate CONFIG --folds 5"  # where no setting of a single run mends it
_RARE = 0.2  # share of a class, below which imbalance explains that it is missed
_ENOUGH = 5  # rows of a class
_FEW_JUDGED = 25
_FEW_LEARNED = 60
_ROUNDED = 2.0  # rows of a share, by classes and groups
_MOST_JUDGED = 0.3  # of the rows
_KNOWN_BY_HEART = 0.5  # of the way from the constant answer to perfection


def weighable(run: RunFiles) -> Finding | None:
    """Find a class that is not answered, and would be if it counted more."""
    finding = one_class(run)
    is_of_class = finding and finding.expected and finding.expected.measure.startswith("recall")
    return finding if is_of_class else None


def one_class(run: RunFiles) -> Finding | None:
    """Find a classifier that answers one class only, or never finds a rare one."""
    confusion = part(run.evaluations.get(run.judged_split, {}), "confusion")
    if not confusion:
        return None
    return _answered(run, np.array(confusion["matrix"], np.float64), list(confusion["labels"]))


def _answered(run: RunFiles, counts: Floats, labels: list[object]) -> Finding | None:
    true, answered, split = counts.sum(axis=1), counts.sum(axis=0), run.judged_split
    if (true > 0).sum() < 2:
        return None
    if (answered > 0).sum() == 1:
        return _only_one(run, true, labels, int(answered.argmax()))
    recall = np.divide(np.diag(counts), true, out=np.ones(len(true)), where=true > 0)
    rare = (true >= _ENOUGH) & (true < _RARE * true.sum()) & (recall < 0.1)
    if not rare.any():
        return None
    worst = int(np.flatnonzero(rare)[0])
    seen = (
        f"it finds {number(int(counts[worst, worst]))} of the {number(int(true[worst]))} {SPLITS[split]} "
        f"rows of “{labels[worst]}”, which are {true[worst] / true.sum():.1%} of the rows"
    )
    changes, command = balanced(run), _choose_threshold(run)
    words = f"the recall of “{labels[worst]}” rises, at some cost in its precision"
    more = expected(run, changes or command, f"recall of {labels[worst]}", "higher", words)
    title = f"It misses the rare class “{labels[worst]}”"
    return Finding("missed class", title, seen, changes, more, command)


def _only_one(run: RunFiles, true: Floats, labels: list[object], chosen: int) -> Finding:
    """Return the finding of a model that answers one class; `true` counts the rows of each."""
    split, shares = run.judged_split, true / true.sum()
    seen = (
        f"it answers “{labels[chosen]}” for all {number(int(true.sum()))} {SPLITS[split]} rows, of which "
        f"{shares[chosen]:.0%} are “{labels[chosen]}”"
    )
    rarest = int(np.where(true > 0, true, np.inf).argmin())
    command = _choose_threshold(run)
    # Weights of classes move answers; a model whose probabilities tell nothing has none to move.
    if _ranks(run) and shares[rarest] < _RARE and ((changes := balanced(run)) or command):
        words = f"the recall of “{labels[rarest]}” rises, at some cost in accuracy"
        better = expected(run, changes or command, f"recall of {labels[rarest]}", "higher", words)
    else:
        changes = relaxed(run)
        words = "the loss falls on the rows that judge it"
        better = expected(run, changes, f"{split}_loss", "lower", words)
    return Finding("one class", "It always predicts the same class", seen, changes, better, command)


def _ranks(run: RunFiles) -> bool:
    """Return whether the probabilities of a model tell the classes apart, whatever it answers."""
    told = ranking(run.evaluations[run.judged_split])
    certainty = (against(run, "constant") or ("alike", "alike"))[1]
    if told is None or certainty != "alike":
        return certainty == "better"
    return told.is_skilled


def threshold(run: RunFiles) -> float | None:
    """Return a better threshold than 0.5 for a model that ranks rows, but answers no better than a constant.

    It is the one at which the classes weigh the same, as `training.class_weights: balanced` has it; by the
    validation rows, where there are any. None where none is known to be better.
    """
    told, answers = ranking(run.evaluations.get(run.judged_split, {})), against(run, "constant")
    if told is None or not told.is_skilled or answers is None or answers[0] == "better":
        return None
    tables = (part(run.evaluations.get(split, {}), "thresholds") for split in ("val", run.judged_split))
    table = next(one for one in tables if one)
    hits, alarms = (np.array(table[name], np.float64) for name in ("tp", "fp"))
    best = int((hits / table["positive"] - alarms / table["negative"]).argmax())
    chosen = float(table["threshold"][best])
    return chosen if chosen <= 1 else None


def _choose_threshold(run: RunFiles) -> str:
    """Return the command that answers from a better threshold on; empty where none is known."""
    chosen = threshold(run)
    return "" if chosen is None else f"trainwright predict RUN FILE --threshold {chosen:.3g}"


def known_by_heart(run: RunFiles) -> Finding | None:
    """Find a model that is far better on training rows than on others, and hardly better than a line."""
    known = {split: max(0.0, skill) for split, skill in skills(run).items()}  # below 0, none either
    judged = next((split for split in ("val", "test") if split in known), None)
    if judged is None or "train" not in known or run.evaluations[judged]["rows"] < _FEW_JUDGED:
        return None
    gap = known["train"] - known[judged]
    behind = against(run, "linear")
    is_simple = behind is not None and behind[0] != "better"
    if gap >= (_KNOWN_BY_HEART / 2 if is_simple else _KNOWN_BY_HEART):
        also = "; a linear model of the same columns does as well" if is_simple else ""
        seen = (
            f"on training rows it closes {known['train']:.0%} of the gap between one answer for all and a "
            f"perfect score, on {SPLITS[judged]} rows {known[judged]:.0%}{also}"
        )
    elif not (seen := _ranked_by_heart(run, judged)):
        return None
    changes = restraint(run)
    words = "the loss falls on the rows that judge the model"
    to_fall = expected(run, changes, f"{judged}_loss", "lower", words)
    return Finding("overfitting", "It memorized the training rows", seen, changes, to_fall)


def _ranked_by_heart(run: RunFiles, judged: str) -> str:
    """Return how training rows are ranked, and those that judge, if that is far worse; else nothing.

    It shows what shares of right answers do not where one of two classes is rare.
    """
    table = part(run.evaluations[judged], "thresholds")
    train, other = (ranking(run.evaluations[split]) for split in ("train", judged))
    if not table or train is None or other is None:
        return ""
    is_rare = min(table["positive"], table["negative"]) < _RARE * (table["positive"] + table["negative"])
    gap = (train.area - max(CHANCE, other.area)) / (1 - CHANCE)
    if not is_rare or gap < max(_KNOWN_BY_HEART, 2 * other.error / (1 - CHANCE)):
        return ""
    return (
        f"the area under the ROC curve of “{table['name']}” is {train.area:.2f} on training rows, and "
        f"{other.area:.2f} on {SPLITS[judged]} rows, where chance has 0.5"
    )


def few_rows(run: RunFiles) -> Finding | None:
    """Find a run with too few rows to learn from, or to judge it by."""
    rows, judged = rows_of(run), evaluated(run)
    if judged is None or "train" not in rows:
        return None
    split, tables = judged
    count = int(tables["rows"])
    if rows["train"] < _FEW_LEARNED:
        seen = f"{number(rows['train'])} rows train, and {number(count)} {SPLITS[split]} rows judge the model"
        command = ALL_FOLDS if _divides(run) and not run.passed_objects else ""
        title = "There are too few rows"
        return Finding("too few rows", title, f"{seen}{_margin(tables, split)}", command=command)
    if count < _FEW_JUDGED:
        seen = f"{number(count)} {SPLITS[split]} rows judge the model{_margin(tables, split)}"
        changes = _more_judged(run, split)
        words = "more rows judge the model, and fewer train it"
        more = expected(run, changes, "rows", "higher", words)
        command = ALL_FOLDS if _divides(run) and not (changes or run.passed_objects) else ""
        return Finding("too few rows", "Too few rows judge the model", seen, changes, more, command)
    return None


def _divides(run: RunFiles) -> bool:
    """Return whether the run divided one source of rows into its splits."""
    given = ("data.train_path", "data.val_path", "data.test_path", "data.split.folds")
    if any(setting(run, key) is not None for key in given):
        return False
    if not run.passed_objects and ":" not in str(setting(run, "data.type")):
        return True
    rows, share = rows_of(run), setting(run, "data.split.test")  # objects may come divided
    return bool(abs(rows.get("test", 0) - (0.1 if share is None else share) * sum(rows.values())) <= _ROUNDED)


def _more_judged(run: RunFiles, split: str) -> Changes:
    share = setting(run, f"data.split.{split}")
    if not _divides(run) or (is_number(share) and share >= _MOST_JUDGED):
        return NO_CHANGES
    return advised(run, {f"data.split.{split}": _MOST_JUDGED})


def _margin(tables: Json, split: str) -> str:
    """Return the range of the accuracy that such few rows leave open (Wilson's interval)."""
    metrics = numbers(part(tables, "metrics"))
    share, count = metrics.get(f"{split}_accuracy"), int(tables["rows"])
    if share is None or not np.isfinite(share):
        return ""
    low, high = wilson(share, count)
    return f": an accuracy of {share:.2f} may as well be {low:.2f} or {high:.2f}"
