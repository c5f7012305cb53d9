"""Findings from the curves of a training: it diverged, does not learn, overfits, or ended too early."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.numerals import number
from trainwright.reports.diagnosis.base import NO_CHANGES, Changes, Finding, against, series, setting, skills
from trainwright.reports.diagnosis.changes import advised, longer, rate_of
from trainwright.reports.diagnosis.measures import ends, expected
from trainwright.reports.diagnosis.restraint import relaxed
from trainwright.reports.rundir import RunFiles

_FEW = 5  # evaluations, below which a rise may be chance
_RISE = 0.1  # of the lowest validation loss; the training loss falls by as much
_STEPS = 20
_FLAT = 0.02  # of the first loss
_EXPLODED = 3.0  # times the first loss
_OFF = 3.0  # times a usual learning rate: from here on, another one is worth a try
_FAR_OFF, _TOO_HIGH = 10.0, 30.0
_LAG = 0.05  # of the averaged weights are the initial ones
_SHORTER = 0.8  # of the steps, at most, that an early stop leaves
_STILL = 3  # evaluations, each of which is better than the one before
_GAP = 0.1  # of the way to perfection, between the training rows and others


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
        first, last = ends(loss.values)
        if not (first > 0 and last > _EXPLODED * first):
            return None
        seen = f"the training loss rose from {number(first)} to {number(last)}"
    else:
        seen = f"the training loss became NaN or infinite at step {number(curve.last_step)}"
    changes = _lower(run)
    to_fall = expected(run, changes, "train_loss", "lower", "the training loss stays finite and falls")
    return Finding("diverged", "The training diverged", seen, changes, to_fall)


def _lower(run: RunFiles) -> Changes:
    """Return a lower learning rate; without one, clipped gradients."""
    rate = rate_of(run)
    if rate is not None:
        return advised(run, {rate.key: _rounded(min(rate.usual, rate.value / 10))})
    return advised(run, {"training.max_grad_norm": 1.0})


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def flat(run: RunFiles) -> Finding | None:
    """Find a training loss that does not move, of a model that knows no more than a constant answer."""
    loss, compared = series(run, "loss", "train_loss"), against(run, "constant")
    if loss is None or len(loss.values) < _FEW or run.steps < _STEPS:
        return None
    first, last = ends(loss.values)
    if abs(first - last) > _FLAT * abs(first) or "better" in (compared or ()):
        return None
    seen = f"from the first to the last of {number(run.steps)} steps the training loss went from "
    seen += f"{number(first)} to {number(last)}"
    changes, rate = NO_CHANGES, rate_of(run)
    if rate is not None:
        seen += f", at a learning rate of {rate.value:g}"
        if not rate.usual / _OFF <= rate.value <= rate.usual * _OFF:
            changes = advised(run, {rate.key: rate.usual})
    changes = changes or relaxed(run)
    to_fall = expected(run, changes, "train_loss", "lower", "the training loss falls")
    return Finding("flat loss", "The loss does not move: nothing is learned", seen, changes, to_fall)


def lagging(run: RunFiles) -> Finding | None:
    """Find an average of the weights that holds much of the initial ones, as it is long beside the run."""
    decay, rises = setting(run, "training.ema.decay"), setting(run, "training.ema.warmup")
    if not isinstance(decay, float) or rises or not run.steps or decay**run.steps < _LAG:
        return None
    changes = advised(run, {"training.ema.warmup": True})
    seen = (
        f"the model is the average of the weights over about {number(round(1 / (1 - decay)))} steps "
        f"(training.ema.decay: {decay:g}), but {number(run.steps)} were trained: "
        f"{decay**run.steps:.0%} of it are the initial weights"
    )
    to_fall = expected(run, changes, "val_loss", "lower", "the validation loss falls")
    return Finding("lagging average", "The averaged weights lag behind", seen, changes, to_fall)


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
    before, end = train.at(step), ends(train.values)[1]
    if last - best <= _RISE * abs(best) or end >= (1 - _RISE) * before:
        return None
    kept = ". The best model was kept, so the later steps were wasted" if _kept_best(run) else ""
    seen = (
        f"the validation loss was lowest at step {step:.0f} ({number(best)}) and rose to {number(last)}, "
        f"while the training loss fell from {number(before)} to {number(end)}{kept}"
    )
    title, stop = f"It overfits from step {step:.0f}", _stop(run)
    if stop:
        words = "the same best model after fewer steps"
        return Finding("overfitting", title, seen, stop, expected(run, stop, "steps", "lower", words))
    return Finding("overfitting", title, seen)


def _stop(run: RunFiles) -> Changes:
    """Return the early stop that leaves the same best model; none where it saves too few steps."""
    metric, best = setting(run, "checkpoint.metric", "val_loss"), run.best
    curve = series(run, metric)
    if curve is None or setting(run, "training.early_stopping") is not None:
        return NO_CHANGES
    step = curve.steps[curve.values.argmin()] if best is None else best.step
    at = int(np.abs(curve.steps - step).argmin())
    values = curve.values if curve.values[at] <= np.median(curve.values) else -curve.values
    records = [i for i in range(at + 1) if not i or values[i] < values[:i].min()]
    patience = max(3, *(np.diff(records).tolist() or [0]))
    if at + patience >= _SHORTER * len(values):
        return NO_CHANGES
    stop: dict[str, Any] = {"metric": metric, "patience": patience}
    return advised(run, {"training.early_stopping": stop})


def _stopped_early(run: RunFiles) -> bool:
    return any(event.name == "early_stop" for event in run.history.events)


def _kept_best(run: RunFiles) -> bool:
    return bool(run.result and run.result.evaluated == "best")


def unusual_rate(run: RunFiles) -> Finding | None:
    """Find a learning rate far from the usual ones, of a model that is behind the simplest answers."""
    rate, behind = rate_of(run), _behind(run)
    if rate is None:
        return None
    is_low = rate.value * _FAR_OFF <= rate.usual
    if is_low and behind is None and _still_falls(run):
        behind = "still getting better at the end"
    if behind is None or (not is_low and rate.value < _TOO_HIGH * rate.usual):
        return None
    changes = advised(run, {rate.key: rate.usual})
    far = "far below" if is_low else "far above"
    seen = f"at a learning rate of {rate.value:g}, {far} the usual {rate.usual:g}, it is {behind}"
    to_fall = expected(run, changes, "val_loss", "lower", "the validation loss falls")
    title = f"The learning rate is {'low: it learns slowly' if is_low else 'high: it does not settle'}"
    return Finding("learning rate", title, seen, changes, to_fall)


def _behind(run: RunFiles) -> str | None:
    """Return in words which of the simplest answers a model is behind; None if none is known."""
    constant = against(run, "constant")
    if constant is not None and "better" not in constant:
        return "no better than a constant answer"
    answers_help = constant is None or constant[0] == "better"
    simple = {"linear": "a linear model of the same columns", "table": "a table of single tokens"}
    for name, words in simple.items():
        compared = against(run, name)
        if compared is not None and "worse" in (compared[:1] if answers_help else compared):
            return f"behind {words}"
    return None


def unfinished(run: RunFiles) -> Finding | None:
    """Find a training that ended while it still got better, and is behind the simplest answers."""
    behind = _behind(run)
    if behind is None or not (_still_falls(run) or _hardly_began(run)):
        return None
    if not (changes := longer(run)):
        return None
    seen = f"the validation loss was lowest at the last evaluation, and the model is {behind}"
    to_fall = expected(run, changes, "val_loss", "lower", "the validation loss falls further")
    title = "It ended before it had learned what it can"
    return Finding("unfinished", title, seen, changes, to_fall)


def _still_falls(run: RunFiles) -> bool:
    """Return whether the validation loss was lowest at the end, and fell there from point to point."""
    val = series(run, "val_loss")
    if val is None or len(val.values) < _STILL or int(val.values.argmin()) != len(val.values) - 1:
        return False
    return bool((np.diff(val.values[-_STILL:]) < 0).all())


def _hardly_began(run: RunFiles) -> bool:
    """Return whether a training in steps was evaluated too seldom to have a curve."""
    val = run.history.curves.get("val_loss")
    return run.steps >= _FEW and val is not None and len(val.envelope.x) < _STILL and not _stopped_early(run)


def underfitting(run: RunFiles) -> Finding | None:
    """Find a model that is held back: no better on training rows than on others, and behind the simplest."""
    known, behind, changes = skills(run), _behind(run), relaxed(run)
    judged = known.get(run.judged_split)
    if behind is None or judged is None or known.get("train", judged) - judged > _GAP or not changes:
        return None
    seen = f"it is {behind}, on training rows as on others, and its options leave it little room"
    measure = f"{run.judged_split}_loss"
    to_fall = expected(run, changes, measure, "lower", "the loss falls on the rows that judge it")
    return Finding("underfitting", "It is held back too much", seen, changes, to_fall)
