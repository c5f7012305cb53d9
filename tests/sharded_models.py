"""Models whose parameters PyTorch's FSDP2 divides among processes, by a strategy for tests."""

import os

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.plugins import replace_adapter
from trainwright.testing.strategy_model import end_if_due
from trainwright.world import Mesh


class Sharded(Strategy):
    """Each process has some rows of each parameter, and gathers them all to compute."""

    divides_state = passes_communicate = True

    @classmethod
    def mesh(cls, size: int) -> Mesh:
        """Return one axis of shards."""
        return Mesh(shard=size)

    def place(self, module: nn.Module) -> None:
        """Divide the parameters."""
        mesh = init_device_mesh("cpu", (self.world.size,))
        self._module = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        self._module.set_gradient_divide_factor(1.0)
        self._module.set_force_sum_reduction_for_comms(enable=True)

    def backward(self, loss: Tensor, *, is_last: bool = False) -> None:
        """Add the gradients, and in the last pass of a step those of the other processes."""
        self._module.set_requires_gradient_sync(is_last)
        loss.backward()

    def end_part(self, *, is_last: bool) -> None:
        """Do nothing: a process has one virtual rank."""

    def reduce(self) -> None:
        """Do nothing."""


if os.environ.get("WORLD_SIZE", "1") != "1":
    replace_adapter("strategy", "ddp", Sharded)


class Net(nn.Module):
    """A network for rows of 64 numbers; two processes cannot divide layers of 601 evenly."""

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
