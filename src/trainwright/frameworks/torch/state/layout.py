"""The memory layout of tensors: which strides they have, and copies that keep them.

A fused optimizer pairs the elements of a parameter and of its moments by their position in memory. A state
that is restored with other strides is another state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from trainwright.types import Block

Strides = dict[str, list[int]]


def is_divided(tensor: Tensor) -> bool:
    """Return whether a tensor is a `DTensor`, whose module takes a second to import."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return what this process has in memory: of a `DTensor` its block, else the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    block: Tensor = tensor if to_local is None else to_local()
    return block


def block_of(tensor: Any) -> Block | None:
    """Return where the block of a `DTensor` lies that this process has; None: it has the whole tensor."""
    if not is_divided(tensor) or all(_dim(one) is None for one in tensor.placements):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Block(tuple(offset), tuple(tensor.shape))


def splits_of(tensor: Any) -> dict[str, int]:
    """Return the axes of the mesh along which a tensor is divided, and the dimension that each divides."""
    if not is_divided(tensor):
        return {}
    pairs = zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=False)
    return {name: dim for name, one in pairs if (dim := _dim(one)) is not None}


def _dim(placement: Any) -> int | None:
    """Return the dimension that a placement divides; FSDP2 has one of its own besides `Shard`."""
    dim: int | None = getattr(placement, "dim", None)
    return dim


def with_block(block: Tensor, tensor: Any) -> Tensor:
    """Return a `DTensor` laid out as another one, whose block in this process is this one."""
    from torch.distributed.tensor import DTensor

    if block.device.type != tensor.device_mesh.device_type:  # it was offloaded; `from_local` would copy it
        return DTensor(block, tensor._spec, requires_grad=False)
    made: Tensor = DTensor.from_local(
        block,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return made


def address(tensor: Tensor) -> int:
    """Return the address of the memory that a tensor is a part of."""
    return local(tensor).untyped_storage().data_ptr()


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill one block of memory, each once, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def is_expanded(tensor: Tensor) -> bool:
    """Return whether elements share memory, as `expand` makes them."""
    if is_lazy(tensor):
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share memory."""
    if address(one) != address(other):
        return False
    (begin, end), (other_begin, other_end) = _extent(local(one)), _extent(local(other))
    return begin < other_end and other_begin < end


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses at which the memory of a tensor begins and ends."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (steps + 1) * tensor.element_size()


def unusual_strides(tensors: Mapping[str, Tensor]) -> Strides:
    """Return the strides of those tensors that are not in row-major order, by name."""
    return {name: list(tensor.stride()) for name, tensor in tensors.items() if not tensor.is_contiguous()}


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy values into a tensor, which may be expanded: elements that share memory get the first value."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if stride == 0 and size > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


def with_strides(source: Tensor, strides: Sequence[int] | None, device: torch.device) -> Tensor:
    """Return a copy on a device that has these strides; None stands for row-major order."""
    if strides is None:
        return source.to(device).contiguous()
    copy = torch.empty_strided(source.shape, strides, dtype=source.dtype, device=device)
    copy_into(copy, source)
    return copy


def like(source: Tensor, parameter: Tensor, device: torch.device) -> Tensor:
    """Return a copy on a device with the strides of `torch.zeros_like(parameter)`, which moments have."""
    if source.shape != parameter.shape:
        return source.to(device)
    return torch.empty_like(parameter, dtype=source.dtype, device=device, requires_grad=False).copy_(source)


@contextmanager
def writable(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let torch write expanded tensors within the block; it refuses to, since their elements share memory."""
    expanded = [(tensor, tensor.data) for tensor in tensors if is_expanded(tensor)]
    for tensor, view in expanded:
        tensor.data = view.clone()
    try:
        yield
    finally:
        for tensor, view in expanded:
            copy_into(view, tensor.data)
            tensor.data = view
