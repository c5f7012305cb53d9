"""A pipeline: the stages of a model that this process owns, and the passes through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks

from trainwright.errors import InputError, ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.generators import generators, seed_generators
from trainwright.frameworks.torch.outputs import Outputs
from trainwright.frameworks.torch.parallel.pipeline.links import Channel, Links
from trainwright.frameworks.torch.parallel.pipeline.passes import Computation, Microbatch, Passes
from trainwright.frameworks.torch.parallel.pipeline.schedule import (
    ONE_F_ONE_B,
    ZERO_BUBBLE,
    process_of,
    schedule,
)
from trainwright.frameworks.torch.parallel.pipeline.seams import (
    Places,
    Seam,
    ended_by_stages,
    enter,
    leave,
    skip,
)
from trainwright.frameworks.torch.parallel.pipeline.shared import SharedGradients
from trainwright.frameworks.torch.parallel.pipeline.split import KEY, Stages
from trainwright.frameworks.torch.parallel.pipeline.transfers import Transfers
from trainwright.frameworks.torch.parallel.pipeline.two_parts import REFUSAL
from trainwright.frameworks.torch.parallel.pipeline.uses import Uses
from trainwright.frameworks.torch.state.layout import unusual_strides
from trainwright.order import stream_seed


class Pipeline:
    """The stages of a model, of which this process owns some.

    `place` comes first: before parameters are put on the device, divided, or given to an optimizer.

    Args:
        module: The whole model; its parameters may be on the device meta.
        stages: Its stages.
        uses: Which stages use which parameters.
        links: The processes of the pipeline; None: this one has all stages.
        name: The order of the passes, one of `schedule.SCHEDULES`.

    Raises:
        InputError: The number of processes does not divide that of the stages.
    """

    def __init__(
        self,
        module: nn.Module,
        stages: Stages,
        uses: Uses,
        *,
        links: Links | None = None,
        name: str = ONE_F_ONE_B,
    ) -> None:
        self._module, self.stages, self._uses, self._links, self._name = module, stages, uses, links, name
        self.index, self.size = (0, 1) if links is None else (links.index, links.size)
        if stages.count % self.size:
            divisors = [str(one) for one in range(1, stages.count + 1) if stages.count % one == 0]
            raise InputError(
                f"distributed.pipeline: {self.size} processes given, which do not divide the {stages.count} "
                f"stages ({KEY}); give {', '.join(divisors)}"
            )
        self.owners = [process_of(one, stages.count, self.size, name) for one in range(stages.count)]
        self.owned = [stage for stage, owner in enumerate(self.owners) if owner == self.index]
        self.elsewhere: frozenset[str] = frozenset()  # parameters and buffers that only other processes have
        self.copied: frozenset[str] = frozenset()  # parameters that an earlier process has, too
        self.shared = frozenset(name for name, used in uses.stages.items() if len(used) > 1)
        self._places = Places(module, stages.blocks)
        self._generators: list[torch.Generator] = []
        self.parameters: list[nn.Parameter] = []
        self._own: list[list[nn.Parameter]] = []
        self._is_prepared = False
        self._seed, self._hidden = 0, torch.empty(0)  # with which the next stage begins

    @property
    def is_last(self) -> bool:
        """True if this process has the last stage, which gives the outputs and the loss."""
        return self.owners[-1] == self.index

    def place(self, device: torch.device) -> None:
        """Take away what the stages of this process do not use; a collective call.

        Args:
            device: Where the model computes.

        Raises:
            ModelError: A parameter has strides that each process would save for its own stages alone.
        """
        if self.size > 1 and (odd := unusual_strides(dict(self._module.named_parameters()))):
            raise ModelError(
                f"distributed.pipeline: {next(iter(odd))} is not in row-major order, as a parameter of a "
                "pipeline must be: make it of a tensor's contiguous()"
            )
        names = _names(self._module)
        self.parameter_count = sum(one.numel() for one in self._module.parameters())  # of the whole model
        by_id = {id(one): self._uses.stages[name] for name, one in self._module.named_parameters()}
        self._take_away(by_id, device)
        self.elsewhere = frozenset(names - _names(self._module))
        self.copied = frozenset(
            name
            for name, one in self._module.named_parameters(remove_duplicate=False)
            if self.owners[by_id[id(one)][0]] != self.index
        )
        last = self.stages.count - 1
        self._shared = SharedGradients(
            {name: used for name, used in self._uses.stages.items() if name in self.shared},
            self.owners,
            self._links,
            first_tag=2 * last,
        )
        forward, backward = (
            [Channel(2 * stage + way, *self._ends(stage, stage + 1)[:: 1 - 2 * way]) for stage in range(last)]
            for way in (0, 1)
        )
        if self._links is not None:
            remote = [one for one in (*forward, *backward) if one.source != one.target]
            self._links.open([*remote, *self._shared.channels], device)
        self._transfers = Transfers(self._links, forward, backward, device)
        self._seams = {stage: self._seams_of(stage) for stage in self.owned}
        self._generators = generators(device)
        self._forward = vars(self._module).get("forward")
        self._module.forward = ended_by_stages(self._module.forward)

    def close(self) -> None:
        """Give the module its own forward pass back."""
        if self._forward is None:
            del self._module.forward
        else:
            self._module.forward = self._forward

    def _prepare(self) -> None:
        """Find the parameters that are trained, which a strategy may have put in the place of others."""
        self._is_prepared = True
        live = {name: self._uses.stages[name] for name, _ in self._module.named_parameters()}
        named = dict(self._module.named_parameters())
        self.parameters = list(named.values())
        self._own = [
            [named[name] for name, used in live.items() if used == (stage,)]
            for stage in range(self.stages.count)
        ]
        self._shared.prepare(named)

    def _ends(self, *stages: int) -> tuple[int, ...]:
        return tuple(self.owners[stage] for stage in stages)

    def _take_away(self, by_id: dict[int, tuple[int, ...]], device: torch.device) -> None:
        """Put zeros that take no memory in the place of what other processes have."""
        owned = set(self.owned)
        held = {key for key, used in by_id.items() if owned & {*used}}
        # A block that shares parameters with one of this process stays, and keeps the names of these alike.
        absent = [
            index
            for index in range(len(self._places))
            if self.stages.stage_of(index) not in owned
            and held.isdisjoint(map(id, self._places[index].parameters()))
        ]
        for module in self._module.modules():
            for key, parameter in list(module._parameters.items()):
                if parameter is not None and id(parameter) not in held:
                    del module._parameters[key]
                    module.__dict__[key] = _zeros(parameter, device)
        blocks = [self._places[index] for index in absent]
        for index, block in zip(absent, blocks, strict=True):
            self._places.put(index, Seam(block, skip(self._uses.tuples[index])))
        left = {id(module) for module in self._module.modules()}
        for block in blocks:
            for module in block.modules():
                if id(module) not in left:
                    for key, buffer in list(module._buffers.items()):
                        if buffer is not None:
                            del module._buffers[key]
                            module.__dict__[key] = _zeros(buffer, device)

    def _seams_of(self, stage: int) -> dict[int, nn.Module]:
        """Return what is in the place of blocks while a stage computes, by the index of the block."""
        firsts = self.stages.firsts
        seams: dict[int, nn.Module] = {
            index: Seam(self._places[index], skip(self._uses.tuples[index])) for index in range(firsts[stage])
        }
        if stage > 0:
            seams[firsts[stage]] = Seam(self._places[firsts[stage]], enter(partial(self._entered, stage)))
        if stage + 1 < len(firsts):
            seams[firsts[stage + 1]] = Seam(self._places[firsts[stage + 1]], leave)
        return seams

    def _entered(self, stage: int) -> Tensor:
        """Return the hidden state with which a stage begins; what it draws is a function of its seed."""
        seed_generators(self._generators, stream_seed(self._seed, stage))
        return self._hidden

    def compute(self, stage: int, hidden: Tensor | None, seed: int, call: Callable[[], Outputs]) -> Outputs:
        """Make the forward pass of a stage; return the hidden state for the next one, or the outputs.

        Args:
            stage: The stage, which is this process's.
            hidden: What the stage before it has computed; None for the first one.
            seed: The seed of the microbatch.
            call: Calls the model with the microbatch.
        """
        self._seed = seed
        if hidden is not None:
            # Autocast casts a leaf once for all that use it, and adds their gradients in 16 bits; not so what
            # FSDP2 makes of the leaf.
            self._hidden = hidden.view_as(hidden)
        seed_generators(self._generators, seed)
        try:
            with self._places.replaced(self._seams[stage]), self._unsaved():
                return call()
        finally:
            self._hidden = torch.empty(0)

    def _unsaved(self) -> AbstractContextManager[None]:
        """Return a context in which nobody else says how activations are saved, if passes have two parts."""
        is_divided = self._name == ZERO_BUBBLE and torch.is_grad_enabled()
        return disable_saved_tensors_hooks(REFUSAL) if is_divided else nullcontext()

    def train(
        self, microbatches: Sequence[Microbatch], ranks: Sequence[int], computation: Computation
    ) -> list[Tensor]:
        """Make the forward and backward passes of a step; a collective call.

        Args:
            microbatches: All of them, in the order of their virtual ranks.
            ranks: The virtual ranks, of which some may have no microbatches.
            computation: Does the work of one microbatch.

        Returns:
            The loss of each microbatch, () each, where the last stage is; else none.
        """
        if not self._is_prepared:
            self._prepare()
        passes = Passes(self, self._transfers, self._shared, microbatches, computation)
        actions = schedule(self._name, self.stages.count, self.size, len(microbatches)).actions
        passes.run(actions[self.index], ranks)
        if self._links is not None:
            self._links.finish()
        return passes.losses

    def predict(self, seed: int, batch: Tensors, call: Callable[[Tensors], Outputs]) -> Outputs | None:
        """Make a forward pass through all stages; a collective call.

        Returns:
            The outputs where the last stage is; else None.
        """
        outputs: Outputs | None = None
        for stage in self.owned:
            hidden = self._transfers.hidden(stage, 0, batch) if stage else None
            outputs = self.compute(stage, hidden, seed, lambda: call(batch))
            if stage + 1 < self.stages.count:
                self._transfers.give_hidden(stage + 1, 0, outputs.detach(), batch)
                outputs = None
        return outputs

    def own_parameters(self, stage: int) -> Sequence[nn.Parameter]:
        """Return the parameters that a stage uses alone."""
        return self._own[stage]


def _names(module: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers."""
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name for name, _ in named} | set(module.state_dict())


def _zeros(tensor: Tensor, device: torch.device) -> Tensor:
    """Return zeros of the shape of a tensor that share one element."""
    return torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape)
