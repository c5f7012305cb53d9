"""Freeze parameters, forever or for the first steps: which ones is a function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import nn

from trainwright.config.training import FreezeConfig
from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching, matching_parameters, nearest


def frozen_until(model: nn.Module, config: Sequence[FreezeConfig]) -> dict[str, float]:
    """Return the step until which each parameter that `training.freeze` names is frozen.

    Raises:
        ModelError: A pattern matches nothing, or nothing is left to train.
    """
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    until: dict[str, float] = {}
    for index, item in enumerate(config):
        end = math.inf if item.until_step is None else item.until_step
        for name in matching_parameters(model, item.match, f"training.freeze.{index}.match") & trained:
            until[name] = max(end, until.get(name, 0))
    if config and all(until.get(name, 0) > 0 for name in trained):
        raise ModelError(
            "training.freeze: nothing is left to train in the first step; freeze fewer parameters"
        )
    return until


def statistics_until(model: nn.Module, config: Sequence[FreezeConfig]) -> dict[str, float]:
    """Return the step until which the statistics of each batch normalization are frozen, by its name.

    Raises:
        ModelError: A pattern that is to freeze some matches none.
    """
    names = [name for name, one in model.named_modules() if getattr(one, "running_mean", None) is not None]
    until: dict[str, float] = {}
    for index, item in enumerate(config):
        if not item.statistics:
            continue
        end = math.inf if item.until_step is None else item.until_step
        patterns = [item.match] if isinstance(item.match, str) else item.match
        matched = set[str]().union(*(matching(pattern, names) for pattern in patterns))
        if not matched:
            raise ModelError(
                f"training.freeze.{index}.statistics: {', '.join(patterns)} matches no module with running "
                f"statistics; {nearest(patterns[0], names)}"
            )
        until |= {name: max(end, until.get(name, 0)) for name in matched}
    return until


class Freezing:
    """Freeze the parameters that `training.freeze` names; what the model itself froze stays frozen.

    A frozen parameter gets no gradient, so it has no update, no weight decay and no state of the optimizer.
    A batch normalization with frozen statistics is in evaluation mode.
    """

    def __init__(self, model: nn.Module, until: Mapping[str, float], statistics: Mapping[str, float]) -> None:
        """Freeze what is frozen in the first step.

        Args:
            model: The module, or what a stage of a pipeline has of it.
            until: What `frozen_until` has returned for the whole module.
            statistics: What `statistics_until` has.
        """
        parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
        self._until = {parameters[name]: end for name, end in until.items() if name in parameters}
        self._statistics = {modules[name]: end for name, end in statistics.items() if name in modules}
        self._ends = {*self._until.values(), *self._statistics.values()}
        self.reset()
        self.apply(0)

    def reset(self) -> None:
        """Make the next `apply` set all flags again, which a restore may have changed."""
        self._from, self._next = math.inf, math.inf

    def apply(self, step: int) -> bool:
        """Freeze the parameters of a step, counted from 0; return whether any flag had to be set."""
        if self._from <= step < self._next or not self._ends:
            return False
        for parameter, end in self._until.items():
            parameter.requires_grad_(step >= end)
        for module, end in self._statistics.items():
            module.training = step >= end
        self._from, self._next = step, min((end for end in self._ends if end > step), default=math.inf)
        return True

    def is_frozen(self, parameter: nn.Parameter) -> bool:
        """Return whether `apply` has frozen a parameter."""
        return self._until.get(parameter, 0) > self._from
