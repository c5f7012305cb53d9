"""The `training_step` of a module, as the loss of a step or as one that makes its updates itself."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.own.calls import LightningTrainer, StepCalls
from trainwright.frameworks.torch.own.names import is_given
from trainwright.frameworks.torch.own.step import LoggedInSteps, Step, Updating, returned
from trainwright.order import SampleOrder

STEP = "training_step"
_ITS_OWN = {"backward", "manual_backward"}  # what a step calls that makes its updates itself


def has_own_step(module: nn.Module) -> bool:
    """Return whether a module says itself how it is trained."""
    return is_given(module, STEP)


class OwnTraining:
    """The `training_step` of a module.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._call = StepCalls(module, STEP)
        self.is_manual = is_manual(module)
        self.logged = LoggedInSteps()
        self._number = self._epoch = self._index = 0

    def begin(self, step: int, order: SampleOrder) -> None:
        """Begin a step, counted from 0."""
        cursor = order.cursor(step)
        self._number, self._epoch, self._index = step, cursor.epoch, cursor.consumed // order.batch_size

    def call(self, batch: Tensors) -> Tensor:
        """Return the loss of a microbatch, (), and log what the step returns beside it.

        Raises:
            ModelError: It returns no loss.
        """
        loss = self.made(batch)
        if loss is None:
            raise ModelError(
                "training_step returned no loss: return it; or write automatic_optimization = False in the "
                "class, and call step.backward(loss) and step.update()"
            )
        return loss

    def made(self, batch: Tensors, updating: Updating | None = None) -> Tensor | None:
        """Call the step with a microbatch, and return the loss that it returns, (), if it does."""
        rows = rows_of(batch)
        log = partial(self._log, rows)
        step = Step(self._number, self._epoch, log, updating)
        loss, named = returned(self._call(batch, step, self._index))
        for name, value in named.items():
            log(name, value)
        return loss

    @property
    def lightning(self) -> LightningTrainer | None:
        """The trainer as a LightningModule finds it."""
        return self._call.lightning

    def attached(self) -> AbstractContextManager[None]:
        """Return a context in which a LightningModule has its trainer."""
        return self._call.attached(self._number, self._epoch)

    def _log(self, rows: int, name: str, value: Any) -> None:
        self.logged.add(self._number, name, value, rows)


def rows_of(batch: Tensors) -> int:
    """Return the number of rows of a batch, whose arrays may be in mappings."""
    first: Any = next(iter(batch.values()))
    while isinstance(first, Mapping):
        first = next(iter(first.values()))
    return len(first)


def is_manual(module: nn.Module) -> bool:
    """Return whether the step of a module makes its updates itself."""
    given = getattr(module, "automatic_optimization", None)
    if isinstance(given, bool) and not given:
        return True
    step: Any = module.training_step
    function = inspect.unwrap(getattr(step, "__func__", step))
    return any(_ITS_OWN & {*code.co_names} for code in _codes(getattr(function, "__code__", None)))


def _codes(code: types.CodeType | None) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of those within it."""
    if code is not None:
        yield code
        for one in code.co_consts:
            yield from _codes(one if isinstance(one, types.CodeType) else None)
