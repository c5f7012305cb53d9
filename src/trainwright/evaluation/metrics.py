"""The metrics by name, and the evaluation of a split.

A metric is named alone (`f1`) or with the prefix of a split (`val_f1`), a user's own by its import path
(`mine:profit`). Every split also has a `loss`, as
computed by the framework, and the measures that a model computes itself. These are shown but never decide
anything, because it is unknown whether higher or lower is better.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from trainwright import plugins
from trainwright.config.metrics import custom_name, metric_path, of_head, of_task
from trainwright.config.schema import RunConfig
from trainwright.config.synonyms import fold
from trainwright.config.words import SHORT, some
from trainwright.errors import InputError
from trainwright.evaluation.custom import accumulator, custom_metric
from trainwright.plugins import task_for, task_of
from trainwright.tasks.base import UNBOUNDED, Bounds, Metric, Scores, Task
from trainwright.tasks.support.accumulators import Accumulator
from trainwright.types import SPLITS, Array, DataInfo, Ids, Metrics, Mode, Predictions, SplitName

LOSS = "loss"
# Metric -> its names in other libraries and papers. Case, dashes and underscores do not matter.
_OTHER_NAMES = {
    "accuracy": "acc accuracy_score top1 top_1_accuracy categorical_accuracy binary_accuracy",
    "average_precision": "ap average_precision_score pr_auc prauc auc_pr aucpr auprc",
    "balanced_accuracy": "bacc balanced_acc balanced_accuracy_score uar",
    "bits_per_byte": "bpb",
    "brier": "brier_score brier_score_loss neg_brier_score",
    "explained_variance": "explained_variance_score",
    "f1": "f1_score f_score f_measure",
    "f1_macro": "macro_f1",
    "f1_micro": "micro_f1",
    "f1_weighted": "weighted_f1",
    "dice": "dice_score dice_coefficient mean_dice dsc",
    "iou": "mean_iou miou jaccard_index mean_jaccard",
    "kappa": "cohen_kappa cohen_kappa_score cohens_kappa",
    "log_loss": "logloss mlogloss multi_logloss binary_logloss neg_log_loss nll xent cross_entropy",
    "mae": "l1 mean_absolute_error neg_mean_absolute_error",
    "mape": "mean_absolute_percentage_error neg_mean_absolute_percentage_error",
    "mcc": "matthews matthews_corrcoef",
    "medae": "median_absolute_error neg_median_absolute_error",
    "mse": "l2 mean_squared_error neg_mean_squared_error",
    "perplexity": "ppl",
    "pixel_accuracy": "pixel_acc",
    "precision": "precision_score",
    "precision_macro": "macro_precision",
    "precision_micro": "micro_precision",
    "precision_weighted": "weighted_precision",
    "r2": "r2_score r_squared coefficient_of_determination",
    "recall": "recall_score sensitivity tpr",
    "recall_macro": "macro_recall",
    "recall_micro": "micro_recall",
    "recall_weighted": "weighted_recall",
    "rmse": "root_mean_squared_error neg_root_mean_squared_error",
    "roc_auc": "auc auroc roc roc_auc_score roc_auc_ovr auc_roc area_under_roc area_under_curve",
    "subset_accuracy": "exact_match",
    "top_3_accuracy": "top3 top3_accuracy",
    "top_5_accuracy": "top5 top5_accuracy",
}


@dataclass(frozen=True)
class EvaluationResult:
    """The result of evaluating one split.

    `metrics` are named `val_loss`, `val_f1` ...; `outputs`, `targets` and `ids` are those of all rows, in the
    order of the predictions, with shapes and dtypes as in `Predictions`. `weights` are those of the rows, if
    they have any.
    """

    split: SplitName
    metrics: Metrics
    outputs: Array
    targets: Array
    ids: Ids
    weights: Array | None = None

    def scores(self, task: Task) -> Scores:
        """Return what metrics are computed from; all outputs must be finite."""
        scores = task.scores(self.outputs, self.targets)
        return scores if self.weights is None else replace(scores, weights=self.weights)


@cache
def _metrics() -> Mapping[str, Mapping[str, Metric]]:
    """Return the metrics by name, each by the names of the tasks that have one of this name."""
    metrics: dict[str, dict[str, Metric]] = {}
    for task, cls in plugins.adapters("task"):
        for name, metric in cls.metrics.items():
            metrics.setdefault(name, {})[task] = metric
    return metrics


def names(task: str | None = None) -> list[str]:
    """Return the names of the metrics of a task (None: of all tasks), without `loss`."""
    return list(_metrics() if task is None else task_of(task).metrics)


def _of_parameter(name: str) -> str | None:
    """Return the task of a metric with a parameter in its name, such as `pinball_0.9`; None of others."""
    if name in _metrics():
        return None
    return next((task for task, cls in plugins.adapters("task") if name in cls.metrics), None)


def default_metrics(task: str) -> Sequence[str]:
    """Return the metrics that are computed if the config names none."""
    return task_of(task).default_metrics


def wanted_metrics(config: RunConfig, info: DataInfo) -> list[str]:
    """Return the metrics to compute: those of the config or the task, and those that decide something.

    Metrics of the user's own are import paths.
    """
    listed = config.evaluation.metrics
    usual = list(task_for(info).metrics_by_default)
    if (quantile := quantile_of(config)) is not None:
        usual = [pinball_at(quantile), "mae"]
    chosen = usual if listed is None else list(listed)
    deciding = (metric_path(config, metric) for metric in of_task(config))
    return list(dict.fromkeys([*chosen, *deciding]))


def quantile_of(config: RunConfig) -> float | None:
    """Return the quantile that a config's model predicts; None if its objective is another one."""
    name = config.model.framework or plugins.framework_of(config.model.type)
    quantile: float | None = None if name is None else plugins.adapter("framework", name).quantile(config)
    return quantile


