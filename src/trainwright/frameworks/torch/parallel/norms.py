"""The norm of gradients, added up in an order that does not depend on how they are divided."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def row_squares(gradient: Tensor) -> Tensor:
    """Return the sum of the squares of each row of a gradient, (rows,); of a scalar or a vector, each square.

    A row is what lies along all dimensions but the first. Its sum does not depend on the other rows: on a
    CPU each has a loop of its own, and on a GPU the additions are those of a binary tree.
    """
    squares = gradient.float() if gradient.element_size() < 4 else gradient
    squares = squares * squares
    if gradient.dim() < 2:
        return squares.reshape(-1)
    squares = squares.reshape(len(gradient), -1)  # (rows, elements)
    if not squares.is_cuda:
        # A single row would be divided among threads.
        return squares.expand(2, -1).sum(1)[:1] if len(squares) == 1 else squares.sum(1)
    while (size := squares.shape[1]) > 1:
        half = size // 2
        paired = squares[:, :half] + squares[:, half : 2 * half]
        squares = torch.cat([paired, squares[:, 2 * half :]], dim=1) if size % 2 else paired
    return squares[:, 0]


def norm_of(rows: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together, (), float32.

    Args:
        rows: The sums of the squares of the rows of each, (rows,), in the order of the model.
    """
    if not rows:
        return torch.zeros(())
    return torch.stack([one.double().sum() for one in rows]).sum().sqrt().float()
