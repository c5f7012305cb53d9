"""Fully sharded data parallel training: each process holds a part of each parameter (torch's FSDP2).

FSDP2 (Zhao et al., "PyTorch FSDP", VLDB 2023) gathers the parameters of a module before its forward and its
backward pass, and scatters the sums of their gradients afterwards. Here these sums are those of the binary
tree over the virtual ranks: the processes that share parameters out compute neighbouring ranks at the same
time, and their sums, the lowest levels of the tree, are scattered after each of these ranks.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils._pytree import tree_leaves

from trainwright.errors import ModelError
from trainwright.frameworks.torch.parallel import collectives
from trainwright.frameworks.torch.parallel.alike import SamePasses
from trainwright.frameworks.torch.parallel.batch_norm import has_batch_norms
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.stopwatch import waiting
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
    _alike: SamePasses | None = None

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
        divided = {name: weakref.ref(one) for name, one in module.named_parameters() if one not in whole}
        self._divide(module, whole)
        _require_gone(divided)

    def _divide(self, module: nn.Module, whole: set[nn.Parameter]) -> None:
        """Let FSDP2 divide all parameters but some."""
        mesh = self.device_mesh["shard"]
        for part in [*modules_to_wrap(module, self.distributed), module]:
            divided = fully_shard(
                part,
                mesh=mesh,
                reshard_after_forward=self.distributed.reshard_after_forward,
                ignored_params=whole,
            )
            if self.distributed.exact:
                divided.set_custom_all_gather(_AllGather())  # type: ignore[arg-type] # a protocol, as below
                divided.set_custom_reduce_scatter(_TreeReduceScatter())  # type: ignore[arg-type] # a protocol
            divided.set_gradient_divide_factor(1.0)
            divided.set_force_sum_reduction_for_comms(enable=True)
        self._module, self._root = divided, module
        self._group = mesh.get_group()
        if self.distributed.exact:
            for unit in self._units():
                for group in _groups(unit):
                    group._register_post_backward_hook = partial(_end_after_inputs, group)
        if self.distributed.virtual.sizes.pipeline == 1:  # stages end their virtual ranks in turns
            self._alike = self._same_passes(module)

    def _same_passes(self, module: nn.Module) -> SamePasses:
        """Return the check that the processes make the same passes."""
        parameters = {id(one): name for name, one in module.named_parameters()}
        units = [
            (
                name,
                [
                    (group, [parameters[id(one.sharded_param)] for one in group.fsdp_params])
                    for group in _groups(unit)
                ],
            )
            for name, unit in module.named_modules()
            if isinstance(unit, FSDPModule)
        ]
        return SamePasses(units, [self._group, self.process_group("data")], self.device)

    def _units(self) -> list[FSDPModule]:
        """Return the modules whose parameters are gathered together, the whole one first."""
        return [one for one in self._root.modules() if isinstance(one, FSDPModule)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let go of gathered parameters afterwards, which no backward pass does."""
        try:
            yield
        finally:
            for unit in self._units():
                unit.reshard()

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
        stage: Sequence[nn.Parameter] | None = None,
    ) -> None:
        """Add the gradients; at the end of a virtual rank, add up and scatter them, module by module."""
        self._module.set_requires_gradient_sync(ends_part)
        if ends_part and stage is not None:  # other stages of this process end it in other passes
            ended = {id(one) for one in stage}
            for unit in self._units():
                own = {id(one.sharded_param) for one in _divided(unit)}
                unit.set_requires_gradient_sync(own <= ended, recurse=False)
        loss.backward(gradient)

    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up and scatter the gradients of modules that belong to several stages of this process."""
        kept = {id(one.sharded_param): one for unit in self._units() for one in _divided(unit)}
        for parameter in parameters:
            part = kept.get(id(parameter))
            if part is not None and (whole := part._unsharded_param.grad) is not None:
                part._unsharded_param.grad = None
                parameter.grad = self._scattered(local(whole), parameter)

    def _scattered(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return this process's block of the sum of a gradient, (rows, ...), over the shards."""
        size = self._group.size()
        rows = -(-gradient.shape[0] // size)
        padded = gradient.new_zeros(size * rows, *gradient.shape[1:])
        padded[: len(gradient)] = gradient
        mine = padded.new_empty(padded.numel() // size)
        _TreeReduceScatter()(mine, padded.view(-1), self._group)
        block = self.blocks.held(parameter)
        return with_block(mine[: block.numel()].view(block.shape), parameter)

    def end_part(self, *, is_last: bool) -> None:  # noqa: ARG002 - the same for all
        """Take the gradients of the virtual ranks that were computed at the same time."""
        whole = [one for one in self._trained if one.grad is not None and "shard" not in splits_of(one)]
        if self._alike is not None:
            self._alike.end_part([self._names[id(one)] for one in whole])
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
        self._names = {id(one): name for name, one in self._root.named_parameters()}
        if self._alike is not None:
            self._alike.forget()

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


def _require_gone(parameters: Mapping[str, weakref.ref[nn.Parameter]]) -> None:
    """Check that nothing keeps a parameter in whose place FSDP2 has put another one.

    Raises:
        ModelError: The model would compute with it, and nobody would train it.
    """
    if any(one() is not None for one in parameters.values()):
        gc.collect()
    if kept := [name for name, one in parameters.items() if one() is not None]:
        raise ModelError(
            f"distributed.strategy: something keeps the parameter {kept[0]} besides the model's attributes, "
            "such as a list or a closure, which would go on with its initial value; get it from the module "
            "in forward, or use strategy: ddp"
        )


def _divided(unit: FSDPModule) -> list[Any]:
    """Return what FSDP2 knows of each parameter that a module gathers."""
    return [one for group in _groups(unit) for one in group.fsdp_params]


def _groups(unit: FSDPModule) -> list[Any]:
    """Return the groups in which FSDP2 gathers the parameters of a module."""
    state = unit._get_fsdp_state()
    groups: list[Any] | None = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.13 there is one group
        groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return groups


def _end_after_inputs(
    group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """End the backward pass of a module when the gradients of all its inputs are there; change no input.

    FSDP2 itself passes the inputs through a node of the graph, in which the gradients of a module add up
    before those of other modules are added. Where several modules share an input, as decoders do the output
    of an encoder, that is another order of additions than in one process.
    """
    inputs = list({id(one): one for one in _differentiable((args, kwargs))}.values())
    left = len(inputs)

    def arrived(gradient: Tensor) -> None:  # noqa: ARG001 - it stays as it is
        nonlocal left
        left -= 1
        if not left:
            group.post_backward()

    for one in inputs if torch.is_grad_enabled() else ():
        handle = one.register_hook(arrived)
        # Before those with which FSDP2 gathers the parameters of the module that made this input.
        one._backward_hooks.move_to_end(handle.id, last=False)  # type: ignore[union-attr]
    return args, kwargs


def _differentiable(inputs: Any) -> Iterator[Tensor]:
    """Yield the tensors in the inputs of a module that need gradients."""
    return (one for one in tree_leaves(inputs) if isinstance(one, Tensor) and one.requires_grad)


class _AllGather:
    """An all-gather that says how long it waits."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for what is received."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **options: Any) -> Any:
        """Set the output, (size * elements,), to the inputs, (elements,), of all processes."""
        with waiting:
            return collectives.all_gather(output_tensor, input_tensor, group=group, **options)


class _TreeReduceScatter(_AllGather):
    """A reduce-scatter whose additions are those of the binary tree over the processes."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **_: Any) -> None:
        """Set the output, (elements / size,), to the sum of this part of all inputs, (elements,)."""
        received = torch.empty_like(input_tensor)
        with waiting:
            dist.all_to_all_single(received, input_tensor, group=group)
        tree_sum(list(received.view(group.size(), -1)), out=output_tensor)


def _can_be_divided(parameter: nn.Parameter) -> bool:
    """Return whether FSDP2 can divide a parameter by rows; others stay whole in each process.

    It would drop the hooks of a parameter.
    """
    hooks = [parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)]
    has_rows = parameter.dim() > 0 and parameter.numel() > 0
    return has_rows and not any(hooks) and parameter.is_contiguous() and is_dense(parameter)
