"""The training step's forward and backward pass, compiled by `torch.compile`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import torch
from torch import nn

_SHAPES = 256  # batches of different shapes for which code is made, before torch gives up


def compiled(model: nn.Module) -> nn.Module:
    """Return a module that computes what another one does, with the same parameters.

    Code is made for each shape by itself, so that it does not depend on which shapes came before: a run that
    is resumed meets them in another order.
    """
    dynamo: Any = import_module("torch._dynamo.config")  # late: it takes longer than importing torch
    inductor: Any = import_module("torch._inductor.config")
    dynamo.recompile_limit = _SHAPES
    inductor.compile_threads = 1  # no other processes
    return cast(nn.Module, torch.compile(model, dynamic=False))
