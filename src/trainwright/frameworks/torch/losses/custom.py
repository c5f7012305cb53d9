"""A user's own losses, which a config names by their import paths: functions, modules and other classes.

`f(outputs, batch)` gets what the model returned and the batch, a mapping of tensors. Where the parameters say
so by their names, it is called as torch's losses are, `f(input, target)`, or as Keras's, `f(y_true, y_pred)`.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, TypeGuard

import torch
from torch import Tensor

from trainwright.errors import InputError, ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.state.custom import CustomLosses
from trainwright.require import import_path, is_class_of_functions, kind_of
from trainwright.tasks.base import Task
from trainwright.types import TARGET, DataInfo

_Raw = Callable[[Any, Tensors], Any]  # called with the outputs and the batch
DISTILLATION = "trainwright.frameworks.torch.losses.distillation:Distillation"
# Names of a parameter that gets the targets rather than the whole batch.
_TARGETS = {"target", "targets", "y", "y_true", "label", "labels", "true", "truth", "gt", "ground_truth"}


def custom_loss(
    path: str,
    task: Task,
    output: Callable[[Any], Tensor],
    params: Mapping[str, Any],
    *,
    by_sample: bool = False,
    own: CustomLosses | None = None,
    name: str = "loss",
) -> _Raw:
    """Return a user's loss: the mean over the samples, (), or with `by_sample` that of each, (rows,).

    Targets of a regression are in units of their standard deviation, as the outputs are.

    Args:
        path: `package.module:name`.
        task: The task.
        output: Returns the task's own output, of what the model returned.
        params: `training.loss_params`: what a class is constructed with, and a function is called with.
        by_sample: There are weights, so that the loss of each sample is needed.
        own: The losses that the run has built, where this one is found, or put.
        name: Its name there.

    Raises:
        ModelError: It cannot be imported, or cannot be called.
    """
    own = CustomLosses() if own is None else own
    plain, name = own[name], f"{name} by sample" if by_sample else name
    if own[name] is None and by_sample and has_parameters(plain):
        own.keep(name, copy.copy(plain))  # which shares them
        if hasattr(plain, "reduction"):
            own[name].reduction = "none"
    elif own[name] is None:
        made, holder = _loss(path, task, params, by_sample=by_sample, seed=own.seed)
        if has_parameters(made):
            own.keep(name, made)  # the model has its state
        else:
            own.add(name, made, holder)
    called = by_names(own[name], output, task.target)

    def loss(outputs: Any, batch: Tensors) -> Tensor:
        try:
            value = called(outputs, _standardized(batch, task.info))
        except KeyError as error:
            keys = ", ".join(batch)
            raise ModelError(
                f"training.loss: {path} failed: KeyError: {error}; the batch has the keys {keys}"
            ) from error
        shape = value.shape if isinstance(value, Tensor) else None
        rows = len(next(iter(batch.values())))
        if isinstance(value, Tensor) and (shape == (rows,) or (value.numel() == 1 and not by_sample)):
            return value if by_sample else value.mean()
        what = type(value).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ModelError(
            f"training.loss: {path} returned {what} for {rows} rows; with weights (data.weight, "
            "training.class_weights) it must return the loss of each sample, (rows,)"
            if by_sample
            else f"training.loss: {path} returned {what}; it must return one number as a tensor, the mean "
            "over the samples, or the loss of each sample, (rows,)"
        )

    return loss


def has_parameters(loss: Any) -> TypeGuard[torch.nn.Module]:
    """Return whether a loss is a module with parameters to train."""
    return isinstance(loss, torch.nn.Module) and any(one.requires_grad for one in loss.parameters())


def _loss(path: str, task: Task, params: Mapping[str, Any], *, by_sample: bool, seed: int) -> tuple[Any, Any]:
    """Import a loss; construct a class of modules, or of other objects that are called.

    Parameters to train are drawn from a generator of their own.

    Returns:
        What is called, and the object or function of the user's that has state.
    """
    shown = f" with {', '.join(params)}" if params else ""
    try:
        loss = _ours(path) if path in (*task.losses, DISTILLATION) else import_path(path)
        if is_class_of_functions(loss):
            made = loss(**params)
            if has_parameters(made):  # whatever the model has drawn before
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    made = loss(**params)
            loss, params = made, {}
    except InputError as error:
        raise ModelError(f"training.loss: {error}") from error
    except TypeError as error:
        raise ModelError(
            f"training.loss: {path} cannot be constructed{shown}: {error}; write its options beside it: "
            f"loss: {{type: {path}, option: value}}"
        ) from error
    if not callable(loss) or isinstance(loss, type):
        raise ModelError(
            f"training.loss: {path} is {kind_of(loss)}; a function of (outputs, batch) or "
            "(input, target), or a class with __call__, such as a torch.nn.Module, is needed"
        )
    if params and not (inspect.isroutine(loss) or isinstance(loss, type)):
        raise ModelError(
            f"training.loss: {path} is an object already, so it takes no options ({', '.join(params)}); name "
            "its class, or set them in your module"
        )
    if not isinstance(loss, FunctionType):
        with suppress(Exception):  # what cannot be copied is used as it is
            loss = copy.deepcopy(loss)  # an object of a module is not changed: the next run begins with it
    holder = getattr(loss, "__self__", loss)  # of a bound method, its object
    loss = partial(loss, **params) if params else loss
    if by_sample and hasattr(loss, "reduction"):
        loss.reduction = "none"
    elif by_sample and "reduction" in _parameters(loss):
        return (lambda *tensors: loss(*tensors, reduction="none")), holder
    return loss, holder


def _ours(path: str) -> Any:
    """Import the loss of an installed task, or of students; unlike one of the user's, it needs no trust."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def by_names(function: Any, output: Callable[[Any], Tensor], name: str) -> _Raw:
    """Return a function of (outputs, batch) that calls another as the names of its parameters say.

    Args:
        function: A loss, or the method of a metric: of (outputs, batch), (input, target) or (y_true, y_pred).
        output: Returns the task's own output, of what the model returned.
        name: The array of a batch that holds the targets.
    """
    first, second = [*(name.lower() for name in _parameters(function)), "", ""][:2]
    if first not in _TARGETS and second not in _TARGETS:
        return function  # type: ignore[no-any-return]
    is_keras = first in _TARGETS

    def called(outputs: Any, batch: Tensors) -> Any:
        target, own = batch[name], output(outputs)
        # (rows, 1) beside (rows,) would make (rows, rows) of the two.
        own = own.reshape(target.shape) if own.numel() == target.numel() else own
        return function(target, own) if is_keras else function(own, target)

    return called


def _parameters(loss: Any) -> list[str]:
    """Return the names of a loss's parameters; none where they cannot be read."""
    try:
        return list(inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).parameters)
    except (TypeError, ValueError):
        return []


def _standardized(batch: Tensors, info: DataInfo) -> Tensors:
    if (info.target_mean, info.target_scale) == (0.0, 1.0) or TARGET not in batch:
        return batch
    return {**batch, TARGET: (batch[TARGET] - info.target_mean) / info.target_scale}
