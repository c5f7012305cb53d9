"""The `validation_step` and `predict_step` of a module."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from typing import Any

from torch import nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.own.calls import StepCalls
from trainwright.frameworks.torch.own.names import is_given
from trainwright.frameworks.torch.own.step import Step, number_of, returned
from trainwright.frameworks.torch.own.training import STEP, is_manual
from trainwright.tasks.base import Task
from trainwright.types import LoggedValues

log = logging.getLogger("trainwright")
_VALIDATION, _PREDICTION = "validation_step", "predict_step"


class OwnEvaluation:
    """A module that says itself how it is evaluated: by `validation_step`, or as it is trained.

    Args:
        module: The module.
        task: The task. What it predicts of its outputs is not for `predict_step` to say.
    """

    def __init__(self, module: nn.Module, task: Task) -> None:
        has_own = is_given(module, _VALIDATION)
        trains_so = task.is_open and is_given(module, STEP) and not is_manual(module)
        self._method = _VALIDATION if has_own else STEP
        self._judged = StepCalls(module, self._method) if has_own or trains_so else None
        self._predicted = StepCalls(module, _PREDICTION) if is_given(module, _PREDICTION) else None
        # Whether it has a loss of its own, which stands for outputs of any form.
        self.replaces_forward = task.is_open and self._judged is not None
        self.needs_forward = not (task.is_open and is_given(module, STEP))
        if self._predicted is not None and not task.is_open:
            log.warning(
                "the model's predict_step is not called: the predictions of the task %s are made from what "
                "forward returns",
                task.name,
            )
            self._predicted = None

    @property
    def judges(self) -> bool:
        """True if the loss is that of a step."""
        return self._judged is not None

    def predicted(self, batch: Tensors) -> Any:
        """Return what `predict_step` does; None if there is none."""
        if self._predicted is None:
            return None
        with self._predicted.attached():
            return self._predicted(batch, Step(0, 0, lambda *_: None), 0)

    def judged(self, batch: Tensors, rows: int) -> tuple[float | None, LoggedValues]:
        """Return the loss of some rows, a mean, and the sums of the values that the step names.

        Raises:
            ModelError: It returns neither.
        """
        assert self._judged is not None, "`judges` says it"
        values: dict[str, list[float]] = defaultdict(list)

        def note(name: str, value: Any) -> None:
            values[name.removeprefix("val_")].append(float(number_of(name, value, self._method)))

        with self._judged.attached():
            given = self._judged(batch, Step(0, 0, note), 0)
        if given is not None:
            loss, named = returned(given, self._method)
            for name, value in named.items():
                note(name, value)
            if loss is not None:
                values["loss"].append(float(loss))
        if not values:
            raise ModelError(
                f"{self._method} returned nothing, and logs nothing: return a loss, or named values"
            )
        means = {name: some[-1] for name, some in values.items()}
        loss_value = means.pop("loss", None)
        return loss_value, {name: (mean * rows, rows) for name, mean in means.items() if not math.isnan(mean)}
