"""What a report shows of an evaluation, as JSON: `evaluation/<split>.json` in the run directory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.evaluation.classification import per_class
from trainyard.evaluation.metrics import EvaluationResult
from trainyard.evaluation.scores import Scores
from trainyard.records.journal import finite
from trainyard.types import Array, DataInfo

MAX_CONFUSION = 200  # classes; a greater matrix can be neither read nor drawn
MAX_POINTS = 2000
MAX_WORST = 12


def tables(result: EvaluationResult, info: DataInfo) -> dict[str, Any]:
    """The metrics and, as fits the task, the confusion matrix and the classes, or the predictions against the targets.

    Keys: `split`, `task`, `target`, `metrics` (NaN and infinities as the journal writes them), `rows`; `confusion`:
    {`labels`, `matrix` [true][predicted]} up to 200 classes; `per_class`: [{`label`, `precision`, `recall`, `f1`,
    `support`}]; `scatter`: {`true`, `predicted`}, at most 2000 points of the first output, evenly spaced over the rows;
    `worst`: the rows with the greatest errors, [{`row`, `true`, `predicted`, `probability` | `error`}] (`probability`
    is that of the wrong class). What does not apply is None, or an empty list for `worst`.
    """
    made: dict[str, Any] = {
        "split": result.split,
        "task": info.task,
        "target": info.target,
        "metrics": {name: finite(value) for name, value in result.metrics.items()},
        "rows": len(result.targets),
        "confusion": None,
        "per_class": None,
        "scatter": None,
        "worst": [],
    }
    if len(result.targets) == 0 or not np.isfinite(result.outputs).all():
        return made
    return made | (_of_classes(result, info) if info.task == "classification" else _of_values(result))


def label(value: Any) -> str | int | float | bool:
    """A class label as JSON can hold it."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | bool) else str(plain)


def _of_classes(result: EvaluationResult, info: DataInfo) -> dict[str, Any]:
    labels = [label(value) for value in (info.classes if info.classes is not None else range(info.outputs))]
    scores = Scores(result.outputs, result.targets)
    table = per_class(scores.confusion)
    columns = zip(labels, table.precision, table.recall, table.f1, table.support, strict=True)
    return {
        "confusion": {"labels": labels, "matrix": scores.confusion.tolist()}
        if len(labels) <= MAX_CONFUSION
        else None,
        "per_class": [
            {
                "label": name,
                "precision": float(precision),
                "recall": float(recall),
                "f1": float(f1),
                "support": int(support),
            }
            for name, precision, recall, f1, support in columns
        ],
        "worst": _worst_classes(result, scores, labels),
    }


def _worst_classes(result: EvaluationResult, scores: Scores, labels: list[Any]) -> list[dict[str, Any]]:
    """The wrong predictions that the model was surest of."""
    sureness = result.outputs[np.arange(len(result.targets)), scores.predicted]
    wrong = np.flatnonzero(scores.predicted != scores.targets)
    return [
        {
            "row": int(result.ids[index]),
            "true": labels[scores.targets[index]],
            "predicted": labels[scores.predicted[index]],
            "probability": float(sureness[index]),
        }
        for index in wrong[_greatest(sureness[wrong])]
    ]


def _of_values(result: EvaluationResult) -> dict[str, Any]:
    true, predicted = (
        np.asarray(values, np.float64).reshape(len(result.targets), -1)[:, 0]
        for values in (result.targets, result.outputs)
    )
    kept = np.unique(np.linspace(0, len(true) - 1, min(len(true), MAX_POINTS)).astype(np.int64))
    errors = predicted - true
    return {
        "scatter": {"true": true[kept].tolist(), "predicted": predicted[kept].tolist()},
        "worst": [
            {
                "row": int(result.ids[index]),
                "true": float(true[index]),
                "predicted": float(predicted[index]),
                "error": float(errors[index]),
            }
            for index in _greatest(np.abs(errors))
        ],
    }


def _greatest(values: Array) -> NDArray[np.int64]:
    """Where the greatest values are, the greatest first; of equals the first row."""
    return np.argsort(-values, kind="stable")[:MAX_WORST]
