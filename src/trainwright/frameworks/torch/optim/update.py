"""The end of a step: clip the gradients, update the weights, and average these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainwright.config.schema import TrainingConfig
from trainwright.frameworks.torch.optim.build import is_built_in, update_of
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.optim.groups import RATIO
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.precision import Precision


@dataclass(frozen=True)
class Clipping:
    """The clipping of gradients, by their global norm or by value, and whether the norm is measured."""

    norm: float | None = None
    value: float | None = None
    measures_norm: bool = False

    @staticmethod
    def of(training: TrainingConfig) -> Clipping:
        """Return the clipping that the section `training` asks for."""
        return Clipping(training.max_grad_norm, training.max_grad_value, training.log_grad_norm)


class Update:
    """Update the parameters from their gradients, then clear the gradients.

    Args:
        optimizer: The optimizer; a group may have a `lr_ratio`, the share of the learning rate.
        parameters: All that it updates, in the order of the model, in which their norms are added up.
        precision: Scales the loss.
        clipping: How gradients are clipped.
        average: The average of the weights, if there is one.
        strategy: How parameters and gradients are spread over processes; default: this one has all.
        rates: Sets the learning rates of a step, instead of the run's schedule.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        precision: Precision,
        clipping: Clipping = Clipping(),
        average: Average | None = None,
        strategy: Strategy | None = None,
        rates: Callable[[int], None] | None = None,
    ) -> None:
        self._rates = rates
        self.parameters = list(parameters)
        self._optimizer = optimizer
        strategy = strategy or Strategy()
        self._blocks = [strategy.blocks.held(one) for one in self.parameters]
        self._groups = [(group, group.get(RATIO, 1.0)) for group in optimizer.param_groups]
        self._strategy = strategy
        self._apply = strategy.blocks.update(update_of(optimizer), optimizer.param_groups)
        self.may_draw = not is_built_in(optimizer)  # random numbers
        self._scale = precision.scale
        self._clipping = clipping
        self._average = average
        self.norm: Tensor | None = None  # of the last step's gradient, (), on the device

    def __call__(self, step: int, lr: float) -> None:
        """Make the update of a step, counted from 0."""
        if self._rates is not None:
            self._rates(step)
        else:
            for group, ratio in self._groups:
                group["lr"] = lr * ratio
        overflow = None
        if self._scale is not None:
            gradients = [one.grad for one in self._blocks if one.grad is not None]
            overflow = self._scale.unscale(gradients, self._strategy.largest)
        self._clip()
        if overflow is None or not overflow.item():
            with torch.no_grad():  # not every optimizer asks for it itself
                self._apply()  # optimizer.step()
        if self._average is not None:
            self._average.update(step + 1)
        for block in self._blocks:
            block.grad = None

    def _clip(self) -> None:
        clipping = self._clipping
        if clipping.norm is None and clipping.value is None and not clipping.measures_norm:
            return
        if clipping.norm is not None:
            self.norm = self._strategy.clip(self.parameters, clipping.norm)
        elif clipping.measures_norm:
            self.norm = self._strategy.norm(self.parameters)
        if clipping.value is not None:
            nn.utils.clip_grad_value_(self._blocks, clipping.value)
