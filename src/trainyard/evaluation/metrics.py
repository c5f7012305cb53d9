"""The metrics by name, and the evaluation of a split.

A metric is named alone (`f1`) or with the prefix of a split (`val_f1`). Every split also has a `loss`, as
computed by the framework, and the measures that a model computes itself. These are shown but never decide
anything, because it is unknown whether higher or lower is better.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from trainyard.errors import InputError, ModelError
from trainyard.evaluation import classification, regression
from trainyard.evaluation.scores import Scores
from trainyard.types import SPLITS, Array, DataInfo, Ids, Metrics, Mode, Predictions, SplitName, Task

LOSS = "loss"


@dataclass(frozen=True)
class Metric:
    """A metric: its task, whether it is minimized or maximized, its description and its function."""

    task: Task
    mode: Mode
    description: str
    function: Callable[[Scores], float]


@dataclass(frozen=True)
class EvaluationResult:
    """The result of evaluating one split.

    `metrics` are named `val_loss`, `val_f1` ...; `outputs`, `targets` and `ids` are those of all rows, in the
    order of the predictions, with shapes and dtypes as in `Predictions`.
    """

    split: SplitName
    metrics: Metrics
    outputs: Array
    targets: Array
    ids: Ids


def _classification() -> dict[str, Metric]:
    task: Task = "classification"
    metrics = {
        "accuracy": Metric(
            task, "max", "share of rows whose class was predicted correctly", classification.accuracy
        ),
        "balanced_accuracy": Metric(
            task, "max", "mean recall of the classes", classification.balanced_accuracy
        ),
        "roc_auc": Metric(task, "max", "area under the ROC curve, one-vs-rest", classification.roc_auc),
        "average_precision": Metric(
            task, "max", "area under the precision-recall curve", classification.average_precision
        ),
        "log_loss": Metric(
            task, "min", "mean negative log of the true class's probability", classification.log_loss
        ),
        "brier": Metric(task, "min", "Brier score: squared error of the probabilities", classification.brier),
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
        "max_error": Metric("regression", "min", "largest absolute error", regression.max_error),
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
    """Return the names of the metrics of a task (None: of all tasks), without `loss`."""
    return [name for name, metric in METRICS.items() if task in (None, metric.task)]


def default_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics that are computed if the config names none."""
    return DEFAULTS[task]


def without_prefix(metric: str) -> str:
    """Return a metric's name without the split's prefix: `val_f1` -> `f1`."""
    split, _, rest = metric.partition("_")
    return rest if split in SPLITS and rest else metric


def check_metric(metric: str, task: Task | None = None) -> str:
    """Check that a metric (or `loss`) exists and fits the task, and return its bare name.

    Raises:
        InputError: The metric does not exist, or belongs to another task.
    """
    name = without_prefix(metric)
    if name == LOSS or (name in METRICS and task in (None, METRICS[name].task)):
        return name
    if name in METRICS:
        raise InputError(
            f"metric {metric!r} is for {METRICS[name].task}, but the task is {task}; allowed: {_listed(task)}"
        )
    near = difflib.get_close_matches(name, [LOSS, *names(task)], n=1)
    hint = f"did you mean {near[0]!r}? Allowed" if near else "allowed"
    raise InputError(f"unknown metric {metric!r}; {hint}: {_listed(task)}")


def _listed(task: Task | None) -> str:
    return ", ".join([LOSS, *sorted(names(task))])


def mode_of(metric: str) -> Mode:
    """Return whether a metric is minimized or maximized; the name may have a split's prefix (`val_loss`).

    Raises:
        InputError: The metric does not exist.
    """
    name = check_metric(metric)
    return "min" if name == LOSS else METRICS[name].mode


def evaluate_predictions(
    predictions: Iterable[Predictions], metrics: Sequence[str], info: DataInfo, prefix: SplitName
) -> EvaluationResult:
    """Compute the loss (mean over the rows) and the metrics of one split.

    A metric that is undefined for these rows is NaN. All metrics are NaN if an output is not finite or there
    are no rows. The model's own measures (`Predictions.measures`) are added, except those that share a name
    with one of our metrics.

    Args:
        predictions: The predictions for all rows of the split.
        metrics: Names of metrics, with or without a split's prefix; may include `loss`.
        info: The description of the data.
        prefix: The name of the split.

    Raises:
        InputError: A metric does not exist, or is not for this task.
        ModelError: The outputs do not have the shape that the data require.
    """
    requested = dict.fromkeys(check_metric(metric, info.task) for metric in metrics)
    parts = list(predictions)
    outputs, targets, ids = _joined(parts, info)
    rows = len(targets)
    values = {f"{prefix}_{LOSS}": sum(part.loss for part in parts) / rows if rows else float("nan")}
    scores = _scores(outputs, targets, info) if rows and np.isfinite(outputs).all() else None
    for name in requested:
        if name != LOSS:
            values[f"{prefix}_{name}"] = METRICS[name].function(scores) if scores else float("nan")
    for name, value in parts[-1].measures.items() if parts else ():
        values.setdefault(f"{prefix}_{name}", value if scores else float("nan"))
    return EvaluationResult(prefix, values, outputs, targets, ids)


def _joined(parts: Sequence[Predictions], info: DataInfo) -> tuple[Array, Array, Ids]:
    """Concatenate the outputs, targets and ids of the parts, and check the shape of the outputs."""
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
            f"the model returned outputs of shape {outputs.shape}; expected {expected}: {one} for each row"
        )
    return outputs, targets, ids


def _scores(outputs: Array, targets: Array, info: DataInfo) -> Scores:
    """Return outputs and targets in the dtypes and shapes that `Scores` requires."""
    if info.task == "classification":
        return Scores(outputs, targets.astype(np.int64, copy=False))
    shape = (len(targets), info.outputs)
    return Scores(outputs.astype(np.float64).reshape(shape), targets.astype(np.float64).reshape(shape))