def pinball_at(quantile: float) -> str:
    """Return the name of the pinball loss at a quantile."""
    return f"pinball_{quantile:.12g}"


def tasks_with(metric: str) -> list[str]:
    """Return the names of the tasks that have a metric of this bare name."""
    found = _of_parameter(metric)
    return list(_metrics()[metric]) if found is None else [found]


def meant(name: str) -> str | None:
    """Return the metric that another common name means (`auc`), or None; no name has a split's prefix."""
    metric = _other_names().get(fold(name))
    return metric if metric in _metrics() else None


@cache
def _other_names() -> dict[str, str]:
    ours = {fold(name): name for name in _OTHER_NAMES}
    return ours | {fold(other): name for name, others in _OTHER_NAMES.items() for other in others.split()}


def without_prefix(metric: str) -> str:
    """Return a metric's name without the split's prefix: `val_f1` -> `f1`; `mine:profit` -> `profit`."""
    if ":" in metric:
        return custom_name(metric)
    split, _, rest = metric.partition("_")
    return rest if split in SPLITS and rest else metric


def check_metric(metric: str, task: str | None = None) -> str:
    """Check that a metric (or `loss`) exists and fits the task, and return its bare name, or import path.

    Raises:
        InputError: The metric does not exist, or belongs to another task.
    """
    if ":" in metric:
        custom_metric(metric, None if task is None else task_of(task))
        return metric
    name = without_prefix(metric)
    if (found := _of_parameter(name)) is not None and task in (None, found):
        return name
    known = {LOSS, *names(task)}
    if name not in known and name not in _metrics():
        name = meant(name) or name
    if name in known:
        return name
    if name in _metrics():
        tasks = " and ".join(_metrics()[name])
        raise InputError(
            f"metric {metric!r} is for {tasks}, but the task is {task}; allowed: {_usual(task, name)}"
        )
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? Allowed" if near else "allowed"
    raise InputError(f"unknown metric {metric!r}; {hint}: {_listed(task, name)}")


def _listed(task: str | None, name: str) -> str:
    return some([LOSS, *sorted(names(task))], name, "metric")


def _usual(task: str | None, name: str) -> str:
    """Return those metrics that a task computes by default, if too many are allowed to list them."""
    if task is None or len(names(task)) <= SHORT:
        return _listed(task, name)
    usual = ", ".join([LOSS, *default_metrics(task)])
    return f"{usual} ... (all: `trainwright config names metric`)"


def find_metric(metric: str, task: type[Task]) -> Metric:
    """Return the metric of a task, or a user's own.

    Args:
        metric: What `check_metric` returned, but not `loss`.
        task: The task.
    """
    return custom_metric(metric, task) if ":" in metric else task.metrics[metric]


def bounds_of(metric: str, task: Task) -> Bounds:
    """Return the lowest and highest value of a metric of an evaluation (`test_f1`, `test_rmse_price`)."""
    bare = without_prefix(metric)
    names = [bare, *(bare.removesuffix(f"_{target}") for target in task.info.target_names)]
    return next((task.metrics[name].bounds for name in names if name in task.metrics), UNBOUNDED)


def mode_of(metric: str) -> Mode:
    """Return whether a metric is minimized or maximized; the name may have a split's prefix (`val_loss`).

    Metrics of one name have the same mode in all tasks.

    Raises:
        InputError: The metric does not exist, or is a user's own that does not say.
    """
    name = check_metric(metric)
    if name == LOSS:
        return "min"
    if (task := _of_parameter(name)) is not None:
        return task_of(task).metrics[name].mode or "min"
    mode = (custom_metric(name) if ":" in name else next(iter(_metrics()[name].values()))).mode
    if mode is None:
        function = name.rpartition(":")[2]
        raise InputError(
            f"whether a higher {without_prefix(name)} is better is not known: set `mode` beside the metric "
            f"(max or min), or {function}.greater_is_better = True (or False) in your module"
        )
    return mode


def mode_in(config: RunConfig, metric: str) -> Mode:
    """Return the mode of a metric that a config names: its own (`val_profit`), a head's (`val_rmse_cost`)."""
    head = of_head(config, metric)
    return mode_of(metric_path(config, metric if head is None else head[1]))


