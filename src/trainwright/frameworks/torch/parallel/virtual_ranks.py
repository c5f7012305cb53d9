"""The virtual ranks of a batch: fixed parts, whose gradients are summed by one binary tree.

Floating-point sums depend on their order. Here the order is fixed by the number of virtual ranks, so that it
does not matter which process computes which part. (The idea of logical workers, whose number stays fixed
while that of the processes changes, is from VirtualFlow, MLSys 2022, and EasyScale, SC 2023.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Protocol, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from trainwright.frameworks.torch.state.layout import like, local

Gradients: TypeAlias = list[Tensor | None]  # of each parameter; None where the loss does not depend on it


class Rows(Protocol):
    """A sequence that can be cut, (n, ...)."""

    def __len__(self) -> int: ...

    def __getitem__(self, some: slice, /) -> Self: ...


AnyRows = TypeVar("AnyRows", bound=Rows)


def cut(rows: AnyRows, ranks: int) -> list[AnyRows]:
    """Cut the samples of a batch, (batch,), into one part for each virtual rank; a part may be empty."""
    edges = [len(rows) * rank // ranks for rank in range(ranks + 1)]
    return [rows[start:stop] for start, stop in pairwise(edges)]


def microbatches(rows: AnyRows, size: int) -> list[AnyRows]:
    """Cut the samples of a part of a batch, (part,), into microbatches; there is none if it is empty."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def tree_sum(values: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Return the sum of 2^n tensors, added pairwise by the binary tree; `out` may be one of them."""
    sums = list(values)
    while len(sums) > 2:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    if len(sums) == 2:
        return torch.add(*sums, out=out)
    return sums[0] if out is None else out.copy_(sums[0])


class GradientTree:
    """Adds up the gradients of virtual ranks that are computed one after the other.

    The sums of complete subtrees are kept, one for each level: log2(ranks) copies of the gradients at most.

    Args:
        parameters: Where autograd adds the gradients; of `DTensor`s, the blocks of this process are added up.
        blocks: Where the sums go; default: the parameters.
    """

    def __init__(self, parameters: Sequence[Tensor], blocks: Sequence[Tensor] | None = None) -> None:
        self._parameters = parameters
        self._blocks = parameters if blocks is None else blocks
        self._sums: list[tuple[int, Gradients]] = []  # (parts, their sum) of subtrees, the largest first

    def take(self) -> None:
        """Add the gradients of the next virtual rank, and reset them in the parameters to None."""
        parts, gradients = 1, [_gradient(parameter) for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        while self._sums and self._sums[-1][0] == parts:
            _, left = self._sums.pop()
            parts, gradients = 2 * parts, _added(left, gradients)
        self._sums.append((parts, gradients))

    def put_back(self) -> None:
        """Set the gradients of the blocks to the sum over all virtual ranks."""
        ((_, total),) = self._sums
        for block, gradient in zip(self._blocks, total, strict=True):
            block.grad = gradient
        self.clear()

    def with_last(self, indices: Sequence[int]) -> Gradients:
        """Return the sums for some parameters, with the last virtual rank, which `take` has not added."""
        sums = [_gradient(self._parameters[index]) for index in indices]
        for _, left in reversed(self._sums):
            sums = _added([left[index] for index in indices], sums)
        return sums

    def clear(self) -> None:
        """Forget the sums."""
        self._sums.clear()


class PartGradients:
    """The gradients of one virtual rank, apart from those of others that are computed at the same time."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._sums: dict[Tensor, Tensor] = {}

    def add(self, loss: Tensor, *, only: Collection[Tensor] | None = None, retains: bool = False) -> None:
        """Add the gradients of a microbatch's loss, (): of all parameters, or `only` some.

        `retains` says whether the graph is kept for another backward pass.
        """
        trained = [one for one in self._parameters if one.requires_grad and (only is None or one in only)]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True, retain_graph=retains)
        for parameter, gradient in zip(trained, gradients, strict=True):
            if gradient is None:
                continue
            if parameter in self._sums:
                self._sums[parameter] += gradient
            else:  # a copy, since several parameters may have got one tensor
                self._sums[parameter] = like(gradient, parameter, parameter.device)

    def put_back(self) -> None:
        """Set the gradients of the parameters to these."""
        for parameter in self._parameters:
            parameter.grad = self._sums.get(parameter)

    def take(self, parameters: Iterable[Tensor], *, keeps: bool) -> None:
        """Add the gradients of some parameters to those that these have already, and forget them or not."""
        for one in parameters:
            gradient = self._sums.get(one)
            if gradient is not None:
                gradient = gradient.clone() if keeps else self._sums.pop(one)
                one.grad = gradient if one.grad is None else one.grad.add_(gradient)

    def drop(self, parameters: Iterable[Tensor]) -> None:
        """Forget the gradients of some parameters."""
        for one in parameters:
            self._sums.pop(one, None)

    def has(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether some parameter has a gradient."""
        return any(one in self._sums for one in parameters)

    def clear(self) -> None:
        """Forget the gradients."""
        self._sums.clear()


def _gradient(parameter: Tensor) -> Tensor | None:
    return None if parameter.grad is None else local(parameter.grad)


def _added(left: Gradients, right: Gradients) -> Gradients:
    """Return the sums, which reuse the memory of `left`; of `right` where that alone is dense."""
    pairs = [
        (other, one) if _is_sparse(one) and not _is_sparse(other) else (one, other)
        for one, other in zip(left, right, strict=True)
    ]
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    if both:
        torch._foreach_add_(*map(list, zip(*both, strict=True)))
    return [other if one is None else one for one, other in pairs]


def _is_sparse(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.is_sparse
