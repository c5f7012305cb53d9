"""Stages of equal times: how long each block of a model takes is measured with one microbatch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainwright.frameworks.torch.generators import generators
from trainwright.frameworks.torch.initial import materialise
from trainwright.frameworks.torch.outputs import Outputs
from trainwright.frameworks.torch.parallel.pipeline.seams import Places, Seam, first_argument
from trainwright.frameworks.torch.parallel.pipeline.split import Stages, balanced, split
from trainwright.frameworks.torch.state.structure import Held

log = logging.getLogger("trainwright")
MEASURED = "measured"  # in place of the names, in the config
_REPETITIONS = 4  # the first one warms up; of the others, the shortest counts


class Times(NamedTuple):
    """The times of a forward and a backward pass, in microseconds.

    Attributes:
        before: Of what comes before the first block.
        blocks: Of each block.
        after: Of what comes after the last one, with the loss.
    """

    before: int
    blocks: list[int]
    after: int

    def of_stages(self, stages: Stages) -> list[int]:
        """Return the time of each stage."""
        edges = [*stages.firsts, len(self.blocks)]
        times = [sum(self.blocks[edges[i] : edges[i + 1]]) for i in range(stages.count)]
        times[0] += self.before
        times[-1] += self.after
        return times


def measured_split(
    module: nn.Module,
    count: int,
    device: torch.device,
    compute: Callable[[nn.Module], Outputs],
    loss: Callable[[Outputs], Tensor],
) -> list[str]:
    """Return the names of the first blocks of all stages but the first one, so that these take equal times.

    Args:
        module: The model, in training mode; if it is on the device meta, one block at a time gets memory.
        count: The number of stages.
        device: Where it is measured.
        compute: Calls a model like this one with a microbatch.
        loss: Returns the loss, (), of the outputs.

    Raises:
        ModelError: The model has no blocks, or too few.
    """
    stages = split(module, count)
    times = _Measurement(module, stages, device).run(compute, loss)
    stages = Stages(stages.blocks, tuple(balanced(times.blocks, count, times.before, times.after)))
    first = [stages.blocks[index] for index in stages.firsts[1:]]
    log.info(
        "pipeline_split: %s; measured in ms: %s before the blocks, %s in the blocks, %s after them; so the "
        "stages take %s",
        ", ".join(first),
        *(_in_ms(some) for some in ([times.before], times.blocks, [times.after], times.of_stages(stages))),
    )
    return first


class _Measurement:
    """The forward and backward passes that are measured; the model is as before afterwards."""

    def __init__(self, module: nn.Module, stages: Stages, device: torch.device) -> None:
        self._module, self._names, self._device = module, stages.blocks, device
        self._is_meta = any(one.is_meta for one in module.parameters())
        self._outputs: dict[int, Any] = {}  # of each block, once it has been measured
        self._blocks = [0.0] * len(stages.blocks)
        self._before: list[float] = []
        self._start = self._end = 0.0

    def run(self, compute: Callable[[nn.Module], Outputs], loss: Callable[[Outputs], Tensor]) -> Times:
        """Return the times."""
        own = generators(self._device)
        states, held, after = [one.get_state() for one in own], Held(self._module), list[float]()
        blocks = [self._module.get_submodule(name) for name in self._names]
        seams = {index: Seam(block, partial(self._block, index)) for index, block in enumerate(blocks)}
        try:
            model = self._without_blocks() if self._is_meta else self._module
            with Places(model, self._names).replaced(seams), torch.enable_grad():
                for _ in range(_REPETITIONS):
                    self._start = self._now()
                    loss(compute(model)).backward()
                    after.append(self._now() - self._end)
        finally:
            self._outputs.clear()
            held.put_back()
            for one in self._module.parameters():
                one.grad = None
            for generator, state in zip(own, states, strict=True):
                generator.set_state(state)
        return Times(_best(self._before), [round(1e6 * one) for one in self._blocks], _best(after))

    def _without_blocks(self) -> nn.Module:
        """Return a copy of the model, on the device, that has nothing in the place of the blocks."""
        places = Places(self._module, self._names)
        with places.replaced({index: nn.Identity() for index in range(len(places))}):
            copied = deepcopy(self._module)
        return _with_values(copied, self._device)

    def _block(self, index: int, block: nn.Module, *inputs: Any, **named: Any) -> Any:
        """Return a block's output, as if it depended on nothing; measure it the first time."""
        hidden = first_argument(inputs, named)
        if index == 0:
            if hidden.requires_grad:
                hidden.backward(torch.ones_like(hidden))
            self._before.append(self._now() - self._start)
        if index not in self._outputs:
            inputs, named = pytree.tree_map_only(Tensor, Tensor.detach, (inputs, named))
            first_argument(inputs, named).requires_grad_()
            if self._is_meta:
                block = _with_values(deepcopy(block), self._device)
            self._blocks[index], self._outputs[index] = self._measured(block, inputs, named)
        self._end = self._now()
        return self._outputs[index]

    def _measured(self, block: nn.Module, inputs: Any, named: Any) -> tuple[float, Any]:
        """Return the time that a block takes, in seconds, and its output, as if it depended on nothing."""
        times: list[float] = []
        for _ in range(_REPETITIONS):
            start = self._now()
            output = block(*inputs, **named)
            first = output[0] if isinstance(output, tuple) else output
            first.backward(torch.ones_like(first))
            times.append(self._now() - start)
        hidden = first.detach().requires_grad_()
        return min(times[1:]), (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    def _now(self) -> float:
        """Return the time when the device has done all that it was given, in seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()


def _with_values(module: nn.Module, device: torch.device) -> nn.Module:
    """Give the tensors of a module that are on the device meta memory, and ordinary values."""
    is_meta = [one.is_meta for one in (*module.parameters(), *module.buffers())]
    materialise(module, device)
    with torch.no_grad():
        for one, is_new in zip((*module.parameters(), *module.buffers()), is_meta, strict=True):
            if is_new and isinstance(one, nn.Parameter) and one.is_floating_point():
                one.normal_(std=0.02)
            elif is_new:
                one.zero_()
    return module


def _best(times: list[float]) -> int:
    return round(1e6 * min(times[1:]))


def _in_ms(times: list[int]) -> str:
    return " ".join(f"{one / 1e3:.3g}" for one in times)
