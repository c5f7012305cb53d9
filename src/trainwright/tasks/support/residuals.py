"""The figures of predicted values: the errors, drawn so that a few huge ones do not hide the others."""

from __future__ import annotations

import numpy as np

from trainwright.numerals import number
from trainwright.tasks.base import Floats, Json

MAX_POINTS = 1000
_BARS = 30


def figures(true: Floats, predicted: Floats, target: str) -> list[Json]:
    """Return the figures of the errors, (rows,) each.

    Args:
        true: The targets.
        predicted: The predictions.
        target: The name of the target.
    """
    errors = predicted - true
    return [_against(predicted, errors, target), _histogram(errors, target)]


def _against(predicted: Floats, errors: Floats, target: str) -> Json:
    """Return the errors against the predictions; the largest are always shown."""
    spaced = np.linspace(0, len(errors) - 1, min(len(errors), MAX_POINTS)).astype(np.int64)
    kept = np.unique(np.concatenate([spaced, np.argsort(-np.abs(errors), kind="stable")[:12]]))
    return {
        "kind": "scatter",
        "title": "Errors",
        "x": f"predicted {target}",
        "y": "predicted − true",
        "xs": predicted[kept].tolist(),
        "ys": errors[kept].tolist(),
        "line": "zero",
        "caption": "Good errors lie around 0 without a pattern. Triangles at the frame are points beyond.",
    }


def _histogram(errors: Floats, target: str) -> Json:
    """Return the histogram of the errors between their 1st and 99th percentile; the rest is counted."""
    low, high = (float(value) for value in np.quantile(errors, [0.01, 0.99]))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(errors, _BARS, (low, high))
    beyond = len(errors) - int(counts.sum())
    median = float(np.median(np.abs(errors)))
    largest = float(np.abs(errors).max())
    middle, end = number(median, zeros=False), number(largest, zeros=False)
    caption = f"Half of the errors are within {middle} of 0, and the largest is {end} from it."
    if beyond:
        caption += f" {beyond} beyond the frame {'is' if beyond == 1 else 'are'} not drawn."
    return {
        "kind": "histogram",
        "title": "Distribution of the errors",
        "x": f"error of {target}",
        "edges": edges.tolist(),
        "series": [{"name": "rows", "counts": counts.tolist()}],
        "caption": caption,
    }
