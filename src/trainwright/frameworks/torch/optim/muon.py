"""Muon (Keller Jordan, 2024) for the hidden matrices of a model, and AdamW for its other parameters."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from trainwright.frameworks.torch.optim.groups import Group
from trainwright.frameworks.torch.patterns import matching_parameters

_OF_MUON = ("momentum", "nesterov", "ns_steps", "adjust_lr_fn")


def hidden_matrices(model: nn.Module, exclude: Sequence[str] = ()) -> set[int]:
    """Return the ids of the parameters that Muon is for.

    These are the parameters of two dimensions, but for embeddings, the weight of the last linear layer (the
    output), and those that `exclude` matches.

    Raises:
        ModelError: A pattern matches nothing.
    """
    excluded = matching_parameters(model, exclude, "training.optimizer.exclude") if exclude else set()
    others = {id(one) for name, one in model.named_parameters() if name in excluded}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    others |= {id(module.weight) for module in linear[-1:]}
    others |= {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    return {id(one) for one in model.parameters() if one.ndim == 2} - others


class Muon(torch.optim.Optimizer):
    """Torch's Muon for some matrices, and torch's AdamW for the rest, as one optimizer.

    Args:
        groups: The parameter groups.
        matrices: The ids of the parameters that Muon updates.
        lr: The learning rate of both.
        options: Those of Muon (momentum, nesterov, ns_steps, adjust_lr_fn) and of AdamW (betas, eps, fused).
    """

    def __init__(self, groups: Sequence[Group], matrices: Collection[int], lr: float, **options: Any) -> None:
        super().__init__([dict(group) for group in groups], {"lr": lr})
        muon = {key: value for key, value in options.items() if key in _OF_MUON}
        adamw = {key: value for key, value in options.items() if key not in _OF_MUON}
        hidden = _restricted(groups, lambda one: id(one) in matrices)
        others = _restricted(groups, lambda one: id(one) not in matrices)
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            self.parts.append(torch.optim.Muon(hidden, lr=lr, **muon))
        if others:
            self.parts.append(torch.optim.AdamW(others, lr=lr, **adamw))
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = defaultdict(dict)
        for part in self.parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # noqa: ARG002 - torch's signature
        """Update the parameters from their gradients."""
        for part in self.parts:
            inspect.unwrap(type(part).step)(part)


def _restricted(groups: Sequence[Group], wanted: Any) -> list[Group]:
    """Return the groups with the parameters that are wanted, without those that have none."""
    chosen = [{**group, "params": [one for one in group["params"] if wanted(one)]} for group in groups]
    return [group for group in chosen if group["params"]]
