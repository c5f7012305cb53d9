"""Strategies spread the work of a step and the state of a run over the processes of an attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainwright.config.distributed import DistributedConfig, VirtualConfig
from trainwright.errors import InputError
from trainwright.frameworks.torch.parallel import collectives
from trainwright.frameworks.torch.parallel.blocks import Blocks
from trainwright.frameworks.torch.parallel.norms import Norms
from trainwright.frameworks.torch.parallel.saving import SaveGroup
from trainwright.frameworks.torch.parallel.tensor.parallelize import Parallelized, split
from trainwright.frameworks.torch.parallel.virtual_ranks import GradientTree
from trainwright.frameworks.torch.state.layout import block_of, local, splits_of
from trainwright.frameworks.torch.state.snapshot import OPTIMIZER_FILE, Files, Owned, owner_of
from trainwright.types import Block
from trainwright.world import ALONE, Mesh, World

_CPU = torch.device("cpu")
_ALONE = DistributedConfig(virtual=VirtualConfig(data=1, tensor=1, pipeline=1))


class Strategy:
    """The strategy of a single process, which does all work and holds all state; the base of others.

    The learner calls `place`, then `prepare` before it makes the optimizer, whose parameters are those of
    `blocks`, then `train`. Each step calls
    `backward` after the forward pass of each microbatch, `end_part` after each virtual rank of this process,
    and `reduce`; then, as the config asks, `clip` or `norm`, and the update. A single process with one
    virtual rank calls neither `end_part` nor `reduce`. All processes make the same calls, but for `backward`:
    one may have fewer microbatches of a small batch, or none (see `passes_communicate`). Evaluations make as
    many forward passes in each. Saves and digests call `owned` and `held`.

    The mesh says which processes compute different samples: they differ along the axes `data` and `shard`.

    Parameters may be `DTensor`s, as of FSDP2: their blocks are saved, hashed and restored where they are.

    Args:
        world: The processes of the attempt.
        saving: Those that write checkpoints; None: a single one.
        distributed: The section `distributed` of the config.
        device: Where the model computes.
    """

    divides_state: ClassVar[bool] = False  # whether all processes must save, since none holds everything
    # Whether forward and backward passes wait for other processes, as to gather parameters. All processes
    # then make as many of them, of which some add nothing to the gradients.
    passes_communicate: ClassVar[bool] = False

    def __init__(
        self,
        world: World = ALONE,
        saving: SaveGroup | None = None,
        *,
        distributed: DistributedConfig | None = None,
        device: torch.device = _CPU,
    ) -> None:
        """Take the processes; see the class.

        Raises:
            InputError: They have parts of a model, and share a GPU.
        """
        whole = world.mesh.size == world.mesh.data  # each process has the model
        if device.type == "cuda" and not whole and "cuda:gloo" in dist.get_backend_config():
            raise InputError(
                "distributed.backend: over gloo, processes that have parts of a model cannot use a GPU; use "
                "nccl, with a GPU for each process, or training.device: cpu"
            )
        self.world = world
        self.shared: frozenset[str] = frozenset()  # parameters whose gradients several stages add up
        self.copied: frozenset[str] = frozenset()  # parameters that an earlier stage of a pipeline has, too
        self.saving = saving
        self.distributed = distributed or _ALONE
        # Whether the bits must be those of a mesh that divides parameters otherwise.
        self.is_exact = self.distributed.exact and self.distributed.virtual.sizes.size > 1
        self.blocks = Blocks([])
        self.column_split: set[int] = set()  # ids of parameters whose columns the virtual mesh splits
        self._tree = GradientTree([])
        self._norms: Norms | None = None
        self._split = Parallelized(frozenset(), lambda: None)
        self._device_mesh: DeviceMesh | None = None
        self.device = device

    @classmethod
    def chosen(cls, module: nn.Module, world: World, virtual: Mesh) -> type[Strategy]:  # noqa: ARG003 - for others
        """Return the strategy that trains a module; it may be another one than the config names.

        It may also change which axes of the mesh the processes form, from what the module is; all alike.

        Args:
            module: The module, before it is placed.
            world: The processes.
            virtual: The sizes of the virtual mesh.
        """
        return cls

    # --- the work of a step

    def place(self, module: nn.Module) -> None:
        """Place the parameters of a module, in place, where this process computes with them.

        The module may be on the device meta: it gets its weights afterwards.
        """
        several = self.world.mesh.tensor > 1
        self._split = split(module, self.distributed, self.device_mesh["tensor"] if several else None)

    def prepare(self, module: nn.Module, whole: Collection[str] = ()) -> None:
        """Prepare the update of the parameters, which are placed; a collective call.

        Args:
            module: The module.
            whole: The names of the parameters whose update is not one of element by element.
        """
        split = self._split.columns
        self.column_split = {id(one) for name, one in module.named_parameters() if name in split}
        named = dict(module.named_parameters())
        undivided = {id(one) for name, one in named.items() if name in whole}
        self.blocks = Blocks(
            list(named.values()),
            fills=self.is_exact,
            whole=undivided,
            offloads=self.distributed.offload,
        )
        own = {id(one): name for name, one in module.named_parameters() if name not in self.copied}
        mesh, stages = self.world.mesh, {0: list(own.values())}
        for process, names in enumerate(self.world.gather(stages[0]) if mesh.pipeline > 1 else ()):
            stages[mesh.coordinates(process).pipeline] = names
        counted = [stages[stage] for stage in range(mesh.pipeline)]
        self._norms = Norms(mesh, self.process_group, self._pieces, own, counted, self.device)

    @property
    def groups(self) -> int:
        """The number of groups of processes that compute different samples."""
        return self.world.mesh.data * self.world.mesh.shard

    def group(self, process: int) -> int:
        """Return the group of a process, counted from 0."""
        place = self.world.mesh.coordinates(process)
        return place.data * self.world.mesh.shard + place.shard

    def ranks(self, process: int, virtual: int) -> Sequence[int]:
        """Return which of the `virtual` ranks of a batch a process computes, in this order."""
        count, group = virtual // self.groups, self.group(process)
        return range(group * count, (group + 1) * count)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context for forward passes that no backward pass follows."""
        return nullcontext()

    def train(self, parameters: Sequence[nn.Parameter]) -> None:
        """Prepare to sum the gradients of these parameters; the others are frozen until the next call."""
        self._tree = GradientTree(parameters, [self.blocks.held(one) for one in parameters])

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        *,
        ends_part: bool = False,  # noqa: ARG002 - for others
        is_last: bool = False,  # noqa: ARG002 - for others
        stage: Sequence[nn.Parameter] | None = None,  # noqa: ARG002 - for others
    ) -> None:
        """Add the gradients of a loss, (), to those of the parameters.

        Args:
            loss: The loss of a microbatch, or what a stage of a pipeline hands on.
            gradient: The gradient of what a stage hands on; None for a loss.
            ends_part: Whether the gradients of a virtual rank are complete then, in this stage.
            is_last: Whether all gradients of this process are; never said of a pipeline.
            stage: The parameters that the stage uses alone; None: there are no stages.
        """
        loss.backward(gradient)

    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put the gradients of a virtual rank into parameters, where a stage of a pipeline has ended it."""

    def end_part(self, *, is_last: bool) -> None:  # noqa: ARG002 - for others
        """Take the gradients of a virtual rank out of the parameters; of the last one, this may be later."""
        self._tree.take()

    def reduce(self) -> None:
        """Set the gradients of the blocks to the sum over all virtual ranks.

        The sum is that of one binary tree over the ranks (`virtual_ranks.tree_sum`), whatever the processes.

        Raises:
            WorldError: Another process is gone.
        """
        self._tree.put_back()

    def norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return the norm of the gradients of all parameters together, ()."""
        live = [(one, held.grad) for one in parameters if (held := self.blocks.held(one)).grad is not None]
        if not self.is_exact and self.world.mesh.data == self.world.size:
            return nn.utils.get_total_norm([gradient for _, gradient in live])
        assert self._norms is not None, "`prepare` comes first"
        return self._norms.total(live)

    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients so that their norm is at most `most`; return the norm that they had, ()."""
        norm = self.norm(parameters)
        nn.utils.clip_grads_with_norm_([self.blocks.held(one) for one in parameters], most, norm)
        return norm

    def largest(self, value: Tensor) -> Tensor:
        """Return the largest of the values, (), of the processes that have parts of the parameters."""
        for axis in ("shard", "tensor", "pipeline"):
            if getattr(self.world.mesh, axis) > 1:
                value = torch.stack(collectives.gather(value, self.process_group(axis))).max()
        return value

    @property
    def device_mesh(self) -> DeviceMesh:
        """Torch's mesh of the processes, with our axes; the first use is collective."""
        if self._device_mesh is None:
            sizes, names = tuple(self.world.mesh), self.world.mesh._fields
            self._device_mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
        return self._device_mesh

    def process_group(self, axis: str) -> Any:
        """Return torch's group of the processes along an axis that this one is in."""
        return self.device_mesh.get_group(axis)

    def _pieces(self, parameter: nn.Parameter) -> int:
        """Return the number of pieces of the rows of a parameter that this process has."""
        slices = self.distributed.virtual.sizes.tensor // self.world.mesh.tensor
        return slices if id(parameter) in self.column_split else 1

    def close(self) -> None:
        """Take what was added off the module, which the user may go on with."""
        self._split.undo()

    # --- the state

    @property
    def index(self) -> int | None:
        """The number of this process among those that save; None: it saves nothing."""
        return 0 if self.saving is None else self.saving.index

    @property
    def savers(self) -> int:
        """The number of processes that save."""
        return 1 if self.saving is None else len(self.saving.ranks)

    def held(self, files: Files) -> Owned:
        """Return what this process holds of the state.

        A tensor is either whole in each process that holds it, with the same bytes, or divided into blocks:
        then each element is in the block of one process. Of copies of a block, the first is held.

        Args:
            files: The live tensors, by file and by name, as far as this process has them.
        """
        tensors: Files = {}
        blocks: dict[str, dict[str, Block]] = {}
        for file, some in files.items():
            places = {name: place for name, one in some.items() if (place := block_of(one)) is not None}
            held = {
                name: one
                for name, one in some.items()
                if name not in places or (self._is_first(one) and owner_of(file, name) not in self.copied)
            }
            tensors[file] = {name: local(one) for name, one in held.items()}
            blocks[file] = {name: place for name, place in places.items() if name in held}
        return Owned(tensors, blocks)

    def _is_first(self, divided: Tensor) -> bool:
        """Return whether this process is the first of those that have the same block of a `DTensor`."""
        place, axes = self.world.mesh.coordinates(self.world.rank), splits_of(divided)
        return not any(getattr(place, axis) for axis in ("data", "shard", "tensor") if axis not in axes)

    def owned(self, files: Files) -> Owned:
        """Return what this process saves of what it holds, under the names of its own files.

        Each element of the state is saved by one process, and a file has at most one block of a tensor. Here,
        each saves its blocks; of whole tensors the first one the weights, all a part of the optimizer's.
        """
        if self.index is None:
            return Owned({})
        held, blocks = self.held(files)
        whole = {
            file: {name: one for name, one in some.items() if name not in blocks.get(file, {})}
            for file, some in held.items()
        }
        savers = self._savers(whole)
        mine = {
            self.own_file(file): {
                name: one for name, one in some.items() if savers.get((file, name), self.index) == self.index
            }
            for file, some in held.items()
        }
        return Owned(
            {file: some for file, some in mine.items() if some or self.index == 0},
            {self.own_file(file): some for file, some in blocks.items()},
        )

    def _savers(self, whole: Files) -> dict[tuple[str, str], int]:
        """Return which process saves each whole tensor: all divide alike.

        All of them have it, or those of some stages of a pipeline.
        """
        sizes = {(file, name): one.nbytes for file, some in whole.items() for name, one in some.items()}
        of_all = [sizes] * self.savers if self.world.mesh.pipeline == 1 else self.world.gather(sizes)
        holders: dict[tuple[str, str], list[int]] = {}
        for index, some in enumerate(of_all):
            for key in some:
                holders.setdefault(key, []).append(index)
            sizes = {**some, **sizes}
        savers = {key: indices[0] for key, indices in holders.items()}
        loads = [0] * self.savers
        for key, saver in savers.items():
            if key[0] != OPTIMIZER_FILE:
                loads[saver] += sizes[key]
        for size, key in sorted((-sizes[key], key) for key in savers if key[0] == OPTIMIZER_FILE):
            savers[key] = min(holders[key], key=loads.__getitem__)
            loads[savers[key]] -= size
        return savers

    def own_file(self, file: str) -> str:
        """Return the name of this process's file: `weights.safetensors` or `weights.1.safetensors`."""
        path = Path(file)
        return file if self.index == 0 else f"{path.stem}.{self.index}{path.suffix}"
