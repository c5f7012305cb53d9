"""Diagnoses a run in plain words: what is wrong, what was seen to say so, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainwright.reports.diagnosis.answers import few_rows, known_by_heart, one_class, weighable
from trainwright.reports.diagnosis.base import Finding
from trainwright.reports.diagnosis.curves import (
    diverged,
    flat,
    lagging,
    overfitting,
    underfitting,
    unfinished,
    unusual_rate,
)
from trainwright.reports.diagnosis.data import leakage, repeated, shift
from trainwright.reports.rundir import RunFiles, part

__all__ = ["Finding", "diagnose", "section"]

Rule = Callable[[RunFiles], Finding | None]

# Only the first finding of a group is reported, so causes come before their consequences.
_RULES: Sequence[Sequence[Rule]] = (
    (
        *(diverged, lagging, flat, unusual_rate, weighable, underfitting, unfinished, one_class),
        *(overfitting, known_by_heart),
    ),
    (repeated, leakage),
    (shift,),
    (few_rows,),
)


def diagnose(run: RunFiles) -> list[Finding]:
    """Return what is wrong with a run; empty for a healthy one, or one that has too few records."""
    findings = []
    for group in _RULES:
        found = next((finding for rule in group if (finding := rule(run)) is not None), None)
        findings += [found] if found else []
    return findings


def section(run: RunFiles) -> dict[str, Any] | None:
    """Return the findings for the template; None where a run has nothing yet to judge it by."""
    findings = diagnose(run)
    if not findings and not (run.evaluations or run.profile):
        return None
    return {"findings": [finding.to_json() for finding in findings], "checked": _checked(run)}


def _checked(run: RunFiles) -> str:
    """Return what holds for a run without findings, as far as its records tell."""
    tables = run.evaluations.values()
    holds = {
        "the loss moves": bool(run.history.curves.keys() & {"loss", "train_loss"}),
        "the model does not overfit": "val_loss" in run.history.curves or "train" in run.evaluations,
        "all classes are answered": any(part(one, "confusion") for one in tables),
        "no column gives the target away": bool(run.profile.get("columns")),
        "the splits are alike": bool(run.profile.get("adversarial")),
        "there are enough rows": bool(tables),
    }
    *first, last = [words for words, is_known in holds.items() if is_known] or ["nothing was found"]
    return f"{', '.join(first)}, and {last}" if len(first) > 1 else " and ".join([*first, last])
