"""A task of the user's own: nothing is known of its targets and outputs but the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from trainwright.errors import DataError, ModelError
from trainwright.tasks.base import Columns, ExplainedOutput, Floats, Json, Metric, Scores, Task
from trainwright.types import Array, Ids, SplitName


class CustomLossTask(Task):
    """Train by a loss of the user's own, or the model's: without a target, or with any.

    Autoencoders, diffusion and contrastive models have no target, `data.target: null`; detection has boxes of
    any number. A batch then holds no target, or it holds arrays of any shape, lists and mappings of them. An
    evaluation is the loss alone; own metrics that add up by themselves get what the model returns, and the
    batch. The loss of a row stands for its outputs, which are too large to keep. The predictions of other
    rows are what the model returns: an array (rows, ...), or of several a structured one, (rows,).
    """

    name: ClassVar[str] = "custom_loss"
    metrics: ClassVar[Mapping[str, Metric]] = {}
    default_metrics: ClassVar[Sequence[str]] = ()
    usual_metric: ClassVar[str] = ""
    losses: ClassVar[Sequence[str]] = ("model",)
    sums: ClassVar[Sequence[str]] = ("loss",)
    is_open: ClassVar[bool] = True
    wants: ClassVar[str] = "anything"

    @classmethod
    def accepts(cls, targets: Array) -> bool:  # noqa: ARG003 - all are
        """Return True."""
        return True

    @classmethod
    def encode_arrays(
        cls,
        targets: Mapping[SplitName, Array],
        ignored: int | None,  # noqa: ARG003 - as the task has no masks
    ) -> tuple[list[Any] | None, dict[SplitName, Array]]:
        """Return the targets as they are, but floats as float32.

        Raises:
            DataError: They hold no numbers.
        """
        for name, one in targets.items():
            if one.dtype.kind not in "biuf":
                raise DataError(f"the {name} targets are {one.dtype}; give numbers")
        return None, {
            name: one.astype(np.float32) if one.dtype.kind == "f" else one for name, one in targets.items()
        }

    def blank_targets(self, rows: int) -> Array:
        """Return (rows, 0) float64: an evaluation keeps no targets."""
        return np.empty((rows, 0))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(outputs,) of a model of ours, which gives as many values as a row of features has."""
        return (self.info.outputs,)

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check that there is a loss for each row.

        Raises:
            ModelError: There is not.
        """
        if outputs.shape != (len(targets), 1):
            raise ModelError(f"outputs of shape {outputs.shape} given, for the losses of {len(targets)} rows")

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return the losses, (rows, 1)."""
        return Scores(type(self), outputs, targets)

    def as_values(self, targets: Array) -> Floats | None:  # noqa: ARG002 - no answer is known
        """Return None."""
        return None

    def asked(self) -> str:
        """Return that the loss is the model's own."""
        return "make a loss of its own small"

    def columns(self, outputs: Array) -> Columns:
        """Return a column for each output; one with several values has arrays in its cells.

        They are called `prediction`, or `prediction_<name>` where there are several; few values in a row,
        (rows, n), are columns `prediction_0` ...
        """
        if outputs.dtype.names is None:
            return self._columns("prediction", outputs)
        named = {name: outputs[name] for name in outputs.dtype.names}
        return {
            key: column
            for name, values in named.items()
            for key, column in self._columns(f"prediction_{name}", values).items()
        }

    @staticmethod
    def _columns(name: str, values: Array) -> Columns:
        if values.ndim == 1 or values.shape[1:] == (1,):
            return {name: values.reshape(len(values))}
        if values.ndim == 2:
            return {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        return {name: list(values)}

    def target_columns(self, targets: Array) -> Columns:  # noqa: ARG002 - they may have any form
        """Return no columns."""
        return {}

    def tables(self, scores: Scores, ids: Ids) -> Json:  # noqa: ARG002 - the loss says it all
        """Return no tables."""
        return {}

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:  # noqa: ARG002
        """Return no outputs."""
        return []
