"""The optimizers and schedulers that a module's `configure_optimizers` returns."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from trainwright.config.schedules import ConstantSchedule
from trainwright.config.schema import TrainingConfig
from trainwright.errors import ModelError
from trainwright.frameworks.support.torch_imports import skip_compiler_import
from trainwright.frameworks.torch.optim.several import Several
from trainwright.frameworks.torch.own.names import is_given
from trainwright.frameworks.torch.params import OPTIMIZERS
from trainwright.order import SampleOrder

METHOD = "configure_optimizers"
_BY_ELEMENT = ("AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Lion")
_FORMS = (
    "return an optimizer, a list of them, or (optimizers, schedulers); one may be "
    '{"optimizer": ..., "lr_scheduler": ...}'
)


class Scheduled(NamedTuple):
    """A scheduler, and after how many steps or epochs it advances."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1


class Rates:
    """The learning rates of a step, as the schedulers give them: a function of the step alone.

    A resume advances them from the first step on.

    Args:
        scheduled: The schedulers.
        order: Says when an epoch ends.
    """

    def __init__(self, scheduled: Sequence[Scheduled], order: SampleOrder) -> None:
        self._scheduled, self._order = scheduled, order
        self._step = 0

    def __call__(self, step: int) -> None:
        """Set the rates of a step, counted from 0; no call is for an earlier one than the last."""
        while self._step < step:
            self._step += 1
            before, epoch = (self._order.cursor(at).epoch for at in (self._step - 1, self._step))
            for one in self._scheduled:
                done = self._step if one.interval == "step" else epoch
                if (one.interval == "step" or epoch > before) and done % one.frequency == 0:
                    with warnings.catch_warnings():  # it asks for `optimizer.step`, which we call by parts
                        warnings.simplefilter("ignore", UserWarning)
                        one.scheduler.step()


class Configured(NamedTuple):
    """The optimizers that a module has configured itself, as one, and their learning rates."""

    optimizer: torch.optim.Optimizer
    rates: Rates
    whole: set[str]  # the names of the parameters that are not updated element by element

    def measured(self) -> dict[str, float]:
        """Return the learning rate of the first group of each optimizer."""
        groups = {"": self.optimizer.param_groups[0]}
        if isinstance(self.optimizer, Several):
            groups |= {f"_{name}": part.param_groups[0] for name, part in self.optimizer.parts.items()}
        return {f"learning_rate{name}": float(group["lr"]) for name, group in groups.items()}

    def describe(self) -> Mapping[str, str]:
        """Return the class and the options of each optimizer."""
        parts = self.optimizer.parts if isinstance(self.optimizer, Several) else {"": self.optimizer}
        return {
            f"optimizer {name}".strip(): f"{type(part).__module__}:{type(part).__name__}"
            f"({', '.join(f'{key}={value}' for key, value in part.defaults.items())})"
            for name, part in parts.items()
        }


def configured(module: nn.Module, training: TrainingConfig, order: SampleOrder) -> Configured | None:
    """Return what a module's `configure_optimizers` returns; None if it has none, or the config names others.

    Raises:
        ModelError: It fails, returns something else, or the config sets what it sets.
    """
    default = OPTIMIZERS["adamw"]
    is_default = training.optimizer.type == "adamw" and default(**training.optimizer.params) == default()
    if not is_given(module, METHOD) or training.optimizers or not is_default:
        return None
    fields = TrainingConfig.model_fields
    both = [
        key
        for key in ("learning_rate", "weight_decay", "parameter_groups", "layer_decay", "no_decay")
        if getattr(training, key) != fields[key].get_default(call_default_factory=True)
    ]
    if training.scheduler != ConstantSchedule():
        both.append("scheduler")
    if both:
        raise ModelError(
            f"training.{both[0]}: the model's {METHOD} sets it; leave it out, or name training.optimizer, "
            "which is used instead"
        )
    skip_compiler_import(torch.optim.Optimizer.add_param_group)
    configure: Callable[[], Any] = module.configure_optimizers  # type: ignore[assignment]
    try:
        returned = configure()
    except Exception as error:
        raise ModelError(f"the model's {METHOD} failed: {type(error).__name__}: {error}") from error
    parts, scheduled = _read(returned)
    _check(module, parts)
    optimizer = next(iter(parts.values())) if len(parts) == 1 else Several(parts)
    named = {id(one): name for name, one in module.named_parameters()}
    whole = {
        named[id(one)]
        for part in parts.values()
        if type(part).__name__ not in _BY_ELEMENT
        for group in part.param_groups
        for one in group["params"]
    }
    return Configured(optimizer, Rates(scheduled, order), whole)


