"""Activation checkpointing: modules that compute their activations again in the backward pass.

It needs less memory and more time (Chen et al., 2016), and changes no bits: what a module draws from torch's
generators is drawn again, and its buffers are as they were in the forward pass, which alone changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching_modules
from trainwright.frameworks.torch.state.structure import Held

Undo = Callable[[], None]


def checkpoint_activations(model: nn.Module, patterns: Sequence[str], *, synchronized: bool) -> Undo:
    """Have the modules that patterns match keep no activations in training.

    Args:
        model: The module.
        patterns: Patterns of names of its parts.
        synchronized: Whether batch normalization is that of all virtual ranks together.

    Returns:
        What gives the modules back as they were.

    Raises:
        ModelError: A pattern matches nothing, or synchronized batch normalization.
    """
    key = "training.activation_checkpointing"
    changed: list[tuple[nn.Module, Any]] = []
    for name in matching_modules(model, patterns, key):
        module = model.get_submodule(name)
        if synchronized and any(isinstance(part, _BatchNorm) for part in module.modules()):
            raise ModelError(
                f"{key}: {name} has batch normalization, which cannot be computed twice over "
                "virtual ranks; leave the module out, or distributed.virtual.data"
            )
        changed.append((module, vars(module).get("forward")))
        module.forward = _checkpointed(module, module.forward)
    return partial(_undo, changed)


def _undo(changed: Sequence[tuple[nn.Module, Any]]) -> None:
    for module, own in reversed(changed):
        if own is None:
            del module.forward
        else:
            module.forward = own


def _checkpointed(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    contexts = partial(_contexts, module) if any(True for _ in module.buffers()) else _no_contexts

    @wraps(forward)
    def compute(*inputs: Any, **named: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)

    return compute


Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]


def _no_contexts() -> Contexts:
    return nullcontext(), nullcontext()


def _contexts(module: nn.Module) -> Contexts:
    """Return the contexts of the forward pass and of its repetition."""
    return nullcontext(), _with_buffers(module, Held(module))


@contextmanager
def _with_buffers(module: nn.Module, before: Held) -> Iterator[None]:
    """Give a module the buffers that it had before, and at the end those that it has now."""
    after = Held(module)
    before.put_back()
    try:
        yield
    finally:
        after.put_back()
