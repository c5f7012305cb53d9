"""Explain a model by importances, permutation importance, SHAP values and partial dependence, as JSON.

The result is written to `evaluation/explanation.json` of the run directory. It refers to the columns of the
data: features made from one column (one-hot) count as one. It depends only on the model, the rows and
the seed.

Cost for n explained columns (beyond 1000 columns only the 200 most important ones are shuffled):

| part | predicted rows |
| --- | --- |
| permutation importance | 1000 rows * (1 + 5 n), at most 1 million: with more than 200 columns fewer rows |
| SHAP values of trees | 200 rows: the values come from the trees themselves |
| SHAP values of other models | 200 rows * 100 background rows * (2 n + 1), at most 1 million and 500 million
numbers |
| partial dependence | 500 rows * 20 values * 6 columns = 60,000 |

Arrays in memory have at most 10 million numbers each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle, Split
from trainwright.datasets.samples.arrays import is_frame
from trainwright.errors import MissingExtraError, TrainwrightError
from trainwright.evaluation.dependence import partial_dependence
from trainwright.evaluation.explained import Column, ExplainedModel, Json, data_columns, rounded
from trainwright.evaluation.frames import FrameMatrix
from trainwright.evaluation.metrics import LOSS, check_metric
from trainwright.evaluation.permutation import permutation_importance
from trainwright.evaluation.shapley import MAX_LISTED, shap_values, to_json
from trainwright.order import EXPLAIN, permutation, stream_seed
from trainwright.plugins import task_for
from trainwright.require import require
from trainwright.types import FEATURES, TARGET, Array, DataInfo, Predictions, SplitName

log = logging.getLogger("trainwright")

VERSION = 1
SAMPLE = 1000  # rows
MAX_SHUFFLED = 1000  # with more columns than this, only the WIDE_SHUFFLED most important ones are shuffled
WIDE_SHUFFLED = 200
MAX_CURVES = 6  # columns with partial dependence curves
_SAMPLING_STREAM = 0


@dataclass(frozen=True)
class Model:
    """The model to explain: its prediction function, its native object, and the library's importances."""

    predict: Callable[[Split], Iterable[Predictions]]
    native: Any = None
    importance: Mapping[str, Array] = field(default_factory=dict)


def explain(model: Model, bundle: DataBundle, metric: str, seed: int, *, in_full: bool = True) -> Json:
    """Explain a model on a sample of the test split (if there is none, of the validation or training split).

    Args:
        model: The model to explain; it is called from this thread only. Its `TrainwrightError`s pass through.
        bundle: The data set.
        metric: The metric for permutation importance, with or without a split's prefix. If it is NaN for
            these rows, the loss is used instead.
        seed: Seed of the sample, the shuffling and the sampled SHAP values.
        in_full: False computes only the library's own importances, which need no predictions.

    Returns:
        JSON with the keys `version`, `split`, `rows` (size of the sample), `columns` (number of columns),
        `task`, `target`, `notes` (what is left out, and why), `importance`: [{`kind`, `features`: [{`name`,
        `value`}]}], `permutation`: see `permutation_importance`, or None, `shap`: see `shapley.to_json`, or
        None, and `dependence`: a list, see `partial_dependence`. Numbers that are not finite are strings, as
        in the journal.

    Raises:
        InputError: The metric does not exist, or is not for this task.
    """
    metric = check_metric(metric, bundle.info.task)
    split, rows = _split(bundle)
    explanation: Json = {
        "version": VERSION,
        "split": split,
        "rows": 0,
        "columns": 0,
        "task": bundle.info.task,
        "target": bundle.info.target,
    }
    explanation |= {"notes": [], "importance": [], "permutation": None, "shap": None, "dependence": []}
    if reason := _why_not(bundle.info, rows):
        return explanation | {"notes": [reason]}
    explained = _explained_model(model, bundle, rows, stream_seed(seed, EXPLAIN))
    explanation |= {"rows": len(explained.features), "columns": len(explained.columns)}
    if not in_full:
        return explanation | {"importance": _by_library(explained, model.importance, explanation["notes"])}
    if split == "train":
        explanation["notes"].append(
            "there is no test or validation split: the explained rows are training rows"
        )
    if not np.isfinite(explained.all_outputs(explained.features)).all():
        return explanation | {
            "notes": [
                *explanation["notes"],
                "nothing is explained: the model gives outputs that are not finite",
            ]
        }
    return explanation | _parts(explained, model, metric, explanation["notes"])


def _split(bundle: DataBundle) -> tuple[SplitName, Split]:
    """Return the name and rows of the first split that is not empty: test, validation, training."""
    order: tuple[SplitName, ...] = ("test", "val", "train")
    name = next(name for name in order if name in bundle.splits and len(bundle.splits[name]))
    return name, bundle.splits[name]


def _why_not(info: DataInfo, split: Split) -> str:
    """Return the reason why the data cannot be explained; empty if they can."""
    if task_for(info).is_open:
        return f"the task is {info.task}, of which no answer is known: only the loss"
    if list(info.inputs) != [FEATURES]:
        return f"a model with the inputs {', '.join(info.inputs)} cannot be explained: it needs columns"
    if len(info.input_shape) != 1:
        return (
            f"samples of shape {tuple(info.input_shape)} have no columns: only tabular data can be explained"
        )
    features = split.take(np.zeros(1, dtype=np.int64))[FEATURES]
    if not is_frame(features) and features.dtype.kind not in "fiub":
        return f"features of dtype {features.dtype} cannot be explained: they must be numbers"
    return ""


