"""The cross entropy of logits that are split by slices of a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainwright.frameworks.torch.parallel import collectives
from trainwright.frameworks.torch.parallel.tensor.slices import Slices


@dataclass(frozen=True)
class SplitLogits:
    """The logits of the slices of a vocabulary that this process has.

    Attributes:
        parts: (..., tokens / slices) each.
        slices: The slices.
    """

    parts: Sequence[Tensor]
    slices: Slices

    def float(self) -> SplitLogits:
        """Return the logits in float32."""
        return SplitLogits([part.float() for part in self.parts], self.slices)

    def nll(self, labels: Tensor, ignored: int) -> Tensor:
        """Return the negative log-likelihood of labels in nats, of their shape; 0 for those that are ignored.

        Args:
            labels: int64, of the shape of the logits but for the last dimension.
            ignored: The label that does not count.
        """
        flat = [part.flatten(0, -2) for part in self.parts]  # (labels, tokens / slices)
        nats: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            self.slices, labels.flatten(), ignored, *flat
        )
        return nats.view(labels.shape)


class _CrossEntropy(torch.autograd.Function):
    """The logarithm of the sum of exponentials, by slices and tree, less the logit of the label."""

    @staticmethod
    def forward(ctx: Any, slices: Slices, labels: Tensor, ignored: int, *parts: Tensor) -> Tensor:
        size = parts[0].shape[1]  # of a slice
        most = torch.stack([part.amax(1) for part in parts]).amax(0)  # (labels,)
        if slices.mesh is not None:
            most = torch.stack(collectives.gather(most, slices.mesh.get_group())).amax(0)
        powers = [(part - most[:, None]).exp_() for part in parts]  # (labels, tokens / slices)
        total = slices.tree_sum([power.sum(1) for power in powers])  # (labels,)
        places = [labels - number * size for number in slices.own]  # of the label in each slice
        own = [
            torch.where(_inside(place, size), part.gather(1, _index(place, size)).squeeze(1), 0.0)
            for part, place in zip(parts, places, strict=True)
        ]
        counts = labels != ignored
        ctx.slices, ctx.size = slices, size
        ctx.save_for_backward(labels, counts, total, *powers)
        return torch.where(counts, total.log() + most - slices.tree_sum(own), 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        labels, counts, total, *powers = ctx.saved_tensors
        gradient = torch.where(counts, gradient, 0.0)
        factor = (gradient / total)[:, None]  # (labels, 1)
        found = []
        for number, power in zip(ctx.slices.own, powers, strict=True):
            place = labels - number * ctx.size
            taken = torch.where(_inside(place, ctx.size), -gradient, 0.0)
            found.append((power * factor).scatter_add_(1, _index(place, ctx.size), taken[:, None]))
        return (None, None, None, *found)


def _inside(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)


def _index(place: Tensor, size: int) -> Tensor:
    """Return an index for `gather`, (labels, 1), which is valid for labels of other slices, too."""
    return place.clamp(0, size - 1)[:, None]
