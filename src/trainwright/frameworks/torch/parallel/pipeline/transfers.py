"""The hidden states that go from stage to stage, and their gradients that come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.parallel.pipeline.links import Arrival, Channel, Links

Shapes = tuple[Any, ...]


class _Place(NamedTuple):
    """A tensor at the beginning of a stage (a hidden state), or at its end (the gradient of its output)."""

    is_hidden: bool
    stage: int
    microbatch: int


class Transfers:
    """Hands tensors on to the next stage, in this process or in another one.

    The process that receives a hidden state knows its shape from the microbatch: it is told the first time
    that a microbatch has such tensors.

    Args:
        links: Connects the processes; None: there is only one.
        forward: The channel from each stage to the next one.
        backward: The channels back.
        device: Where the model computes.
    """

    def __init__(
        self,
        links: Links | None,
        forward: Sequence[Channel],
        backward: Sequence[Channel],
        device: torch.device,
    ) -> None:
        self._links, self._forward, self._backward, self._device = links, forward, backward, device
        self._here: dict[_Place, Tensor] = {}
        self._coming: dict[_Place, Arrival] = {}
        self._known: dict[Shapes, Tensor] = {}  # the hidden state, on the device meta

    def give_hidden(self, stage: int, microbatch: int, hidden: Tensor, batch: Tensors) -> None:
        """Hand a hidden state to a stage."""
        channel = self._forward[stage - 1]
        if channel.source == channel.target:
            self._here[_Place(True, stage, microbatch)] = hidden
            return
        assert self._links is not None
        shapes = _shapes(stage, batch)
        if shapes not in self._known:
            self._known[shapes] = hidden.to("meta")
            self._links.tell(channel, hidden)
        self._links.send(channel, hidden)

    def hidden(self, stage: int, microbatch: int, batch: Tensors) -> Tensor:
        """Return the hidden state with which a stage begins."""
        place = _Place(True, stage, microbatch)
        if place in self._here:
            return self._here.pop(place)
        self.expect_hidden(stage, microbatch, batch, is_next=True)
        return self._coming.pop(place).wait()

    def expect_hidden(self, stage: int, microbatch: int, batch: Tensors, *, is_next: bool = False) -> bool:
        """Begin to receive a hidden state, if its shape is known, or must be asked for since it is next.

        Returns:
            Whether it is on its way, or need not be.
        """
        place, channel = _Place(True, stage, microbatch), self._forward[stage - 1]
        if channel.source == channel.target or place in self._coming:
            return True
        assert self._links is not None
        shapes = _shapes(stage, batch)
        if shapes not in self._known:
            if not is_next:
                return False
            self._known[shapes] = self._links.told(channel, self._device)
        like = self._known[shapes]
        empty = torch.empty(0, dtype=like.dtype, device=self._device)
        self._coming[place] = self._links.receive(channel, like.shape, empty)
        return True

    def give_gradient(self, stage: int, microbatch: int, gradient: Tensor) -> None:
        """Hand the gradient of a stage's output back to it."""
        channel = self._backward[stage]
        if channel.source == channel.target:
            self._here[_Place(False, stage, microbatch)] = gradient
            return
        assert self._links is not None
        self._links.send(channel, gradient)

    def gradient(self, stage: int, microbatch: int, output: Tensor) -> Tensor:
        """Return the gradient of a stage's output."""
        place = _Place(False, stage, microbatch)
        if place in self._here:
            return self._here.pop(place)
        self.expect_gradient(stage, microbatch, output)
        return self._coming.pop(place).wait()

    def expect_gradient(self, stage: int, microbatch: int, output: Tensor) -> None:
        """Begin to receive the gradient of a stage's output."""
        place, channel = _Place(False, stage, microbatch), self._backward[stage]
        if channel.source == channel.target or place in self._coming:
            return
        assert self._links is not None
        self._coming[place] = self._links.receive(channel, output.shape, output.detach())


def _shapes(stage: int, batch: Tensors) -> Shapes:
    """Return what the shape and dtype of a hidden state depend on."""
    return stage, torch.is_grad_enabled(), *((name, one.dtype, one.shape) for name, one in batch.items())
