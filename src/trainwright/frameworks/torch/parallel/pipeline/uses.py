"""Find out which stages of a model use which of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.generators import generators
from trainwright.frameworks.torch.meta import WithoutValues
from trainwright.frameworks.torch.parallel.pipeline.seams import Places, Seam, first_argument
from trainwright.frameworks.torch.parallel.pipeline.split import KEY, SPLIT_KEY, Stages
from trainwright.frameworks.torch.state.structure import Held


@dataclass(frozen=True)
class Uses:
    """The stages of a model that use its parameters.

    Attributes:
        stages: Those that use each parameter, in order, by the parameter's first name; one that none uses
            belongs to the first stage.
        tuples: The number of items in the tuple that each block returns; 0 if it is a tensor.
    """

    stages: Mapping[str, tuple[int, ...]]
    tuples: tuple[int, ...]


def uses_of(module: nn.Module, stages: Stages, call: Callable[[Tensors], Any], sample: Tensors) -> Uses:
    """Return which stages use which parameters, as a forward pass of a sample shows it.

    A model on the device meta is called with tensors there. Its buffers and random generators are as before
    afterwards.

    Args:
        module: The whole model, in training mode.
        stages: Its stages.
        call: Calls it.
        sample: Tensors (rows, ...).

    Raises:
        ModelError: The blocks are not called one after the other, or a stage needs more of the stages before
            it than the hidden state.
    """
    places = Places(module, stages.blocks)
    trace = _Trace(module, stages)
    seams = {index: Seam(places[index], partial(trace.block, index)) for index in range(len(places))}
    with _as_before(module), _on_meta_if_needed(module), places.replaced(seams):
        if any(one.is_meta for one in module.parameters()):
            sample = {name: one.to("meta") for name, one in sample.items()}
        trace.note_buffers()
        with torch.enable_grad(), WithoutValues(), trace:
            outputs = call(sample)
        trace.check_buffers()
    trace.finish(outputs)
    return Uses(trace.stages(), tuple(trace.tuples))


class _Trace(TorchFunctionMode):
    """A forward pass, in which each stage begins with a hidden state of its own."""

    def __init__(self, module: nn.Module, stages: Stages) -> None:
        super().__init__()
        self._module = module
        self._names = {id(one): name for name, one in module.named_parameters()}
        self._parts = stages
        self._stage = 0
        self._used: list[set[int]] = [set() for _ in stages.firsts]  # ids of parameters, by stage
        self.tuples: list[int] = []

    def note_buffers(self) -> None:
        """Note the buffers outside of the blocks as they are, for `check_buffers`."""
        module = self._module
        within = {id(one) for name in self._parts.blocks for one in module.get_submodule(name).buffers()}
        self._outside = {n: (b, b._version) for n, b in module.named_buffers() if id(b) not in within}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and note the parameters that it computes a tensor from."""
        result = function(*args, **(kwargs or {}))
        if any(True for _ in _tensors(result)):
            found = {id(one) for one in _tensors([args, kwargs])}
            self._used[self._stage] |= found & self._names.keys()
        return result

    def block(self, index: int, block: nn.Module, *inputs: Any, **named: Any) -> Any:
        """Call a block, in its turn."""
        if index != len(self.tuples):
            raise ModelError(
                f"{KEY}: the model calls {self._parts.blocks[index]} where the block after "
                f"{len(self.tuples)} others has its turn; the blocks of a pipeline are called once each, in "
                "their order"
            )
        if index and index in self._parts.firsts:
            hidden = first_argument(inputs, named)
            self._check_flow(hidden)
            self._stage += 1
            fresh = hidden.detach().requires_grad_()
            if inputs:
                inputs = (fresh, *inputs[1:])
            else:
                named = {**named, next(iter(named)): fresh}
        output = block(*inputs, **named)
        self.tuples.append(len(output) if isinstance(output, tuple) else 0)
        return output

    def finish(self, outputs: Any) -> None:
        """Check the last stage."""
        if len(self.tuples) < len(self._parts.blocks):
            raise ModelError(
                f"{KEY}: the model does not call {self._parts.blocks[len(self.tuples)]} in its forward pass"
            )
        for output in _tensors(outputs):
            self._check_flow(output)

    def stages(self) -> dict[str, tuple[int, ...]]:
        """Return the stages that use each parameter."""
        return {
            name: tuple(i for i, used in enumerate(self._used) if key in used) or (0,)
            for key, name in self._names.items()
        }

    def check_buffers(self) -> None:
        """Refuse a model that changes buffers outside of its blocks, before they are put back.

        Raises:
            ModelError: It does.
        """
        changed = [name for name, (one, version) in self._outside.items() if one._version != version]
        if changed:
            raise ModelError(
                f"{KEY}: training changes the buffer {changed[0]}, which is in none of the blocks "
                f"({self._parts.blocks[0]} ...): each stage would do so by itself, or not at all; leave "
                "distributed.virtual.pipeline out"
            )

    def _check_flow(self, output: Tensor) -> None:
        """Check that what a stage gives depends on earlier ones by the hidden state alone."""
        if self._stage == 0:
            return
        for key in _leaves(output) - self._used[self._stage]:
            if key in self._names:
                raise ModelError(
                    f"{KEY}: from {self._parts.blocks[self._parts.firsts[self._stage]]} on, the model uses "
                    f"what {self._names[key]} has made in an earlier stage, besides the hidden state; a "
                    f"pipeline hands on the hidden state alone: divide the model elsewhere ({SPLIT_KEY})"
                )


def _leaves(output: Tensor) -> set[int]:
    """Return the ids of the leaves that a tensor has been computed from."""
    found: set[int] = set()
    todo, seen = [output.grad_fn], set()
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            found.add(id(variable))
        todo += [following for following, _ in node.next_functions]
    return found


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


@contextmanager
def _as_before(module: nn.Module) -> Iterator[None]:
    """Leave buffers and generators as they were."""
    held = Held(module)
    own = generators(next(module.parameters()).device)
    states = [one.get_state() for one in own]
    try:
        yield
    finally:
        held.put_back()
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)


@contextmanager
def _on_meta_if_needed(module: nn.Module) -> Iterator[None]:
    """Move the buffers of a model to the device meta if its parameters are there."""
    moved: list[tuple[Any, str, Tensor]] = []
    if any(one.is_meta for one in module.parameters()):
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    moved.append((part._buffers, name, buffer))
                    part._buffers[name] = buffer.to("meta")
    try:
        yield
    finally:
        for buffers, name, buffer in moved:
            buffers[name] = buffer
