"""The slices of split layers, as one of several processes that are not there would have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainwright.config.distributed import PlanConfig
from trainwright.frameworks.torch.parallel.tensor.parallelize import parallelize
from trainwright.frameworks.torch.parallel.tensor.plan import Plan, layout_of, split_dims
from trainwright.frameworks.torch.parallel.tensor.plans import plan_of
from trainwright.frameworks.torch.parallel.tensor.slices import Slices
from trainwright.frameworks.torch.parallel.virtual_ranks import tree_sum


class PlannedSlices(Slices):
    """The slices of the first of some processes; what the others would send is memory without values.

    Args:
        virtual: The number of slices.
        processes: The number of processes, which divides it.
    """

    def __init__(self, virtual: int, processes: int) -> None:
        super().__init__(virtual)
        self.processes = processes
        self.count = virtual // processes
        self.own = range(self.count)
        self.sent = 0.0  # bytes

    def key(self) -> int:
        """Return a number: nothing is drawn."""
        return 0

    def tree_sum(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum; large ones travel as a reduce-scatter and an all-gather."""
        own = tree_sum(parts)
        if self.processes == 1:
            return own
        self.sent += 2 * own.nbytes * (self.processes - 1) / self.processes
        return tree_sum(self._gathered(own)[:2])

    def join(self, parts: Sequence[Tensor], dim: int, size: int) -> Tensor:
        """Return the whole."""
        own = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
        if self.processes == 1:
            return own
        self.sent += own.nbytes * (self.processes - 1)
        return torch.cat(self._gathered(own), dim).narrow(dim, 0, size)

    def _gathered(self, own: Tensor) -> list[Tensor]:
        return [torch.empty_like(own) for _ in range(self.processes)]


def sliced(module: nn.Module, asked: PlanConfig | None, slices: PlannedSlices) -> None:
    """Have a model compute in slices, and leave it the parameters of the first process alone.

    Raises:
        ModelError: The model cannot be split so.
    """
    if slices.virtual == 1:
        return
    plan = plan_of(module) if asked is None else Plan(**asked.model_dump())
    layout = layout_of(module, plan, slices.virtual)
    parallelize(module, plan, slices)
    for region in layout.regions:
        for name, style in region.styles.items():
            if name in region.fused:
                continue
            layer = module.get_submodule(name)
            for own, dim in split_dims(layer, style).items():
                whole = layer._parameters[own]
                assert whole is not None
                shape = list(whole.shape)
                shape[dim] //= slices.processes
                layer._parameters[own] = nn.Parameter(
                    torch.empty(shape, dtype=whole.dtype), requires_grad=whole.requires_grad
                )
