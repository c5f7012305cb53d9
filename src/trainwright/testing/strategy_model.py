"""A small model for the suite of strategies, which ends its process where the suite says so."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

KILL = "TRAINWRIGHT_TEST_KILL"  # RANK@CALL@FILE: which forward pass in training is the last; FILE: it was
_calls = itertools.count(1)


class Net(nn.Module):
    """A network for rows of 64 numbers, with dropout, a layer used twice, and unusual parameters."""

    def __init__(self, width: int = 600) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.twice = nn.Linear(width, width, bias=False)  # more than one chunk of a digest
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.transposed = nn.Parameter(torch.randn(10, width).t() / width**0.5)  # (width, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        if self.training and torch.is_grad_enabled():
            end_if_due()
        hidden = self.drop(torch.relu(self.first(x))) * self.frozen
        hidden = torch.relu(self.twice(hidden))
        return torch.relu(self.twice(hidden)) @ self.transposed


def end_if_due() -> None:
    """End the process if this is the forward pass in training that the suite says."""
    number = next(_calls)
    if KILL not in os.environ:
        return
    rank, call, file = os.environ[KILL].split("@", 2)
    if (rank, int(call)) == (os.environ.get("RANK", "0"), number) and not Path(file).exists():
        Path(file).touch()
        os.kill(os.getpid(), signal.SIGKILL)
