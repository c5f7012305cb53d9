"""Columns of targets: their labels, and the task that they suggest."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.types import Array

MULTILABEL = "multilabel"  # the task where the target is a list of labels for each row
TOKEN_CLASSIFICATION = "token_classification"  # where it is a list of a tag for each word
FEW = 20  # integers with more distinct values than this are taken for amounts, not classes
_MIN_COUNTS = 4  # different values of a count
_RARE = 5  # rows: a class with fewer can be neither learned nor tested, and many classes need twice as many
_TIMES = 5  # as many rows hold the commonest value of a count as its rarest, or more


def as_json(label: Any) -> str | int | float | bool:
    """Return a class label as a JSON value; other types become strings."""
    plain = label.item() if isinstance(label, np.generic) else label
    return plain if isinstance(plain, str | int | float | bool) else str(plain)


def distinct_labels(values: Array) -> list[Any]:
    """Return the distinct labels, sorted, as plain Python values; floats that are integers become int."""
    if values.dtype.kind == "O":
        return sorted(set(values))
    labels = np.unique(values)
    if (
        labels.dtype.kind == "f"
        and (labels == np.trunc(labels)).all()
        and np.abs(labels).max(initial=0) < 2**63
    ):
        labels = labels.astype(np.int64)
    return labels.tolist()  # type: ignore[no-any-return]


def is_numeric(values: Array) -> bool:
    """Return whether a column holds numbers, rather than text, booleans or dates."""
    return values.dtype.kind in "iuf"


def are_integers(values: Array) -> bool:
    """Return whether a column holds numbers that are all whole."""
    return is_numeric(values) and bool((values == np.trunc(values)).all())


def is_few(values: Array, distinct: int) -> bool:
    """Return whether a column has so few different values that they may be classes."""
    return distinct <= max(2, min(FEW, len(values) // 3))


def infer_task(values: Array) -> str:
    """Return the task that a column without gaps suggests, as the target.

    Text and booleans are classes, and so are integers with few distinct values (up to 20, each three times on
    average); everything else is values.
    """
    if not is_numeric(values) or (are_integers(values) and is_few(values, len(distinct_labels(values)))):
        return "classification"
    return "regression"


def unless_counts(task: str, values: Array) -> tuple[str, str | None]:
    """Return the task of a column without gaps, or regression if its classes are counts, and why that is."""
    why = _why_counts(values) if task == "classification" else None
    return (task, None) if why is None else ("regression", why)


def _why_counts(values: Array) -> str | None:
    """Return why whole numbers with few different values are counts and not classes; None if they are not.

    Few rows hold the extreme values of a count (12 trials, 7 children). A model of classes can neither learn
    nor be tested on them, and does not know that 11 is close to 12.

    Args:
        values: (rows,) values without gaps.
    """
    if not are_integers(values):
        return None
    labels, rows = np.unique(values, return_counts=True)
    if len(labels) < _MIN_COUNTS:
        return None
    rarest = -1 if rows[-1] <= rows[0] else 0
    if (few := rows[rarest]) < min(_RARE, rows.max() / _TIMES):
        return f"only {few} {'row holds' if few == 1 else 'rows hold'} {labels[rarest]:g}"
    if len(labels) > FEW // 2 and rows.mean() < 2 * _RARE:
        return f"{rows.mean():.0f} rows on average hold each of {len(labels)}"
    return None


ONE_HOT = "if they are one-hot classes, give the classes themselves (y.argmax(axis=1))"


def infer_task_of_matrix(targets: Array, where: str) -> tuple[str, list[str]]:
    """Return the task that targets of several columns suggest: labels if all are 0 or 1, else values.

    Whole numbers for each pixel are masks.

    Args:
        targets: (rows, outputs) numbers or booleans, or (rows, height, width).
        where: The targets, for messages.

    Returns:
        The task, and warnings.
    """
    if targets.ndim == 3 and targets.dtype.kind in "biu":
        return "segmentation", []
    if not ((targets == 0) | (targets == 1)).all():
        return "regression", []
    advice = "set data.task: regression if they are amounts"
    if (targets.sum(axis=1) == 1).all():
        advice = f"{ONE_HOT}; {advice}"
    return "multilabel", [f"{where} have {targets.shape[1]} columns of 0 and 1, taken for labels; {advice}"]


def infer_task_of_sample(targets: Array, where: str) -> tuple[str, list[str]]:
    """Return the task that a sample of targets suggests, by its dtype and shape.

    Distinct values are not counted, as for a column: a sample is too small for that.

    Args:
        targets: (rows,) or (rows, ...) raw targets.
        where: The targets, for messages.

    Returns:
        The task, and warnings.
    """
    if targets.ndim > 1 and targets.dtype.kind in "biuf":
        is_mask = targets.ndim == 3 and targets.dtype.kind in "biu"
        return infer_task_of_matrix(targets if is_mask else targets.reshape(len(targets), -1), where)
    return ("regression" if targets.dtype.kind == "f" or targets.ndim > 1 else "classification"), []


def doubts(values: Array, where: str) -> list[str]:
    """Return a warning if the task of a column was inferred, but the other one is nearly as likely.

    Args:
        values: (rows,) values without gaps.
        where: The column, for messages.
    """
    distinct = len(distinct_labels(values))
    if not are_integers(values) or distinct <= FEW // 2:
        return []
    if is_few(values, distinct):
        return [
            f"{where} has {distinct} different integers, taken for classes; set data.task: regression if "
            "they are amounts"
        ]
    if len(values) >= 10 * distinct:
        return [
            f"{where} has {distinct} different integers, taken for amounts; set data.task: classification "
            "if they are classes"
        ]
    return []
