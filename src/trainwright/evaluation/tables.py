"""The tables of an evaluation as JSON, for reports: `evaluation/<split>.json` in the run directory."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle
from trainwright.evaluation.intervals import intervals
from trainwright.evaluation.metrics import EvaluationResult
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.redact import redacted
from trainwright.tasks.support.columns import as_json
from trainwright.types import DataInfo, SplitName

Json = dict[str, Any]


def tables(result: EvaluationResult, info: DataInfo) -> Json:
    """Return the metrics of an evaluation and the tables that fit its task.

    Keys:
    - `split`, `task`, `target`, `rows`, and `metrics` (NaN and infinities are strings, as in the journal);
    - `intervals`: by metric its 95% interval over the rows, {`low`, `high`, `method`};
    - `confusion`: {`labels`, `matrix` [true][predicted]}, for at most 200 classes;
    - `positive`: of two classes, the label of the positive one, which metrics and figures are of, and
      `positive_reason`, why it is that one (empty: the config says so);
    - `per_class`: [{`label`, `precision`, `recall`, `f1`, `support`}], for each class or label;
    - `scatter`: {`true`, `predicted`}, at most 2000 points of the first output, evenly spaced over the rows;
    - `worst`: the rows with the largest errors, [{`row`, `true`, `predicted`, `probability` | `error`}],
      where `probability` is that of the wrong class;
    - `figures`: what the task draws, each with `kind` (`lines`, `scatter`, `histogram`), `title`, the labels
      of its axes `x` and `y`, a `caption`, and `lines`: [{`name`, `x`, `y`}] (`exact`: with the diagonal;
      `points`: with each point), `xs` and `ys` (`line`: `zero`), or `edges` and `series`: [{`name`,
      `counts`}];
    - `thresholds`: of two classes, what follows from each threshold, see `ranking.thresholds`.

    A run adds `origin` of the rows (`with_origin`), and what it is `compared` with
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
        "intervals": {},
        "confusion": None,
        "positive": None,
        "positive_reason": "",
        "per_class": None,
        "scatter": None,
        "worst": [],
        "figures": [],
        "thresholds": None,
    }
    if len(result.ids) == 0 or not np.isfinite(result.outputs).all():
        return table
    if result.split != "train":  # these rows judge nothing
        table["intervals"] = intervals(result, info, [*result.metrics])
    return table | task.tables(result.scores(task), result.ids)


def with_origin(table: Json, bundle: DataBundle, config: DataConfig | None, split: SplitName) -> Json:
    """Return the tables of a split with the origin of the rows of `worst`.

    Each gets `number`, its position in the source counted from 1 without a header, and `id`, its value in
    the column of identifiers, where these are known. `origin` has the `file` of the rows and the `id` column.
    """
    positions, own = bundle.rows.get(split), bundle.identifiers.get(split)
    file = _file(config, split)
    worst = []
    for row in table["worst"]:
        at = row["row"]
        number = int(positions[at]) + 1 if positions is not None else at + 1 if _is_whole(config) else None
        known = {} if number is None else {"number": number}
        worst.append({**row, **known, **({} if own is None else {"id": as_json(own.values[at])})})
    origin = {"file": file and redacted(file), "id": own and own.column}
    return {**table, "worst": worst, "origin": {key: value for key, value in origin.items() if value}}


def _file(config: DataConfig | None, split: SplitName) -> str | None:
    if config is None:
        return None
    files = {"train": config.train_path, "val": config.val_path, "test": config.test_path}
    return files[split] or config.path


def _is_whole(config: DataConfig | None) -> bool:
    """Return whether each split is a file of its own with all its rows, whose order it keeps."""
    return config is not None and config.train_path is not None and config.missing_target != "drop"
