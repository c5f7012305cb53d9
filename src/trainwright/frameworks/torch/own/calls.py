"""Calls of a module's own steps: with our step beside the batch, or as Lightning's trainer calls them."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.own.names import is_given, is_lightning
from trainwright.frameworks.torch.own.step import Step
from trainwright.types import TARGET

log = logging.getLogger("trainwright")
_WEIGHT = "weight"
_REFUSED = {  # methods of Lightning by which a module changes how it is trained
    *("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *(
        "backward",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_before_zero_grad",
    ),
    *("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer", "configure_model"),
}
_NOT_CALLED = (
    "configure_callbacks",
    "test_step",
    "train_dataloader",
    "val_dataloader",
    "setup",
    "prepare_data",
)


def check_lightning(module: nn.Module) -> None:
    """Refuse what a LightningModule brings that would be ignored, and say which of its hooks are not called.

    Raises:
        ModelError: It changes how it is trained in a way that is Lightning's own.
    """
    given = [name for name in dir(type(module)) if is_given(module, name)]
    if refused := [name for name in given if name in _REFUSED]:
        raise ModelError(
            f"the model's {refused[0]} is for Lightning's trainer, and is not called: do this in "
            "training_step (automatic_optimization = False), or by a key of training; then leave it out"
        )
    if unused := [name for name in given if name in _NOT_CALLED or name.startswith("on_")]:
        log.warning("the model's %s: not called here; use a callback", ", ".join(unused))


class StepCalls:
    """Calls of a method of a module, `training_step` or another one, in the form that it is written for.

    A LightningModule, and a method whose second argument is called `batch_idx`, gets features and target as a
    pair and the number of the batch. A LightningModule finds what its trainer gives it.

    Args:
        module: The module.
        method: The name of the method.
    """

    def __init__(self, module: nn.Module, method: str) -> None:
        self._method: Callable[..., Any] = getattr(module, method)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [
            name for name, one in inspect.signature(self._method).parameters.items() if one.kind in kinds
        ]
        self._count = len(names)
        self._is_paired = is_lightning(module) or names[1:2] == ["batch_idx"]
        self.lightning = LightningTrainer(module) if is_lightning(module) else None

    def __call__(self, batch: Tensors, step: Step, index: int) -> Any:
        """Call the method with a batch; `index` is the number of the batch in its epoch, from 0."""
        if self.lightning is not None:
            self.lightning.local.step = step
        arguments = (_pair(batch), index, 0) if self._is_paired else (batch, step)
        return self._method(*arguments[: max(1, self._count)])

    @contextmanager
    def attached(self, step: int = 0, epoch: int = 0) -> Iterator[None]:
        """Give a LightningModule its trainer meanwhile."""
        with nullcontext() if self.lightning is None else self.lightning.attached(step, epoch):
            yield


def _pair(batch: Tensors) -> Any:
    """Return the inputs and the target of a batch as loaders give them; several inputs stay a mapping."""
    inputs = [name for name in batch if name not in (TARGET, _WEIGHT)]
    if len(inputs) != 1:
        return batch
    return (batch[inputs[0]], batch[TARGET]) if TARGET in batch else batch[inputs[0]]


class LightningTrainer:
    """The trainer as a LightningModule finds it.

    The attributes are the module's own only while a step runs.

    Attributes:
        local: Holds the step of the microbatch that a thread computes, as `step`.
        updates: The parameters of each optimizer, by its name.
    """

    is_global_zero, sanity_checking, training = True, False, True
    logger, loggers, callbacks = None, (), ()
    accumulate_grad_batches, gradient_clip_val = 1, None

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._lock = threading.RLock()
        self.local = threading.local()
        self.updates: Mapping[str, Sequence[nn.Parameter]] = {}
        self.optimizers: Mapping[str, Any] = {}
        self.current_epoch = self.global_step = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"self.trainer.{name} is Lightning's own, and is not here")

    @contextmanager
    def attached(self, step: int, epoch: int) -> Iterator[None]:
        """Give the module its attributes within the block; one thread at a time."""
        with self._lock:
            self.current_epoch, self.global_step = epoch, step
            own: dict[str, Any] = vars(self._module)
            given = {
                "_trainer": self,
                "log": self._log,
                "log_dict": self._log_dict,
                "manual_backward": self._backward,
                "optimizers": self._optimizers,
                "toggle_optimizer": self._toggle,
                "untoggle_optimizer": self._untoggle,
                "toggled_optimizer": self._toggled,
                **{name: _Refused(name, way) for name, way in _WAYS.items()},
            }
            before = {name: own[name] for name in given if name in own}
            own.update(given)
            try:
                yield
            finally:
                for name in given:
                    del own[name]
                own.update(before)

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        self.local.step.log(name, value)

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for name, value in values.items():
            self._log(name, value)

    def _backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        self.local.step.backward(loss, retain_graph=retain_graph)

    def _optimizers(self, use_pl_optimizer: bool = True) -> Any:  # noqa: ARG002 - Lightning's
        made = [_Optimizer(self, name) for name in self.updates]
        return made[0] if len(made) == 1 else made

    def _toggle(self, optimizer: _Optimizer) -> None:
        self.local.step.updating.only = {*self.updates[optimizer.name]}

    def _untoggle(self, optimizer: _Optimizer) -> None:  # noqa: ARG002 - Lightning's
        self.local.step.updating.only = None

    @contextmanager
    def _toggled(self, optimizer: _Optimizer) -> Iterator[None]:
        self._toggle(optimizer)
        try:
            yield
        finally:
            self._untoggle(optimizer)


_WAYS = {
    "clip_gradients": "set training.max_grad_norm",
    "lr_schedulers": "schedulers advance by their interval and frequency: leave it out",
    "all_gather": "what is logged is added up over processes anyway",
}


class _Refused:
    """A method of Lightning that is not here, and what to do instead."""

    def __init__(self, name: str, way: str) -> None:
        self._name, self._way = name, way

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ModelError(f"self.{self._name} is not supported here: {self._way}")


class _Optimizer:
    """An optimizer as Lightning gives it to a step."""

    def __init__(self, trainer: LightningTrainer, name: str) -> None:
        self.name, self._trainer = name, trainer
        self.optimizer = trainer.optimizers[name]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the optimizer, to be read."""
        return self.optimizer.param_groups  # type: ignore[no-any-return]

    def step(self) -> None:
        """Make the update; see `Step.update`."""
        self._trainer.local.step.update(self.name)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - torch's
        """Forget the gradients of the optimizer's parameters."""
        self._trainer.local.step.updating.zero(self.name)

    def toggle_model(self) -> Any:
        """Return a context in which only the optimizer's parameters get gradients."""
        return self._trainer._toggled(self)