def explained_metric(config: RunConfig) -> str:
    """Return the metric by which the importance of columns is measured: the best model's, else the loss."""
    metric = metric_path(config, config.checkpoint.metric)
    is_custom = ":" in metric
    if of_head(config, metric) is not None or (is_custom and adds_up(metric)):
        return LOSS
    return LOSS if is_custom and custom_metric(metric).mode is None else metric


def evaluate_predictions(
    predictions: Iterable[Predictions], metrics: Sequence[str], info: DataInfo, prefix: SplitName
) -> EvaluationResult:
    """Compute the loss (mean over the rows) and the metrics of one split, by the weights of the rows.

    A metric that is undefined for these rows is NaN. All metrics are NaN if an output is not finite or there
    are no rows. With several named targets, a metric is also given for each, as `val_rmse_price`. The model's
    own measures (`Predictions.measures`) are added, except those that share a name
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
    task = task_for(info)
    requested = dict.fromkeys(check_metric(metric, info.task) for metric in metrics)
    parts = list(predictions)
    outputs, targets, ids = _joined(parts, task)
    rows, weights = len(targets), _weights(parts)
    result = EvaluationResult(prefix, {}, outputs, targets, ids, weights)
    scores = result.scores(task) if rows and np.isfinite(outputs).all() else None
    total = rows if weights is None else float(weights.sum())
    mean = sum(part.loss for part in parts) / total if total else float("nan")
    own = task.loss(scores) if scores else None
    values = {f"{prefix}_{LOSS}": mean if own is None else own}
    by_row = [name for name in requested if name != LOSS and not adds_up(name)]
    for name in requested:
        if name in by_row:
            value = find_metric(name, type(task)).function(scores) if scores else float("nan")
            values[f"{prefix}_{without_prefix(name)}"] = value
        elif name != LOSS:
            values[f"{prefix}_{without_prefix(name)}"] = _added_up(name, parts) if scores else float("nan")
    for target, alone in task.by_target(scores).items() if scores else ():
        for name in by_row:
            value = find_metric(name, type(task)).function(alone)
            values[f"{prefix}_{without_prefix(name)}_{target}"] = value
    if total:
        values |= _of_heads(parts, prefix, total, weights)
    for name in {name: None for part in parts for name in part.logged}:
        sums = [part.logged[name] for part in parts if name in part.logged]
        values.setdefault(f"{prefix}_{name}", sum(one for one, _ in sums) / sum(rows for _, rows in sums))
    for name, value in parts[-1].measures.items() if parts else ():
        values.setdefault(f"{prefix}_{name}", value if scores else float("nan"))
    return replace(result, metrics=values)


def accumulators(metrics: Iterable[str]) -> list[Accumulator]:
    """Return those of some metrics, as a config names them, that add up by themselves."""
    found = (accumulator(metric) for metric in metrics if ":" in metric)
    return [one for one in found if one is not None]


def adds_up(metric: str) -> bool:
    """Return whether a metric is a user's own that adds up by itself, and is not computed from scores."""
    return bool(accumulators([metric]))


def _added_up(metric: str, parts: Sequence[Predictions]) -> float:
    """Return a metric that adds up by itself, of what it has counted on the parts."""
    (one,) = accumulators([metric])
    return one.value(part.counts[one.name] for part in parts)


def _of_heads(
    parts: Sequence[Predictions], prefix: SplitName, total: float, weights: Array | None
) -> Metrics:
    """Return the losses and metrics of several heads, such as `val_loss_cost` and `val_rmse_cost`."""
    values: Metrics = {}
    for name, one in parts[0].heads.items():
        heads = [part.heads[name] for part in parts]
        values[f"{prefix}_{LOSS}_{name}"] = sum(head.loss for head in heads) / total
        if one.info is None:
            continue
        task = task_for(one.info)
        outputs, targets = (
            np.concatenate([getattr(head, of) for head in heads]) for of in ("outputs", "targets")
        )
        task.check_outputs(outputs, targets)
        is_finite = np.isfinite(outputs).all()
        scores = replace(task.scores(outputs, targets), weights=weights) if is_finite else None
        for metric in task.default_metrics if one.metrics is None else one.metrics:
            found = check_metric(metric, task.name)
            value = find_metric(found, type(task)).function(scores) if scores else float("nan")
            values[f"{prefix}_{without_prefix(found)}_{name}"] = value
    return values


def _weights(parts: Sequence[Predictions]) -> Array | None:
    """Return the weights of all rows, (rows,) float64; None if they have none."""
    known = [part.weights for part in parts if part.weights is not None]
    return np.concatenate(known).astype(np.float64) if known and len(known) == len(parts) else None


def _joined(parts: Sequence[Predictions], task: Task) -> tuple[Array, Array, Ids]:
    """Concatenate the outputs, targets and ids of the parts, and check the shape of the outputs."""
    if not parts:
        return np.empty((0, task.info.outputs), np.float32), task.blank_targets(0), np.empty(0, np.int64)
    columns = (
        [part.outputs for part in parts],
        [part.targets for part in parts],
        [part.ids for part in parts],
    )
    outputs, targets, ids = (column[0] if len(column) == 1 else np.concatenate(column) for column in columns)
    task.check_outputs(outputs, targets)
    return outputs, targets, ids
