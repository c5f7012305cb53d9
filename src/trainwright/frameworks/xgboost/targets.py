"""Targets of each task as XGBoost takes them: their objectives, and the form of targets and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainwright.frameworks.xgboost.params import OBJECTIVES
from trainwright.types import Array, DataInfo


class Targets:
    """The targets of some data; here one value for each row, or several."""

    task = "regression"  # of the objectives

    def __init__(self, info: DataInfo) -> None:
        self.info = info

    def __str__(self) -> str:
        return "values"

    @property
    def objectives(self) -> Sequence[str]:
        """The objectives that fit, the default first."""
        return [name for name, objective in OBJECTIVES.items() if objective.task == self.task]

    def width(self, objective: str) -> int:  # noqa: ARG002 - of values it does not matter
        """Return the number of outputs that a booster with an objective counts."""
        return self.info.outputs

    def outputs(self, predictions: Array) -> Array:
        """Return a booster's predictions, (rows,) or (rows, outputs), in the form of the task's."""
        return predictions


class _Classes(Targets):
    """Each row is of one class. One output may stand for two classes."""

    task = "classification"

    def __str__(self) -> str:
        return f"{self.info.outputs} classes"

    @property
    def objectives(self) -> Sequence[str]:
        return [name for name in super().objectives if name != "binary:logistic" or self.info.outputs == 2]

    def width(self, objective: str) -> int:
        return 1 if objective == "binary:logistic" else self.info.outputs

    def outputs(self, predictions: Array) -> Array:
        return np.stack([1 - predictions, predictions], axis=1) if predictions.ndim == 1 else predictions


class _Labels(Targets):
    """Each row has any number of labels, and a tree for each of them."""

    def __str__(self) -> str:
        return f"{self.info.outputs} labels"

    @property
    def objectives(self) -> Sequence[str]:
        return ["binary:logistic"]


_OF_TASK: Mapping[str, type[Targets]] = {
    "classification": _Classes,
    "multilabel": _Labels,
    "regression": Targets,
}


def targets_of(info: DataInfo) -> Targets:
    """Return the targets of some data."""
    return _OF_TASK[info.task](info)
