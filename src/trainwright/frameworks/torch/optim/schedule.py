"""Torch's own schedulers, or the user's classes derived from them, as functions of the step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainwright.config.schedules import CustomSchedule
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.support.torch_imports import skip_compiler_import
from trainwright.process.global_random import preserved_global_random
from trainwright.require import import_path

_LENGTHS = ("total_steps", "T_max")  # arguments that are the number of steps, where they are not given


@dataclass(frozen=True)
class TorchSchedule:
    """A class of torch's schedulers; called, it makes the learning rate by step.

    The scheduler varies the rate of an optimizer of its own, step by step from the first one, and the rates
    are kept. So a resume needs none of its state.
    """

    path: str
    scheduler: type[torch.optim.lr_scheduler.LRScheduler]
    params: Mapping[str, Any]

    def __call__(self, base: float, total_steps: int) -> Callable[[int], float]:
        """Return the learning rate by step.

        Raises:
            ModelError: The scheduler rejects its options, needs more than the step, or varies more than the
                learning rate.
        """
        skip_compiler_import(torch.optim.Optimizer.add_param_group)
        rate, second = self._rates(base, total_steps), min(1, total_steps - 1)
        shown = rate(second)  # what is wrong with it shows before the training
        with preserved_global_random():
            again = self._rates(base, total_steps)(second)
        if again != shown:
            raise ModelError(
                f"training.scheduler: {self.path} gave two rates for step {second}, {shown:g} and {again:g}; "
                "they must depend on the step alone, as a resume computes them again"
            )
        return rate

    def _rates(self, base: float, total_steps: int) -> Callable[[int], float]:
        """Return the learning rate by step, of a scheduler that is made for it."""
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=base, momentum=0.5)
        accepted = inspect.signature(self.scheduler).parameters
        lengths = {name: total_steps for name in _LENGTHS if name in accepted and name not in self.params}
        scheduler = self._guarded(lambda: self.scheduler(optimizer, **{**lengths, **self.params}))
        rates: list[float] = []

        def note() -> None:
            rates.append(float(optimizer.param_groups[0]["lr"]))
            if not math.isfinite(rates[-1]):
                raise ValueError(f"its rate of step {len(rates) - 1} is {rates[-1]}")

        def advance() -> None:
            optimizer.step()
            scheduler.step()
            if optimizer.param_groups[0]["momentum"] != 0.5:
                raise ValueError("it varies the momentum, which training.scheduler does not")
            note()

        def rate(step: int) -> float:
            while len(rates) <= step:
                self._guarded(advance)
            return rates[step]

        self._guarded(note)
        return rate

    def _guarded(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            listed = ", ".join(f"{key}={value}" for key, value in self.params.items())
            raise ModelError(
                f"training.scheduler: {self.path} ({listed}) fails: {type(error).__name__}: {error}; "
                "set its arguments beside `type`"
            ) from error


def torch_schedule(schedule: CustomSchedule) -> TorchSchedule | None:
    """Return the schedule of a class of torch's; None if the import path leads to something else.

    Raises:
        ModelError: It cannot be imported.
    """
    try:
        value = import_path(schedule.function)
    except InputError as error:
        raise ModelError(f"training.scheduler: {error}") from error
    if not (isinstance(value, type) and issubclass(value, torch.optim.lr_scheduler.LRScheduler)):
        return None
    if issubclass(value, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ModelError(
            f"training.scheduler: {schedule.function} needs a metric; write type: plateau, metric: val_loss"
        )
    return TorchSchedule(schedule.function, value, schedule.params)
