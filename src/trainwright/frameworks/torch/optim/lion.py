"""Lion (Chen et al., 2023), which torch does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Move each weight by the learning rate in the direction of the sign of a momentum."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # noqa: ARG002 - torch's signature
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if gradient is None:
                    continue
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                momentum = state["exp_avg"]
                if decay:
                    parameter.mul_(1 - lr * decay)
                parameter.add_(momentum.lerp(gradient, 1 - beta1).sign_(), alpha=-lr)
                momentum.lerp_(gradient, 1 - beta2)