def _explained_model(model: Model, bundle: DataBundle, split: Split, seed: int) -> ExplainedModel:
    """Return the model with a random sample of the split's rows."""
    ids = permutation(stream_seed(seed, _SAMPLING_STREAM), len(split))[:SAMPLE]
    batch, predict = split.take(ids), model.predict
    features, columns = batch[FEATURES], data_columns(bundle.info, bundle.preparation)
    if is_frame(features):
        rows = FrameMatrix(features)
        features, columns, predict = rows.matrix, rows.columns, rows.predicting(predict)
    return ExplainedModel(
        predict,
        bundle.info,
        columns,
        features,
        batch[TARGET],
        seed,
    )


def _parts(explained: ExplainedModel, model: Model, metric: str, notes: list[str]) -> Json:
    """Compute the four parts of an explanation; append to `notes` what is left out."""
    importance = _by_library(explained, model.importance, notes)
    with _timed("SHAP values"):
        shap = _shap(explained, model.native, notes)
    by_importance = _names(shap or next(iter(importance), {}))
    shuffled = _to_shuffle(explained, by_importance, notes)
    with _timed("permutation importance"):
        permuted = permutation_importance(explained, metric, shuffled) if shuffled else None
        if permuted is None and shuffled and metric != LOSS:
            notes.append(f"{metric} is not defined for these rows: permutation importance uses the loss")
            permuted = permutation_importance(explained, LOSS, shuffled)
    with _timed("partial dependence"):
        curves = _curves(explained, by_importance if shap else _names(permuted or {}) or by_importance)
    return {"importance": importance, "permutation": permuted, "shap": shap, "dependence": curves}


def _names(measure: Json) -> list[str]:
    """Return the column names of a measure of importance, most important first."""
    return [entry["name"] for entry in measure.get("features", [])]


@contextmanager
def _timed(what: str) -> Iterator[None]:
    """Log at debug level how long the body took."""
    start = time.perf_counter()
    yield
    log.debug("%s took %.1f s", what, time.perf_counter() - start)


def _by_library(explained: ExplainedModel, measures: Mapping[str, Array], notes: list[str]) -> list[Json]:
    """Return the library's own importances, summed over the features made from one column."""
    importances = []
    for kind, measure in measures.items():
        values = np.asarray(measure, np.float64)
        if values.shape != explained.features.shape[1:]:
            notes.append(
                f"{kind}: the library gave shape {values.shape} for {explained.features.shape[1]} features"
            )
            continue
        sums = [_column_importance(values[list(column.features)]) for column in explained.columns]
        order = np.argsort(-np.abs(np.nan_to_num(sums)), kind="stable")[:MAX_LISTED]
        features = [{"name": explained.columns[i].name, "value": rounded(sums[i])} for i in order]
        importances.append({"kind": str(kind), "features": features})
    return importances


def _column_importance(values: Array) -> float:
    """Return the importance of a column from those of its features; several are summed without signs."""
    return float(values[0] if len(values) == 1 else np.abs(values).sum())


def _shap(explained: ExplainedModel, native: Any, notes: list[str]) -> Json | None:
    """Return the SHAP values as JSON, or None with a note that says why."""
    try:
        values = shap_values(require("shap", "explain"), explained, native)
    except MissingExtraError as error:
        notes.append(f"SHAP values are left out: {error}")
        return None
    except TrainwrightError:
        raise
    except Exception as error:
        notes.append(f"SHAP values are left out: the shap library failed ({type(error).__name__}: {error})")
        return None
    if values is None:
        count = len(explained.columns)
        notes.append(
            f"SHAP values are left out: for {count} columns of such a model they would take too long"
        )
    return to_json(values, explained) if values else None


def _to_shuffle(explained: ExplainedModel, by_importance: Sequence[str], notes: list[str]) -> list[Column]:
    """Return the columns to shuffle: all, or if there are very many the most important by another measure."""
    if len(explained.columns) <= MAX_SHUFFLED:
        return list(explained.columns)
    by_name = {column.name: column for column in explained.columns}
    chosen = [by_name[name] for name in by_importance[:WIDE_SHUFFLED]]
    if chosen:
        which = f"only {len(chosen)} of the {len(by_name)} columns were shuffled"
        notes.append(f"{which}: the most important by another measure")
    else:
        notes.append(
            f"{len(by_name)} columns are too many to shuffle, and there is no other measure to choose by"
        )
    return chosen


def _curves(explained: ExplainedModel, names: Sequence[str]) -> list[Json]:
    """Return the partial dependence of the first columns in `names` that vary in the sample."""
    by_name = {column.name: column for column in explained.columns}
    curves: list[Json] = []
    for name in names:
        if len(curves) < MAX_CURVES and (curve := partial_dependence(explained, by_name[name])) is not None:
            curves.append(curve)
    return curves
