"""Fully sharded data parallel training: each process holds a part of each parameter (torch's FSDP2).

FSDP2 (Zhao et al., "PyTorch FSDP", VLDB 2023) gathers the parameters of a module before its forward and its
backward pass, and scatters the sums of their gradients afterwards. Here these sums are those of the binary
tree over the virtual ranks: the processes that share parameters out compute neighbouring ranks at the same
time, and their sums, the lowest levels of the tree, are scattered after each of these ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainwright.frameworks.torch.parallel import collectives
from trainwright.frameworks.torch.parallel.batch_norm import has_batch_norms
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.parallel.virtual_ranks import tree_sum
from trainwright.frameworks.torch.parallel.wrapping import modules_to_wrap
from trainwright.frameworks.torch.state.layout import is_dense, local, splits_of, with_block
from trainwright.world import Mesh, World

log = logging.getLogger("trainwright")


class FullySharded(Strategy):
    """The processes along the axis `shard` share parameters, gradients and optimizer state out among them."""

    divides_state: ClassVar[bool] = True
    passes_communicate: ClassVar[bool] = True

    @classmethod
    def chosen(cls, module: nn.Module, world: World, virtual: Mesh) -> type[Strategy]:
        """Return `DataParallel` for a model that FSDP2 cannot gather: one of several ranks in lockstep."""
        mesh = world.mesh
        if virtual.data == mesh.data * mesh.shard or not has_batch_norms(module):
            return cls
        if world.is_main:
            log.info(
                "strategy: each process holds all parameters, as with ddp, since the model normalizes over "
                "the batch, and each computes several virtual ranks together"
            )
        return replicated(world)

    def place(self, module: nn.Module) -> None:
        """Let each process keep its rows of each parameter, and gather the others' when they are needed."""
        super().place(module)
        whole = {
            one
            for name, one in module.named_parameters()
            if not _can_be_divided(one) or name in self.shared  # over the stages of each virtual rank first
        }
        mesh = self.device_mesh["shard"]
        for part in [*modules_to_wrap(module, self.distributed.wrap), module]:
            divided = fully_shard(
                part,
                mesh=mesh,
                reshard_after_forward=self.distributed.reshard_after_forward,
                ignored_params=whole,
            )
            if self.distributed.exact:
                divided.set_custom_reduce_scatter(_TreeReduceScatter())  # type: ignore[arg-type] # a protocol
            divided.set_gradient_divide_factor(1.0)
            divided.set_force_sum_reduction_for_comms(enable=True)
        self._module, self._root = divided, module
        self._has_stages = self.distributed.virtual.sizes.pipeline > 1
        self._group = mesh.get_group()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let go of gathered parameters afterwards, which no backward pass does."""
        try:
            yield
        finally:
            for part in self._root.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()

    def ranks(self, process: int, virtual: int) -> Sequence[int]:
        """Return the ranks of a process: those that it computes at the same time as its neighbours."""
        mesh, place = self.world.mesh, self.world.mesh.coordinates(process)
        count = virtual // self.groups
        return [(place.data * count + number) * mesh.shard + place.shard for number in range(count)]

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        *,
        ends_part: bool = False,
        is_last: bool = False,  # noqa: ARG002
    ) -> None:
        """Add the gradients; at the end of a virtual rank, add up and scatter them."""
        # The stages of a pipeline end a virtual rank one after the other, which FSDP2 does not know.
        self._module.set_requires_gradient_sync(ends_part and not self._has_stages)
        loss.backward(gradient)

    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up and scatter the gradients of a virtual rank that FSDP2 has kept for a stage."""
        kept = {id(one.sharded_param): one for one in self._fsdp_parameters()}
        divided = [(one, kept[id(one)]) for one in parameters if id(one) in kept]
        whole = [(one, part) for one, part in divided if part._unsharded_param.grad is not None]
        if not whole:
            return
        size = self._group.size()
        rows = [-(-local(part._unsharded_param.grad).shape[0] // size) for _, part in whole]
        sent = []
        for count, (_, part) in zip(rows, whole, strict=True):
            gradient = local(part._unsharded_param.grad)  # (rows, ...)
            padded = gradient.new_zeros(size * count, *gradient.shape[1:])
            padded[: len(gradient)] = gradient
            sent.append(padded.view(size, -1))
            part._unsharded_param.grad = None
        flat = torch.cat(sent, dim=1)  # (processes, elements)
        total = flat.new_empty(flat.shape[1])
        _TreeReduceScatter()(total, flat.view(-1), self._group)
        for (parameter, _), mine in zip(
            whole, torch.split(total, [one.shape[1] for one in sent]), strict=True
        ):
            block = self.blocks.held(parameter)
            gradient = mine[: block.numel()].view(block.shape).clone()
            parameter.grad = with_block(gradient, parameter)

    def _fsdp_parameters(self) -> list[Any]:
        """Return what FSDP2 knows of each parameter that it divides."""
        modules = [one for one in self._root.modules() if isinstance(one, FSDPModule)]
        groups = [group for one in modules for group in _groups_of(one)]
        return [one for group in groups for one in group.fsdp_params]

    def end_part(self, *, is_last: bool) -> None:  # noqa: ARG002 - the same for all
        """Take the gradients of the virtual ranks that were computed at the same time."""
        whole = [one for one in self._trained if one.grad is not None and "shard" not in splits_of(one)]
        for one, total in zip(whole, self._sums([one.grad for one in whole]), strict=True):  # type: ignore[misc]
            one.grad = total
        self._tree.take()

    def _sums(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over the shards of gradients that are not divided."""
        if not gradients:
            return []
        flat = torch.cat([one.reshape(-1) for one in gradients])
        total = tree_sum(collectives.gather(flat, self._group))
        parts = torch.split(total, [one.numel() for one in gradients])
        pairs = zip(gradients, parts, strict=True)
        return [torch.empty_like(one).copy_(part.view(one.shape)) for one, part in pairs]

    def train(self, parameters: Sequence[nn.Parameter]) -> None:
        """Prepare to sum the gradients of the blocks of these parameters."""
        super().train(parameters)
        self._trained = parameters

    def reduce(self) -> None:
        """Set the gradients of the blocks to the sum over all virtual ranks."""
        super().reduce()
        if self.world.mesh.data > 1:
            held = map(self.blocks.held, self._trained)
            gradients = [one.grad for one in held if one.grad is not None]
            group = self.process_group("data")
            collectives.tree_all_reduce(gradients, group, is_exact=self.distributed.exact)


def replicated(world: World) -> type[Strategy]:
    """Return the strategy in which each process holds all parameters, and give it the processes."""
    world.mesh = world.mesh._replace(data=world.mesh.data * world.mesh.shard, shard=1)
    return DataParallel


def _groups_of(module: FSDPModule) -> list[Any]:
    """Return the groups of parameters that a module gathers; before torch 2.13 it has one."""
    state = module._get_fsdp_state()
    several: list[Any] | None = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return several
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


class _TreeReduceScatter:
    """A reduce-scatter whose additions are those of the binary tree over the processes."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for what is sent or received."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **_: Any) -> None:
        """Set the output, (elements / size,), to the sum of this part of all inputs, (elements,)."""
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        tree_sum(list(received.view(group.size(), -1)), out=output_tensor)


def _can_be_divided(parameter: nn.Parameter) -> bool:
    """Return whether FSDP2 can divide a parameter by rows; others stay whole in each process."""
    return parameter.dim() > 0 and parameter.is_contiguous() and is_dense(parameter)
