"""The tables of an evaluation as JSON, for reports: `evaluation/<split>.json` in the run directory."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.evaluation.metrics import EvaluationResult
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.types import DataInfo


def tables(result: EvaluationResult, info: DataInfo) -> dict[str, Any]:
    """Return the metrics of an evaluation and the tables that fit its task.

    Keys:
    - `split`, `task`, `target`, `rows`, and `metrics` (NaN and infinities are strings, as in the journal);
    - `confusion`: {`labels`, `matrix` [true][predicted]}, for at most 200 classes;
    - `positive`: of two classes, the label of the one that `f1`, `precision` and `recall` are of;
    - `per_class`: [{`label`, `precision`, `recall`, `f1`, `support`}], for each class or label;
    - `scatter`: {`true`, `predicted`}, at most 2000 points of the first output, evenly spaced over the rows;
    - `worst`: the rows with the largest errors, [{`row`, `true`, `predicted`, `probability` | `error`}],
      where `probability` is that of the wrong class;
    - `figures`: what the task draws, each with `kind` (`lines`, `scatter`, `histogram`), `title`, the labels
      of its axes `x` and `y`, a `caption`, and `lines`: [{`name`, `x`, `y`}] (`exact`: with the diagonal;
      `points`: with each point), `xs` and `ys` (`line`: `zero`), or `edges` and `series`: [{`name`,
      `counts`}];
    - `thresholds`: of two classes, what follows from each threshold, see `ranking.thresholds`.

    A run adds `origin` of the rows (`evaluation.origin`), and what it is `compared` with
    (`evaluation.baselines`).

    Tables that do not apply are None (`worst`: an empty list); without rows, or if an output is not finite,
    none does.
    """
    task = task_for(info)
    table: dict[str, Any] = {
        "split": result.split,
        "task": info.task,
        "target": info.target,
        "metrics": {name: finite(value) for name, value in result.metrics.items()},
        "rows": len(result.ids),
        "confusion": None,
        "positive": None,
        "per_class": None,
        "scatter": None,
        "worst": [],
        "figures": [],
        "thresholds": None,
    }
    if len(result.ids) == 0 or not np.isfinite(result.outputs).all():
        return table
    return table | task.tables(result.scores(task), result.ids)
