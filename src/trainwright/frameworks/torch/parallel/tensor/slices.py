"""The slices of tensor parallelism, and how values pass between all of them and the whole.

Floating-point sums depend on their order. Here a split layer is always computed in the same number of slices,
and what they add up to is the sum by one binary tree, so that it does not matter which process computes which
slice. The functions are those of Megatron-LM (Shoeybi et al., 2019), where a process has one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from trainwright.frameworks.torch.parallel import collectives
from trainwright.frameworks.torch.parallel.virtual_ranks import tree_sum

if TYPE_CHECKING:  # its module takes a second to import
    from torch.distributed.device_mesh import DeviceMesh


_SMALL = 1 << 16  # bytes, up to which one collective takes less time than two that send less


class Slices:
    """The slices of each split layer, of which this process computes some.

    Args:
        virtual: The number of slices, a power of two.
        mesh: The processes of the axis `tensor`, which divide the slices evenly, in order; None: this one has
            all.
        is_exact: Whether sums are those of the tree; else they are the backend's.

    Raises:
        ValueError: So many processes cannot.
    """

    def __init__(self, virtual: int, mesh: DeviceMesh | None = None, *, is_exact: bool = True) -> None:
        self.virtual = virtual
        self._is_exact = is_exact
        self.mesh = None if mesh is None or mesh.size() == 1 else mesh
        self.processes = 1 if self.mesh is None else self.mesh.size()
        if virtual < 1 or virtual & (virtual - 1) or virtual % self.processes:
            raise ValueError(
                f"{virtual} slices on {self.processes} processes: a power of two is needed, and processes "
                "that divide it"
            )
        self.count = virtual // self.processes  # of this process
        self.rank = 0 if self.mesh is None else self.mesh.get_local_rank()
        self.own = range(self.rank * self.count, (self.rank + 1) * self.count)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the slices themselves: a copy of a module has the same processes."""
        return self

    def key(self) -> int:
        """Draw the number from which the random numbers of the slices are seeded."""
        return int(torch.randint(1 << 62, (), generator=torch.default_generator, device="cpu"))

    def copy(self, whole: Tensor) -> Sequence[Tensor]:
        """Return the tensor for each slice of this process; its gradient is the sum of theirs."""
        if not (whole.requires_grad and torch.is_grad_enabled()):
            return [whole] * self.count
        copies: Sequence[Tensor] = _Copy.apply(self, whole)  # type: ignore[no-untyped-call]
        return copies

    def sum(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum over all slices, given those of this process, of equal shapes."""
        total: Tensor = _Sum.apply(self, *parts)  # type: ignore[no-untyped-call]
        return total

    def scatter(self, whole: Tensor, dim: int) -> Sequence[Tensor]:
        """Return the parts of a tensor along a dimension, one for each slice of this process.

        The dimension is cut evenly up to one element. The gradient is put together of those of all slices.
        """
        parts: Sequence[Tensor] = _Scatter.apply(self, whole, dim)  # type: ignore[no-untyped-call]
        return parts

    def gather(self, parts: Sequence[Tensor], dim: int, size: int) -> Tensor:
        """Return the whole of which `scatter` makes these parts; it has this size along the dimension."""
        whole: Tensor = _Gather.apply(self, dim, size, *parts)  # type: ignore[no-untyped-call]
        return whole

    def edges(self, size: int) -> list[int]:
        """Return where each slice of a dimension begins, and the last one ends: virtual + 1 numbers."""
        return [size * number // self.virtual for number in range(self.virtual + 1)]

    def tree_sum(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum by the tree over all slices, without a gradient."""
        own = tree_sum(parts)  # a whole subtree, since the slices of a process are neighbours
        if self.mesh is None:
            return own
        if self._is_exact and (self.processes == 2 or own.nbytes < _SMALL):
            return tree_sum(collectives.gather(own, self.mesh.get_group()))
        total = own.clone(memory_format=torch.contiguous_format)
        collectives.tree_all_reduce([total], self.mesh.get_group(), is_exact=self._is_exact)
        return total

    def cut(self, whole: Tensor, dim: int) -> list[Tensor]:
        """Return the parts of a tensor along a dimension, one for each slice of this process."""
        edges = self.edges(whole.shape[dim])
        return [whole.narrow(dim, edges[one], edges[one + 1] - edges[one]) for one in self.own]

    def join(self, parts: Sequence[Tensor], dim: int, size: int) -> Tensor:
        """Return the whole, given the parts of this process, without a gradient."""
        own = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
        if self.mesh is None:
            return own
        edges = self.edges(size)[:: self.count]
        sizes = [after - before for before, after in pairwise(edges)]
        longest = max(sizes)  # collectives want equal shapes
        if own.shape[dim] < longest:
            missing = list(own.shape)
            missing[dim] = longest - own.shape[dim]
            own = torch.cat([own, own.new_zeros(missing)], dim)
        parts = collectives.gather(own, self.mesh.get_group())
        return torch.cat([part.narrow(dim, 0, one) for part, one in zip(parts, sizes, strict=True)], dim)


class _Copy(torch.autograd.Function):
    """Forward: the tensor for each slice. Backward: the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, slices: Slices, whole: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.slices = slices
        return tuple(whole.view_as(whole) for _ in range(slices.count))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor | None]:
        if any(one is None for one in gradients):  # of none, since all slices are computed alike
            return None, None
        return None, ctx.slices.tree_sum(gradients)


class _Sum(torch.autograd.Function):
    """Forward: the sum over all slices. Backward: its gradient for each."""

    @staticmethod
    def forward(ctx: Any, slices: Slices, *parts: Tensor) -> Tensor:
        ctx.count = len(parts)
        total = slices.tree_sum(parts)
        return total.view_as(total) if total is parts[0] else total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *[gradient] * ctx.count)


class _Scatter(torch.autograd.Function):
    """Forward: the parts of this process. Backward: the whole of all parts' gradients."""

    @staticmethod
    def forward(ctx: Any, slices: Slices, whole: Tensor, dim: int) -> tuple[Tensor, ...]:
        ctx.slices, ctx.dim, ctx.size = slices, dim, whole.shape[dim]
        return tuple(part.contiguous() for part in slices.cut(whole, dim))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        return None, ctx.slices.join(gradients, ctx.dim, ctx.size), None


class _Gather(torch.autograd.Function):
    """Forward: the whole of all parts. Backward: the parts of its gradient."""

    @staticmethod
    def forward(ctx: Any, slices: Slices, dim: int, size: int, *parts: Tensor) -> Tensor:
        ctx.slices, ctx.dim = slices, dim
        whole = slices.join(parts, dim, size)
        return whole.view_as(whole) if whole is parts[0] else whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.slices.cut(gradient, ctx.dim)
        return (None, None, None, *[part.contiguous() for part in parts])
