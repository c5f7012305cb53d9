"""The tables of an evaluation as JSON, for reports: `evaluation/<split>.json` in the run directory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.evaluation.classification import per_class
from trainyard.evaluation.metrics import EvaluationResult
from trainyard.evaluation.scores import Scores
from trainyard.records.journal import finite
from trainyard.types import Array, DataInfo

MAX_CONFUSION = 200  # classes; a larger matrix is unreadable
MAX_POINTS = 2000  # of the scatter plot
MAX_WORST = 12  # rows with the largest errors


def tables(result: EvaluationResult, info: DataInfo) -> dict[str, Any]:
    """Return the metrics of an evaluation and the tables that fit its task.

    Keys:
    - `split`, `task`, `target`, `rows`, and `metrics` (NaN and infinities are strings, as in the journal);
    - `confusion`: {`labels`, `matrix` [true][predicted]}, for at most 200 classes;
    - `per_class`: [{`label`, `precision`, `recall`, `f1`, `support`}];
    - `scatter`: {`true`, `predicted`}, at most 2000 points of the first output, evenly spaced over the rows;
    - `worst`: the rows with the largest errors, [{`row`, `true`, `predicted`, `probability` | `error`}],
      where `probability` is that of the wrong class.

    Tables that do not apply are None (`worst`: an empty list); without rows, or if an output is not finite,
    none does.
    """
    table: dict[str, Any] = {
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
        return table
    return table | (_of_classes(result, info) if info.task == "classification" else _of_values(result))


def label(value: Any) -> str | int | float | bool:
    """Return a class label as a JSON value; other types become strings."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | bool) else str(plain)


def _of_classes(result: EvaluationResult, info: DataInfo) -> dict[str, Any]:
    """Return the tables of a classification."""
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
    """Return the wrong predictions with the highest probabilities, as rows of JSON."""
    confidence = result.outputs[np.arange(len(result.targets)), scores.predicted]
    wrong = np.flatnonzero(scores.predicted != scores.targets)
    return [
        {
            "row": int(result.ids[index]),
            "true": labels[scores.targets[index]],
            "predicted": labels[scores.predicted[index]],
            "probability": float(confidence[index]),
        }
        for index in wrong[_largest(confidence[wrong])]
    ]


def _of_values(result: EvaluationResult) -> dict[str, Any]:
    """Return the tables of a regression; of several outputs only the first."""
    true, predicted = (  # (rows,) each
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
            for index in _largest(np.abs(errors))
        ],
    }


def _largest(values: Array) -> NDArray[np.int64]:
    """Return the positions of the largest values (rows,), largest first; of equal values the first row."""
    return np.argsort(-values, kind="stable")[:MAX_WORST]
