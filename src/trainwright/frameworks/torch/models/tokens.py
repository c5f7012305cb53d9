"""The parts that models over tokens share: which tokens count, and what stands for all tokens of a text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STD = 0.02  # of the initial vectors of tokens


class Embedding(nn.Embedding):
    """Vectors of tokens or positions, small at first."""

    def reset_parameters(self) -> None:
        """Draw the vectors."""
        nn.init.normal_(self.weight, std=_STD)


def counted(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return which tokens count, (rows, length) bool; without a mask all of them."""
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    return attention_mask.bool()


def pooled(hidden: Tensor, is_counted: Tensor, pooling: str) -> Tensor:
    """Return the mean or the maximum over the tokens that count.

    Args:
        hidden: (rows, length, width).
        is_counted: (rows, length) bool.
        pooling: `mean` or `max`.

    Returns:
        (rows, width).
    """
    weights = is_counted.unsqueeze(-1)  # (rows, length, 1)
    if pooling == "max":
        return hidden.masked_fill(~weights, torch.finfo(hidden.dtype).min).amax(dim=1)
    total = (hidden * weights).sum(dim=1)  # (rows, width)
    return total / weights.sum(dim=1).clamp(min=1)
