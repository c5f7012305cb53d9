"""Findings from the curves of a training: it diverged, does not learn, overfits, or ended too early."""

from __future__ import annotations

import numpy as np

from trainwright.numerals import number
from trainwright.reports.diagnosis.base import Finding, Series, against, rate, series, setting
from trainwright.reports.diagnosis.restraint import restraint
from trainwright.reports.rundir import RunFiles

_FEW = 5  # evaluations, below which a rise may be chance
_RISE = 0.1  # of the lowest validation loss; the training loss falls by as much
_STEPS = 20
_FLAT = 0.02  # of the first loss
_EXPLODED = 3.0  # times the first loss


def diverged(run: RunFiles) -> Finding | None:
    """Find a loss that is not finite any more, or ended far above where it began."""
    curve = run.history.curves.get("loss") or run.history.curves.get("train_loss")
    if curve is None or not len(curve.envelope.x):
        return None
    loss = series(run, "loss", "train_loss")
    is_lost = not np.isfinite(curve.last)
    if not is_lost:
        if loss is None or len(loss.values) < _FEW:
            return None
        first, last = _ends(loss)
        if not (first > 0 and last > _EXPLODED * first):
            return None
        seen = f"the training loss rose from {number(first)} to {number(last)}"
    else:
        seen = f"the training loss is not a number any more at step {number(curve.last_step)}"
    return Finding("diverged", "The training diverged", seen, _lower(run))


def _lower(run: RunFiles) -> str:
    current = rate(run)
    return f"training.learning_rate: {current / 10:.3g}" if current else "training.max_grad_norm: 1.0"


def _ends(loss: Series) -> tuple[float, float]:
    """Return the mean of the first tenth and of the last fifth."""
    count = len(loss.values)
    first, last = loss.values[: max(1, count // 10)], loss.values[-max(1, count // 5) :]
    return float(first.mean()), float(last.mean())


def flat(run: RunFiles) -> Finding | None:
    """Find a training loss that does not move, of a model that knows no more than a constant answer."""
    loss, compared = series(run, "loss", "train_loss"), against(run, "constant")
    if loss is None or len(loss.values) < _FEW or run.steps < _STEPS:
        return None
    first, last = _ends(loss)
    if abs(first - last) > _FLAT * abs(first) or "better" in (compared or ()):
        return None
    current = rate(run)
    seen = f"from the first to the last of {number(run.steps)} steps the training loss went from "
    seen += f"{number(first)} to {number(last)}"
    if current is None:
        mend = "training.learning_rate: 0.001"
    else:
        seen += f", at a learning rate of {current:g}"
        factor = 0.1 if current >= 0.1 else 10 if current > 1e-5 else 1000
        mend = f"training.learning_rate: {current * factor:.3g}"
    return Finding("flat loss", "The loss does not move: nothing is learned", seen, mend)


def overfitting(run: RunFiles) -> Finding | None:
    """Find the step from which the validation loss rises while the training loss falls."""
    val, train = series(run, "val_loss"), series(run, "train_loss", "loss")
    if val is None or train is None or len(val.values) < _FEW or _stopped_early(run):
        return None
    lowest = int(val.values.argmin())
    after = val.values[lowest + 1 :]
    if len(after) < max(3, len(val.values) // 5):
        return None
    best, last, step = float(val.values[lowest]), float(np.median(after[-3:])), float(val.steps[lowest])
    before, end = train.at(step), _ends(train)[1]
    if last - best <= _RISE * abs(best) or end >= (1 - _RISE) * before:
        return None
    kept = ". The best model was kept, so the rest was for nothing" if _kept_best(run) else ""
    seen = (
        f"the validation loss was lowest at step {step:.0f} ({number(best)}) and rose to {number(last)}, "
        f"while the training loss fell from {number(before)} to {number(end)}{kept}"
    )
    return Finding("overfitting", f"It overfits from step {step:.0f}", seen, _stop(run))


def _stop(run: RunFiles) -> str:
    if setting(run, "training.early_stopping") is None:
        return "training.early_stopping: {metric: val_loss, patience: 3}"
    return restraint(run)


def _stopped_early(run: RunFiles) -> bool:
    return any(event.name == "early_stop" for event in run.history.events)


def _kept_best(run: RunFiles) -> bool:
    return bool(run.result and run.result.evaluated == "best")


def unfinished(run: RunFiles) -> Finding | None:
    """Find a training that ended while it still got better, and is behind a linear model."""
    val, compared = series(run, "val_loss"), against(run, "linear") or against(run, "table")
    if val is None or compared is None or compared[0] != "worse" or len(val.values) < 3:
        return None
    if int(val.values.argmin()) != len(val.values) - 1:
        return None
    epochs, steps = setting(run, "training.epochs"), setting(run, "training.max_steps")
    longer = f"training.max_steps: {3 * steps}" if isinstance(steps, int) else None
    longer = longer or f"training.epochs: {3 * epochs if isinstance(epochs, int) else 30}"
    simple = "a linear model of the same columns" if against(run, "linear") else "a table of single tokens"
    seen = (
        f"the validation loss was lowest at the last evaluation ({number(float(val.values[-1]))}), and "
        f"{simple} is better"
    )
    return Finding("unfinished", "It ended before it had learned what it can", seen, longer)
