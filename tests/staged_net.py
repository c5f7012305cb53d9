"""A model of stages, and of layers in slices, for the suite of strategies, which ends its process where the suite says so."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from faulty_models import meet_faults
from trainwright.testing.strategy_model import end_if_due


class Net(nn.Module):
    """Blocks for rows of 64 numbers, whose first layer is used by the last stage, too."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.scale = nn.Parameter(torch.ones(width), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), _perceptron(width)) for _ in range(4))
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        if self.training and torch.is_grad_enabled():
            end_if_due()
            meet_faults()
        else:
            meet_faults("evaluation")
        hidden = self.first(x) * self.scale
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.last(functional.linear(hidden, self.first.weight.T))
        return logits


def _perceptron(width: int) -> nn.Module:
    """Return what is split by columns of its first layer, and rows of its last one."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * width, width))
