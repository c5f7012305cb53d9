"""The step that a `training_step` of the user's own is called in, and the values that it logs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from trainwright.errors import ModelError
from trainwright.types import LoggedValues
from trainwright.world import World


class Updating(Protocol):
    """The backward passes and updates of a microbatch whose module makes them itself."""

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradients of a loss, ()."""

    def update(self, name: str | None = None) -> None:
        """Update the parameters of an optimizer."""


class LoggedInSteps:
    """The values that modules log in steps, until they are read: on the device, microbatch by microbatch."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str, Any, int]] = []  # step, name, value, rows

    def add(self, step: int, name: str, value: Any, rows: int) -> None:
        """Keep a value of a microbatch of `rows` rows; see `number_of`."""
        self._entries.append((step, str(name), number_of(name, value), rows))

    def take(self, world: World) -> list[LoggedValues]:
        """Return the sums over the rows of each step, of all processes; a collective call."""
        tensors = [
            value.reshape(()).double() for _, _, value, _ in self._entries if isinstance(value, Tensor)
        ]
        read = iter(torch.stack(tensors).tolist() if tensors else ())
        mine = [
            (step, name, next(read) if isinstance(value, Tensor) else float(value), rows)
            for step, name, value, rows in self._entries
        ]
        self._entries = []
        found: dict[int, dict[str, list[tuple[float, int]]]] = defaultdict(lambda: defaultdict(list))
        for some in world.gather(mine) if world.size > 1 else [mine]:
            for step, name, value, rows in some:
                found[step][name].append((value, rows))
        # The exact sum, rounded: it does not depend on how microbatches are spread over processes.
        return [
            {
                name: (_sum([value * rows for value, rows in values]), sum(rows for _, rows in values))
                for name, values in sorted(found[step].items())
            }
            for step in sorted(found)
        ]


def number_of(name: str, value: Any, where: str = "training_step") -> Any:
    """Return a value that a step logs, a number or a tensor of one, which is still on its device.

    Raises:
        ModelError: It is something else.
    """
    if isinstance(value, Tensor):
        value = value.detach()
    if value.numel() != 1 if isinstance(value, Tensor) else not isinstance(value, int | float):
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise ModelError(
            f"{where} logs {name}, a {type(value).__name__}{shape}; give one number, the mean over the "
            "rows of the batch; objects that add up are for evaluation.metrics"
        )
    return value


class Step:
    """The step that a `training_step(batch, step)` is called in.

    Attributes:
        number: The number of the step, counted from 0.
        epoch: The epoch in which it begins, counted from 0.
    """

    def __init__(
        self, number: int, epoch: int, log: Callable[[str, Any], None], updating: Updating | None = None
    ) -> None:
        self.number = number
        self.epoch = epoch
        self._log, self.updating = log, updating

    def log(self, name: str, value: Any) -> None:
        """Log a number, the mean over the rows of the batch, beside `train_loss`."""
        self._log(name, value)

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradients of a loss, (), a mean over the rows of the batch.

        The first call after an update begins with no gradients.

        Raises:
            ModelError: The module returns its loss, whose gradients are not its own business.
        """
        self._made().backward(loss, retain_graph=retain_graph)

    def update(self, name: str | None = None) -> None:
        """Update the parameters of an optimizer from their gradients; of the only one without a name.

        Raises:
            ModelError: No optimizer has this name, or the parts of the batch do not ask for it alike.
        """
        self._made().update(name)

    def _made(self) -> Updating:
        if self.updating is None:
            raise ModelError(
                "training_step calls backward or update out of sight: write automatic_optimization = False "
                "in the class, or return the loss and leave both to the trainer"
            )
        return self.updating


def returned(value: Any, where: str = "training_step") -> tuple[Tensor | None, Mapping[str, Any]]:
    """Return the loss, if there is one, and the named values that a step returned.

    Raises:
        ModelError: It returned something else.
    """
    loss, named = value, {}
    if isinstance(value, Mapping):
        named = dict(value)
        loss = named.pop("loss", None)
    elif isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], Mapping):
        loss, named = value
    if loss is not None and not (isinstance(loss, Tensor) and loss.numel() == 1):
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ModelError(
            f"{where} returned {what}: return the loss, a tensor of one number; or it and named values, "
            '{"loss": loss, "accuracy": value}'
        )
    return None if loss is None else loss.reshape(()), named


def _sum(values: list[float]) -> float:
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
