"""Regression: each row has one value, or several."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from trainwright.tasks.base import CORRELATION, FROM_0, UP_TO_1, Floats, Json, Metric, Scores, Task
from trainwright.tasks.support import residuals, values
from trainwright.tasks.support.transforms import transform_of
from trainwright.tasks.support.worst import largest
from trainwright.types import Ids

MAX_POINTS = 2000  # of the scatter plot


_PINBALL = re.compile(r"pinball_(0?\.\d+)")


class _Metrics(dict[str, Metric]):
    """The metrics by name; those of a quantile, such as `pinball_0.9`, are made when they are asked for."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and quantile_in(name) is not None)

    def __missing__(self, name: str) -> Metric:
        quantile = quantile_in(name)
        if quantile is None:
            raise KeyError(name)
        by_row = values.pinball(quantile)

        def mean(scores: Scores) -> float:
            return float(np.average(by_row(scores), weights=scores.weights))

        return Metric("min", f"pinball loss at the quantile {quantile:g}", mean, by_row, bounds=FROM_0)


def quantile_in(metric: str) -> float | None:
    """Return the quantile that a metric such as `pinball_0.9` is of; None of another one."""
    match = _PINBALL.fullmatch(metric)
    return float(match[1]) if match and 0 < float(match[1]) < 1 else None


class RegressionTask(Task):
    """Predict one value for each row, or several.

    Targets are (rows,) or (rows, outputs) float64, in the data's original units; so are predictions, in the
    precision in which the model answers.
    """

    name: ClassVar[str] = "regression"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "mse": Metric("min", "mean squared error", values.mse, values.squared, bounds=FROM_0),
        "rmse": Metric(
            "min",
            "root of the mean squared error",
            values.rmse,
            paired=values.squared_if_single,
            bounds=FROM_0,
        ),
        "mae": Metric("min", "mean absolute error", values.mae, values.absolute, bounds=FROM_0),
        "medae": Metric("min", "median absolute error", values.medae, bounds=FROM_0),
        "max_error": Metric("min", "largest absolute error", values.max_error, bounds=FROM_0),
        "mape": Metric(
            "min", "mean absolute error as a share of the target", values.mape, values.relative, bounds=FROM_0
        ),
        "smape": Metric(
            "min",
            "absolute error as a share of the mean of target and prediction",
            values.smape,
            bounds=(0.0, 2.0),
        ),
        "wape": Metric(
            "min", "sum of absolute errors as a share of the sum of targets", values.wape, bounds=FROM_0
        ),
        "msle": Metric("min", "mean squared error of log(1 + value)", values.msle, bounds=FROM_0),
        "rmsle": Metric(
            "min", "root of the mean squared error of log(1 + value)", values.rmsle, bounds=FROM_0
        ),
        "poisson_deviance": Metric("min", "mean Poisson deviance", values.poisson_deviance, bounds=FROM_0),
        "gamma_deviance": Metric("min", "mean Gamma deviance", values.gamma_deviance, bounds=FROM_0),
        "r2": Metric(
            "max",
            "coefficient of determination",
            values.r2,
            paired=values.squared_by_variance,
            bounds=UP_TO_1,
        ),
        "explained_variance": Metric(
            "max", "explained share of the variance", values.explained_variance, bounds=UP_TO_1
        ),
        "d2_absolute_error": Metric(
            "max", "explained share of the absolute error", values.d2_absolute_error, bounds=UP_TO_1
        ),
        "pearson": Metric(
            "max", "correlation of targets and predictions", values.pearson, bounds=CORRELATION
        ),
        "spearman": Metric(
            "max", "rank correlation of targets and predictions", values.spearman, bounds=CORRELATION
        ),
    }
    metrics = _Metrics(metrics)
    default_metrics: ClassVar[Sequence[str]] = ("rmse", "mae", "r2")
    judged_by: ClassVar[Sequence[str]] = ("mae", "mse")
    judged_in_words: ClassVar[Mapping[str, str]] = {
        "worse": "A few large errors undo that: by the squared error it is worse.",
        "better": "It avoids large errors: by the squared error it is better.",
    }
    usual_metric: ClassVar[str] = "mse"
    losses: ClassVar[Sequence[str]] = ("mse", "mae", "huber", "l1", "smooth_l1")
    scales_target: ClassVar[bool] = True
    gives_amounts: ClassVar[bool] = True
    hub_tag: ClassVar[str] = "tabular-regression"

    def links(self, *, binary: bool) -> Mapping[str, Callable[[Floats], Floats]]:
        """Return the identity and the exponential; with a transformed target, its inverse after them."""
        links, transform = super().links(binary=binary), transform_of(self.info)
        if transform is None:
            return links

        def after(link: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
            return lambda margins: transform.inverse(link(margins))

        return {f"{transform.kind} of the {unit}": after(link) for unit, link in links.items()}

    def tables(self, scores: Scores, ids: Ids) -> Json:
        """Return `scatter`, `worst` and figures; of several outputs only those of the first."""
        true, predicted = scores.targets[:, 0], scores.outputs[:, 0]  # (rows,) each
        kept = np.unique(np.linspace(0, len(true) - 1, min(len(true), MAX_POINTS)).astype(np.int64))
        errors = predicted - true
        first = {"target": self.info.target_names[0]} if self.info.target_names else {}
        name = str(first.get("target", self.info.target))
        return {
            **first,
            "scatter": {"true": true[kept].tolist(), "predicted": predicted[kept].tolist()},
            "worst": [
                {
                    "row": int(ids[index]),
                    "true": float(true[index]),
                    "predicted": float(predicted[index]),
                    "error": float(errors[index]),
                }
                for index in largest(np.abs(errors))
            ],
            "figures": residuals.figures(true, predicted, name),
        }
