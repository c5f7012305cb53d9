"""The metrics by name, and the evaluation of a split.

A metric's name stands alone (`f1`) or behind the split that it speaks of (`val_f1`). Every split has a `loss`
besides, as the framework summed it, and the metrics that a model brings itself: these are shown, and decide nothing, as
nobody knows which way is better.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from trainyard.errors import InputError, ModelError
from trainyard.evaluation import classification, regression
from trainyard.evaluation.scores import Scores
from trainyard.types import SPLITS, Array, DataInfo, Ids, Metrics, Predictions, SplitName, Task

Mode = Literal["min", "max"]
LOSS = "loss"


@dataclass(frozen=True)
class Metric:
    """One metric: for which task, whether less or more is better, what it is, and how it is computed."""

    task: Task
    mode: Mode
    description: str
    function: Callable[[Scores], float]


@dataclass(frozen=True)
class EvaluationResult:
    """What the evaluation of one split gave.

    `metrics` are named `val_loss`, `val_f1` ...; `outputs`, `targets` and `ids` are those of all rows, in the order
    they came, as in `Predictions`.
    """

    split: SplitName
    metrics: Metrics
    outputs: Array
    targets: Array
    ids: Ids


def _classification() -> dict[str, Metric]:
    task: Task = "classification"
    metrics = {
        "accuracy": Metric(task, "max", "share of rows whose class was predicted", classification.accuracy),
        "balanced_accuracy": Metric(
            task, "max", "mean recall of the classes", classification.balanced_accuracy
        ),
        "roc_auc": Metric(
            task, "max", "area under the ROC curve, one class against the rest", classification.roc_auc
        ),
        "average_precision": Metric(
            task, "max", "area under the precision-recall curve", classification.average_precision
        ),
        "log_loss": Metric(
            task, "min", "mean negative log of the true class's probability", classification.log_loss
        ),
        "brier": Metric(task, "min", "mean squared error of the probabilities", classification.brier),
        "mcc": Metric(task, "max", "Matthews correlation coefficient", classification.mcc),
        "kappa": Metric(task, "max", "Cohen's kappa: agreement beyond chance", classification.kappa),
    }
    for k in (3, 5):
        text = f"share of rows whose class is among the {k} most probable"
        metrics[f"top_{k}_accuracy"] = Metric(task, "max", text, classification.top_k_accuracy(k))
    for field in ("f1", "precision", "recall"):
        metrics[field] = Metric(
            task, "max", f"{field}, macro average", classification.averaged(field, "macro")
        )
        for average in classification.AVERAGES:
            text = (
                f"{field} of the second of two classes"
                if average == "binary"
                else f"{field}, {average} average"
            )
            metrics[f"{field}_{average}"] = Metric(task, "max", text, classification.averaged(field, average))
    return metrics


def _regression() -> dict[str, Metric]:
    return {
        "mse": Metric("regression", "min", "mean squared error", regression.mse),
        "rmse": Metric("regression", "min", "root of the mean squared error", regression.rmse),
        "mae": Metric("regression", "min", "mean absolute error", regression.mae),
        "medae": Metric("regression", "min", "median absolute error", regression.medae),
        "max_error": Metric("regression", "min", "greatest absolute error", regression.max_error),
        "mape": Metric("regression", "min", "mean absolute error as a share of the target", regression.mape),
        "r2": Metric("regression", "max", "coefficient of determination", regression.r2),
        "explained_variance": Metric(
            "regression", "max", "explained share of the variance", regression.explained_variance
        ),
    }


METRICS: Mapping[str, Metric] = MappingProxyType({**_classification(), **_regression()})
DEFAULTS: Mapping[Task, tuple[str, ...]] = {
    "classification": ("accuracy", "f1"),
    "regression": ("rmse", "mae", "r2"),
}


def names(task: Task | None = None) -> list[str]:
    """The names of the metrics, of all tasks or of one; `loss` is none of them, as every split has it."""
    return [name for name, metric in METRICS.items() if task in (None, metric.task)]


def default_metrics(task: Task) -> tuple[str, ...]:
    """The metrics that are computed where the config names none."""
    return DEFAULTS[task]


def bare(metric: str) -> str:
    """The name without the split: `val_f1` -> `f1`."""
    split, _, rest = metric.partition("_")
    return rest if split in SPLITS and rest else metric


def check(metric: str, task: Task | None = None) -> str:
    """The bare name of a metric, `loss` among them, that exists and fits the task.

    Raises:
        InputError: there is no such metric, or it belongs to another task.
    """
    name = bare(metric)
    if name == LOSS or (name in METRICS and task in (None, METRICS[name].task)):
        return name
    if name in METRICS:
        raise InputError(
            f"metric {metric!r} is for {METRICS[name].task}, this is {task}: choose among {_listed(task)}"
        )
    near = difflib.get_close_matches(name, [LOSS, *names(task)], n=1)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    raise InputError(f"no metric is named {metric!r}: {hint} are {_listed(task)}")


def _listed(task: Task | None) -> str:
    return ", ".join([LOSS, *sorted(names(task))])


def mode_of(metric: str) -> Mode:
    """Whether less or more of a metric is better; its name may stand behind a split's (`val_loss`, `test_accuracy`).

    Raises:
        InputError: there is no such metric.
    """
    name = check(metric)
    return "min" if name == LOSS else METRICS[name].mode


def evaluate(
    predictions: Iterable[Predictions], metrics: Sequence[str], info: DataInfo, prefix: SplitName
) -> EvaluationResult:
    """Computes the loss (mean over the rows) and `metrics` of one split.

    `metrics` may be bare or stand behind a split's name, and may contain `loss`; `prefix` is the split, `val`. A metric
    that is not defined for these rows is NaN, and so are all where the model gave values that are not finite, or there
    are no rows. What the model measures itself (`Predictions.measures`) is added, unless a metric of ours has its name.

    Raises:
        InputError: a metric is unknown, or is not for this task.
        ModelError: the outputs do not have the shape that the data asks for.
    """
    wanted = dict.fromkeys(check(metric, info.task) for metric in metrics)
    parts = list(predictions)
    outputs, targets, ids = _joined(parts, info)
    rows = len(targets)
    found = {f"{prefix}_{LOSS}": sum(part.loss for part in parts) / rows if rows else float("nan")}
    scores = _scores(outputs, targets, info) if rows and np.isfinite(outputs).all() else None
    for name in wanted:
        if name != LOSS:
            found[f"{prefix}_{name}"] = METRICS[name].function(scores) if scores else float("nan")
    for name, value in parts[-1].measures.items() if parts else ():
        found.setdefault(f"{prefix}_{name}", value if scores else float("nan"))
    return EvaluationResult(prefix, found, outputs, targets, ids)


def _joined(parts: Sequence[Predictions], info: DataInfo) -> tuple[Array, Array, Ids]:
    if not parts:
        return np.empty((0, info.outputs), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
    columns = (
        [part.outputs for part in parts],
        [part.targets for part in parts],
        [part.ids for part in parts],
    )
    outputs, targets, ids = (column[0] if len(column) == 1 else np.concatenate(column) for column in columns)
    expected: tuple[int, ...] = (len(targets), info.outputs)
    fits = outputs.shape == expected or (
        info.task == "regression" and outputs.size == targets.size == np.prod(expected)
    )
    if not fits:
        one = "one probability per class" if info.task == "classification" else "one value per target"
        raise ModelError(
            f"the model gave outputs of shape {outputs.shape}; {expected} is needed: {one} for each row"
        )
    return outputs, targets, ids


def _scores(outputs: Array, targets: Array, info: DataInfo) -> Scores:
    if info.task == "classification":
        return Scores(outputs, targets.astype(np.int64, copy=False))
    shape = (len(targets), info.outputs)
    return Scores(outputs.astype(np.float64).reshape(shape), targets.astype(np.float64).reshape(shape))
