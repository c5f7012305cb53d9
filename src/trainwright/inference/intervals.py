"""Prediction intervals of regressions by split conformal prediction.

The residuals of rows that the model has not learned from say how far predictions are off: the interval of
level 0.9 reaches to the residual that 90% of them stay below, with the correction for a finite number of
rows (Lei et al. 2018, "Distribution-Free Predictive Inference for Regression"; Vovk et al. 2005). It then
holds the target of a new row with a probability of at least 0.9, whatever the model and the distribution of
errors are, if new rows are like those of validation (exchangeable with them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.errors import InputError
from trainwright.evaluation.metrics import EvaluationResult, quantile_of
from trainwright.plugins import task_of
from trainwright.records.run_dir import RunDir
from trainwright.tasks.base import Floats
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import Array, DataInfo

# Of these, the scale on which errors are alike: the interval of a price is a share of it. Each is one to one
# on all the targets that it takes, which a fitted transformation is not.
_SCALES = ("log1p", "log", "sqrt")
FILE = "evaluation/residuals.json"  # in a run directory
_MEDIAN = 0.5
_KEPT = 1000  # residuals, at most, of each output


@dataclass(frozen=True)
class Residuals:
    """The absolute residuals of the validation rows, on the scale of the intervals.

    Attributes:
        rows: The number of validation rows.
        ranks: (kept,) int64: the ranks of those that are kept, from 1, ascending; of few rows, all are.
        values: (kept, outputs) float64: the residuals of these ranks.
    """

    rows: int
    ranks: Array
    values: Floats

    def at(self, rank: int) -> Floats:
        """Return the residual of a rank, (outputs,), or of the next one that is kept."""
        found: Floats = self.values[int(np.searchsorted(self.ranks, rank))]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {"rows": self.rows, "ranks": self.ranks.tolist(), "values": self.values.tolist()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Residuals:
        """Return the residuals that a run directory holds."""
        return cls(document["rows"], np.array(document["ranks"]), np.array(document["values"]))


@dataclass(frozen=True)
class Intervals:
    """Intervals around predictions.

    Attributes:
        level: The share of new rows whose interval holds their target.
        radius: (outputs,) float64: how far the intervals reach to both sides of a prediction, on its scale.
        rows: The number of rows that they are calibrated on.
        info: The description of the data.
    """

    level: float
    radius: Floats
    rows: int
    info: DataInfo

    def ends(self, outputs: Array) -> tuple[Floats, Floats]:
        """Return the lower and upper ends, (rows, outputs) float64 each, of intervals around predictions."""
        forward, inverse = _scale(self.info)
        values = forward(outputs.astype(np.float64).reshape(len(outputs), -1))
        return inverse(values - self.radius), inverse(values + self.radius)

    def columns(self, outputs: Array) -> Mapping[str, Array]:
        """Return the ends as columns: `lower` and `upper`; of several targets `lower_<name>` and so on."""
        # In the precision of the predictions, so that a file has as many digits of all three.
        with np.errstate(over="ignore"):
            lower, upper = (end.astype(outputs.dtype) for end in self.ends(outputs))
        ends = {"lower": lower, "upper": upper}
        if self.info.outputs == 1:
            return {side: values[:, 0] for side, values in ends.items()}
        names = self.info.target_names or range(self.info.outputs)
        return {
            f"{side}_{name}": ends[side][:, i] for i, name in enumerate(names) for side in ("lower", "upper")
        }


def check_level(level: float, info: DataInfo) -> None:
    """Check that intervals of a level can be made for a task.

    Raises:
        InputError: The task has none, or the level is no share between 0 and 1.
    """
    if not task_of(info.task).gives_amounts:
        raise InputError(f"intervals are for amounts, but the task is {info.task}: leave them out")
    if not 0 < level < 1:
        raise InputError(f"an interval of level {level:g} given; give a share between 0 and 1, such as 0.9")


def residuals(result: EvaluationResult, info: DataInfo) -> Residuals:
    """Return the absolute residuals of an evaluation, on the scale of the intervals.

    Raises:
        InputError: An output is not finite.
    """
    forward, _ = _scale(info)
    outputs, targets = (
        forward(values.astype(np.float64).reshape(len(values), -1))
        for values in (result.outputs, result.targets)
    )
    errors = np.abs(targets - outputs)
    if not np.isfinite(errors).all():
        raise InputError("the predictions for the validation rows are not finite: no intervals follow")
    ranks = np.unique(np.linspace(1, len(errors), min(len(errors), _KEPT)).astype(np.int64))
    return Residuals(len(errors), ranks, np.sort(errors, axis=0)[ranks - 1])


def calibrated(errors: Residuals, level: float, info: DataInfo) -> Intervals:
    """Return the intervals of a level, given the absolute residuals of the rows to calibrate on.

    Of n rows, the radius is the residual of rank ceil((n + 1) * level).

    Raises:
        InputError: There are too few rows for the level.
    """
    rows = errors.rows
    # Rounded: 0.9 * 10 should not be 9.000000000000002.
    rank = math.ceil(round((rows + 1) * level, 9))
    if rank > rows:
        least = math.ceil(round(level / (1 - level), 9))
        raise InputError(
            f"intervals of level {level:g} need at least {least:,} validation rows to be calibrated on, and "
            f"the run has {rows:,}: give a lower level, or train with a larger data.split.val"
        )
    return Intervals(level, errors.at(rank), rows, info)


def chosen_on_validation(run: RunDir, config: RunConfig) -> str | None:
    """Return a sentence if the validation rows also chose the model, so that they flatter it; else None."""
    result = run.result()
    chose = []
    if config.training.early_stopping is not None:
        chose.append("when to stop")
    if result is not None and result.best is not None:
        chose.append("the best step")
    if not chose:
        return None
    return (
        f"the intervals are calibrated on the validation rows, which also chose {' and '.join(chose)}: they "
        "may be a little too narrow"
    )


def around_quantile(config: RunConfig) -> str | None:
    """Return a sentence if the model predicts another quantile than the median; else None."""
    quantile = quantile_of(config)
    if quantile is None or quantile == _MEDIAN:
        return None
    return (
        f"the model predicts the {quantile:g} quantile, and the intervals reach as far below it as above: a "
        "model of the mean or the median has narrower ones"
    )


def _scale(info: DataInfo) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions to the scale on which errors are alike, and back."""
    transform = transform_of(info)
    if transform is None or transform.kind not in _SCALES:
        return np.asarray, np.asarray
    return transform.forward, transform.inverse
