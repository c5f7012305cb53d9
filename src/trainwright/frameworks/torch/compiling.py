"""The training step's forward and backward pass, compiled by `torch.compile`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.losses.base import Loss
from trainwright.frameworks.torch.outputs import Outputs, as_float, first_output
from trainwright.types import LABELS

_SHAPES = 256  # batches of different shapes for which code is made, before torch gives up


def compiled(model: nn.Module) -> nn.Module:
    """Return a module that computes what another one does, with the same parameters.

    Code is made for each shape by itself, so that it does not depend on which shapes came before: a run that
    is resumed meets them in another order.
    """
    _prepare()
    return cast(nn.Module, torch.compile(model, dynamic=False))


def compiled_token_loss(loss: Loss) -> Loss:
    """Return a loss of tokens that computes what another one does, from logits of any precision.

    The logits of a vocabulary are large. Uncompiled, a copy in float32, its log-softmax and two gradients are
    written to memory and read again; compiled, the logits are read and their gradient is written.
    """
    _prepare()

    def of_tensors(logits: Tensor, labels: Tensor) -> Tensor:
        return loss(as_float(logits), {LABELS: labels})

    made = torch.compile(of_tensors, dynamic=False)

    def call(outputs: Outputs, batch: Tensors) -> Tensor:
        result: Tensor = made(first_output(outputs), batch[LABELS])
        return result

    return call


def _prepare() -> None:
    """Set how torch compiles in this process."""
    dynamo: Any = import_module("torch._dynamo.config")  # late: it takes longer than importing torch
    inductor: Any = import_module("torch._inductor.config")
    dynamo.recompile_limit = _SHAPES
    inductor.compile_threads = 1  # no other processes