def _read(returned: Any) -> tuple[dict[str, torch.optim.Optimizer], list[Scheduled]]:
    """Return the optimizers by name, and the schedulers."""
    items, schedulers = returned, []
    if isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[1], tuple | list):
        items, schedulers = returned
    if isinstance(items, Mapping) and "optimizer" not in items:
        named = dict(items)
    else:
        named = dict(enumerate(items)) if isinstance(items, tuple | list) else {0: items}
    parts: dict[str, torch.optim.Optimizer] = {}
    scheduled = list(map(_scheduled, schedulers))
    for name, item in named.items():
        optimizer = item
        if isinstance(item, Mapping):
            optimizer = item.get("optimizer")
            if item.get("lr_scheduler") is not None:
                scheduled.append(_scheduled(item["lr_scheduler"]))
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ModelError(f"the model's {METHOD} returned a {type(optimizer).__name__}: {_FORMS}")
        parts[str(name)] = optimizer
    if not parts:
        raise ModelError(f"the model's {METHOD} returned no optimizer: {_FORMS}")
    return parts, scheduled


def _scheduled(given: Any) -> Scheduled:
    """Return a scheduler of Lightning's forms."""
    item = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    scheduler = item.get("scheduler")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ModelError(
            f"the model's {METHOD} returned a ReduceLROnPlateau, which needs the evaluations: leave it out, "
            "and name training.optimizer and training.scheduler: {type: plateau, metric: val_loss}"
        )
    interval, frequency = item.get("interval", "epoch"), item.get("frequency", 1)
    if not callable(getattr(scheduler, "step", None)) or interval not in ("step", "epoch"):
        raise ModelError(
            f"the model's {METHOD} returned {type(scheduler).__name__} with interval {interval!r} as a "
            "scheduler; give one of torch's, with interval step or epoch"
        )
    return Scheduled(scheduler, interval, int(frequency))


def _check(module: nn.Module, parts: Mapping[str, torch.optim.Optimizer]) -> None:
    """Refuse optimizers that cannot be ours."""
    own, seen = {id(one): name for name, one in module.named_parameters()}, dict[int, str]()
    for name, part in parts.items():
        closure = inspect.signature(type(part).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ModelError(
                f"the model's {METHOD} returned {type(part).__name__}, which calls the model itself (step "
                "needs a closure): choose another optimizer"
            )
        for one in (one for group in part.param_groups for one in group["params"]):
            if id(one) not in own:
                raise ModelError(
                    f"the model's {METHOD}: optimizer {name} has a parameter that is not the model's"
                )
            if id(one) in seen:
                raise ModelError(
                    f"the model's {METHOD}: optimizers {seen[id(one)]} and {name} both have the parameter "
                    f"{own[id(one)]}; each is updated by one"
                )
            seen[id(one)] = name


def replaced(optimizer: torch.optim.Optimizer, updated: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Have an optimizer update other tensors in place of the parameters."""
    for group in optimizer.param_groups:
        group["params"] = [updated(one) for one in _parameters(group)]


def _parameters(group: Mapping[str, Any]) -> Iterable[nn.Parameter]:
    return group["params"]  # type: ignore[no-any-return]
