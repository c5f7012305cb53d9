"""Split a model by a plan of tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from trainwright.config.distributed import DistributedConfig
from trainwright.frameworks.torch.parallel.tensor.plan import COLWISE, Plan, layout_of, split_dims
from trainwright.frameworks.torch.parallel.tensor.plans import plan_of
from trainwright.frameworks.torch.parallel.tensor.region import (
    RegionForward,
    SequenceForward,
    VocabularyForward,
)
from trainwright.frameworks.torch.parallel.tensor.slices import Slices

if TYPE_CHECKING:  # its module takes a second to import
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Parallelized:
    """The trace of tensor parallelism in a model.

    Attributes:
        columns: The names of the parameters that are split along their second dimension.
        undo: Gives the forward passes back; parameters stay as they are.
    """

    columns: frozenset[str]
    undo: Callable[[], None]


def split(module: nn.Module, distributed: DistributedConfig, mesh: DeviceMesh | None = None) -> Parallelized:
    """Have a model compute in as many slices as a config says, by its plan or by that of the model.

    Args:
        module: The model.
        distributed: The section `distributed` of the config.
        mesh: The processes of the axis `tensor`; None: this one computes all slices.

    Raises:
        ModelError: The plan does not fit the model, or none is known.
    """
    slices = Slices(distributed.virtual.sizes.tensor, mesh, is_exact=distributed.exact)
    if slices.virtual == 1:
        return Parallelized(frozenset(), lambda: None)
    asked = distributed.plan
    if asked is None or not (asked.colwise or asked.rowwise):
        plan = plan_of(module)
        if asked is not None:
            plan = replace(plan, vocabulary=asked.vocabulary, sequence=asked.sequence)
    else:
        plan = Plan(**asked.model_dump())
    return parallelize(module, plan, slices)


def parallelize(module: nn.Module, plan: Plan, slices: Slices) -> Parallelized:
    """Have a model compute in slices, in place, and leave it the parameters of this process's alone.

    With several processes, a split parameter becomes a `DTensor`; the others are the same in all of them. The
    model may be on the device meta.

    Args:
        module: The model.
        plan: Which layers are split.
        slices: The slices.

    Raises:
        ModelError: The plan does not fit the model; see `layout_of`.
    """
    layout = layout_of(module, plan, slices.virtual)
    changed: list[tuple[nn.Module, Any]] = []
    columns: set[str] = set()
    for region in layout.regions:
        part = module.get_submodule(region.name)
        columns |= _distribute(
            module, {name: one for name, one in region.styles.items() if name not in region.fused}, slices
        )
        changed.append((part, vars(part).get("forward")))
        part.forward = RegionForward(part, region, slices)
    for name in layout.vocabulary:
        part = module.get_submodule(name)
        columns |= _distribute(module, {name: COLWISE}, slices)
        changed.append((part, vars(part).get("forward")))
        part.forward = VocabularyForward(part, name, slices)
    for name in layout.sequence:
        part = module.get_submodule(name)
        changed.append((part, vars(part).get("forward")))
        part.forward = SequenceForward(part, name, slices)
    return Parallelized(frozenset(columns), partial(_undo, changed))


def _undo(changed: list[tuple[nn.Module, Any]]) -> None:
    for module, own in reversed(changed):
        if own is None:
            del module.forward
        else:
            module.forward = own
    changed.clear()


def _distribute(module: nn.Module, styles: Mapping[str, str], slices: Slices) -> set[str]:
    """Replace the split parameters of layers by those of this process; name column-split ones."""
    columns: set[str] = set()
    for name, style in styles.items():
        layer = module.get_submodule(name)
        for own, dim in split_dims(layer, style).items():
            if dim == 1:
                columns.add(f"{name}.{own}")
            if slices.mesh is None:
                continue
            whole = layer._parameters[own]
            assert whole is not None
            layer._parameters[own] = nn.Parameter(
                _block(whole.detach(), dim, slices), requires_grad=whole.requires_grad
            )
    return columns


def _block(whole: Tensor, dim: int, slices: Slices) -> Tensor:
    """Return a whole tensor as a `DTensor` that holds the slices of this process."""
    from torch.distributed.tensor import DTensor, Shard

    size = whole.shape[dim] // slices.processes
    own = whole.narrow(dim, slices.rank * size, size).contiguous()
    made: Tensor = DTensor.from_local(
        own.clone() if own.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() else own,
        slices.mesh,
        [Shard(dim)],
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
    return made
