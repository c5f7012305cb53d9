"""Models that several processes share out among them, which end their process where a test says so."""

import torch
from torch import Tensor, nn

from trainwright.testing.strategy_model import end_if_due


class Net(nn.Module):
    """A network for rows of 64 numbers; processes cannot divide layers of 601 evenly."""

    def __init__(self, width: int = 601) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.second = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        if self.training and torch.is_grad_enabled():
            end_if_due()
        return self.last(self.norm(torch.relu(self.second(torch.relu(self.first(x))))))


class Normalized(nn.Module):
    """A smaller one with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 33)
        self.norm = nn.BatchNorm1d(33)
        self.last = nn.Linear(33, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        return self.last(torch.relu(self.norm(self.first(x))))
