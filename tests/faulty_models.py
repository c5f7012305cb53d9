"""A model whose processes meet faults, for tests of many processes.

`FAULTS` lists them as `KIND@RANK@CALL`, each of which happens once: `FLAGS` is a folder that remembers it. CALL
is the number of the forward pass in training, from 1, in a process of this rank; or, as `KIND@RANK@CALL@WHERE`,
of one in an `evaluation`, of a `copy` of the state for a save, or of the `write` of such a copy, in a thread.
`kill` ends the process; `term` sends SIGTERM to the launcher; `error` raises an error of the disk, `wrong` one
of the user's code, `memory` torch's; `hang` waits for ever; `stop` stops the process with all its threads.
`slow` makes this call and all later ones slow.
"""

import errno
import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@functools.cache
def calls(here: str) -> Iterator[int]:
    """Return what counts the calls of a kind."""
    return itertools.count(1)


def meet_faults(here: str = "") -> None:
    """Count a forward pass, or what else is called here, and do what is due in it."""
    number = next(calls(here))
    for fault in os.environ.get("FAULTS", "").split():
        kind, rank, call, *where = fault.split("@")
        if "".join(where) != here:
            continue
        if kind == "slow" and os.environ.get("RANK") == rank and number >= int(call):
            time.sleep(0.1)
        flag = Path(os.environ["FLAGS"]) / fault
        if os.environ.get("RANK") == rank and number == int(call) and not flag.exists():
            flag.touch()
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "term":
                os.kill(os.getppid(), signal.SIGTERM)
            elif kind == "hang":
                threading.Event().wait()
            elif kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif kind == "error":
                raise OSError(errno.ENOSPC, "no space left")
            elif kind == "wrong":
                raise ValueError("this is wrong")
            elif kind == "memory":
                raise torch.OutOfMemoryError("there is no memory left")


def _meeting_faults(function: Callable[..., Any], here: str) -> Callable[..., Any]:
    """Return the function, which meets faults before it does anything."""

    @functools.wraps(function)
    def faulty(*args: Any, **options: Any) -> Any:
        meet_faults(here)
        return function(*args, **options)

    return faulty


if "@copy" in os.environ.get("FAULTS", "") or "@write" in os.environ.get("FAULTS", ""):
    from trainwright.frameworks.torch.learner import TorchLearner
    from trainwright.frameworks.torch.state.snapshot import TorchSnapshot

    TorchLearner.snapshot = _meeting_faults(TorchLearner.snapshot, "copy")  # type: ignore[method-assign]
    TorchSnapshot.write_parts = _meeting_faults(TorchSnapshot.write_parts, "write")  # type: ignore[method-assign]


class Net(nn.Module):
    """Has what is hard to add up: several buckets, a layer used twice, a frozen and an unused parameter."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.twice = nn.Linear(width, width, bias=False)
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.transposed = nn.Parameter(torch.randn(10, width).t() / width**0.5)  # (width, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        meet_faults("" if self.training and torch.is_grad_enabled() else "evaluation")
        hidden = self.drop(torch.relu(self.first(x))) * self.frozen
        hidden = torch.relu(self.twice(hidden))
        return torch.relu(self.twice(hidden)) @ self.transposed


class Cnn(nn.Module):
    """Normalizes over the batch, with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.BatchNorm2d(8, momentum=None),
            nn.Flatten(),
            nn.Linear(32, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        meet_faults("" if self.training and torch.is_grad_enabled() else "evaluation")
        return self.layers(x.view(-1, 1, 8, 8))


class Hooked(nn.Sequential):
    """Has a hook that runs when a gradient is complete."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(4), nn.Linear(4, 3))
        self[1].weight.register_post_accumulate_grad_hook(lambda parameter: None)


class Noise(torch.optim.SGD):
    """Adds noise to the weights, from torch's generator and from NumPy's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(torch.randn_like(one), alpha=group["lr"] * float(np.random.rand()))
