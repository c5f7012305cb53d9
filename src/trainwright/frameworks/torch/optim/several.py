"""Several optimizers, each of some parameters, as one whose state is by parameter."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch


class Several(torch.optim.Optimizer):
    """Optimizers by name, with one state and one list of groups.

    Args:
        parts: The optimizers, no two of which have a parameter together.
    """

    def __init__(self, parts: Mapping[str, torch.optim.Optimizer]) -> None:
        groups = [group for part in parts.values() for group in part.param_groups]
        super().__init__([dict(group) for group in groups], {})
        self.parts = dict(parts)
        self.param_groups = groups
        self.state = defaultdict(dict)
        for part in parts.values():
            _share(part, self.state)

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # noqa: ARG002 - torch's signature
        """Update the parameters of all from their gradients."""
        for part in self.parts.values():
            inspect.unwrap(type(part).step)(part)


def _share(optimizer: Any, state: Any) -> None:
    """Give an optimizer, and those that it is made of, one state."""
    optimizer.state = state
    parts = getattr(optimizer, "parts", ())
    for part in parts if isinstance(parts, list) else ():  # of Muon
        _share(part, state)
