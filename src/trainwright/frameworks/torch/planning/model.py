"""The model of a config without memory, and the passes of its microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainwright.errors import ModelError
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.torch.activations import checkpoint_activations
from trainwright.frameworks.torch.data import Tensors, TensorSource
from trainwright.frameworks.torch.huggingface import build as huggingface
from trainwright.frameworks.torch.losses.labels import TOKEN_LOSS, named_loss
from trainwright.frameworks.torch.models import build_model
from trainwright.frameworks.torch.network import Network
from trainwright.frameworks.torch.optim import build as optim
from trainwright.frameworks.torch.optim.groups import parameter_groups
from trainwright.frameworks.torch.outputs import in_float
from trainwright.frameworks.torch.parallel.pipeline.measured import MEASURED
from trainwright.frameworks.torch.parallel.pipeline.split import Stages, split
from trainwright.frameworks.torch.parallel.wrapping import modules_to_wrap
from trainwright.frameworks.torch.params import TRANSFORMERS
from trainwright.frameworks.torch.planning.repeats import Repeats, completed, left_out, repeats_of
from trainwright.frameworks.torch.planning.slices import PlannedSlices, sliced
from trainwright.frameworks.torch.planning.trace import Recorder, Trace, traced
from trainwright.types import weights_of

_ROWS = (2, 4)  # of microbatches that are traced: one row alone may take other ways


@contextmanager
def _without_memory() -> Iterator[None]:
    """Make tensors without memory, also where a module converts its parameters (`module.to(dtype)`)."""

    def take(one: Tensor, other: Tensor) -> None:
        one.data = other

    convert = torch.utils.swap_tensors  # which refuses these tensors, since others refer to them
    torch.utils.swap_tensors = take
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        torch.utils.swap_tensors = convert


class Shape(NamedTuple):
    """A parameter.

    Attributes:
        name: Its name.
        elements: The elements that a process has before FSDP2 divides them.
        size: Their bytes.
        unit: The number of the unit that gathers it; the last one is the whole model.
        rows: The length of its first dimension, along which FSDP2 divides it.
        is_trained: Whether it has a gradient.
        moments: The bytes of the optimizer's state that are as long as it is, and divided with it.
        fixed: The other bytes of the optimizer's state.
    """

    name: str
    elements: int
    size: int
    unit: int
    rows: int
    is_trained: bool
    moments: int
    fixed: int


class Sliced(NamedTuple):
    """A model whose layers are computed in slices, as one process has it.

    Attributes:
        shapes: Its parameters.
        traces: The traces of two numbers of rows.
        sent: The bytes that the process sends along the axis `tensor` for these.
        update: The bytes that an update of the whole takes besides state and gradients.
        buffers: The bytes of buffers.
    """

    shapes: Sequence[Shape]
    traces: tuple[Trace, Trace]
    sent: tuple[float, float]
    update: int
    buffers: int

    def trace(self, rows: float) -> Trace:
        """Return the trace of a microbatch of so many rows."""
        return self.traces[0].at(rows, _ROWS[0], self.traces[1], _ROWS[1])

    def sent_for(self, rows: float) -> float:
        """Return the bytes that are sent along the axis `tensor` for a microbatch of so many rows."""
        here, there = self.sent
        return here + (rows - _ROWS[0]) / (_ROWS[1] - _ROWS[0]) * (there - here)


class Subject:
    """The model of a config, made anew for each number of slices.

    Args:
        inputs: What a learner would be built from.
    """

    def __init__(self, inputs: LearnerInputs) -> None:
        training = inputs.config.training.model_copy(update={"device": "cpu"})
        self._inputs = replace(inputs, config=inputs.config.model_copy(update={"training": training}))
        self._known: dict[tuple[int, int], Sliced] = {}
        source = TensorSource(
            inputs.splits["train"], torch.device("cpu"), inputs.config.experiment.seed, inputs.info
        )
        try:
            self._sample = dict(source.take(np.zeros(1, dtype=np.int64)))
        finally:
            source.close()
        with _without_memory():
            self._module = self._network().module
            try:
                self.blocks: Sequence[str] = split(self._module, 1).blocks
            except ModelError:
                self.blocks = ()

    def stages(self, count: int) -> Stages | None:
        """Return so many stages of the model; None if there is one.

        Raises:
            ModelError: It has not so many blocks.
        """
        first = self._inputs.config.distributed.pipeline_split
        is_given = first != MEASURED and len(first) == count - 1
        return None if count == 1 else split(self._module, count, first if is_given else ())

    def _network(self) -> Network:
        inputs, name = self._inputs, self._inputs.config.model.type
        if name in TRANSFORMERS:
            module = huggingface.build(name, inputs.model_params, inputs.info, read=False)[0]
        else:
            module = build_model(name, inputs.model_params, inputs.info)
        return Network(inputs, module, is_placed=False)

    def batch(self, rows: int) -> Tensors:
        """Return a batch like the data's, whose tensors have no memory: (rows, ...) each."""
        return {
            name: torch.zeros((rows, *one.shape[1:]), dtype=one.dtype) for name, one in self._sample.items()
        }

    def sliced(self, virtual: int, processes: int) -> Sliced:
        """Return the model computed in `virtual` slices, of which a process has a share.

        Raises:
            ModelError: It cannot be split so, or made.
        """
        if (virtual, processes) not in self._known:
            with _without_memory():
                self._known[virtual, processes] = self._sliced(virtual, processes)
        return self._known[virtual, processes]

    def _sliced(self, virtual: int, processes: int) -> Sliced:
        network, config = self._network(), self._inputs.config
        module = network.module
        with torch.no_grad():
            network.call(self.batch(_ROWS[0]))  # lazy parameters get their shapes
        slices = PlannedSlices(virtual, processes)
        sliced(module, config.distributed.plan, slices)
        named = {id(one): name for name, one in module.named_modules()}
        units = [*modules_to_wrap(module, config.distributed), module]
        if config.training.activation_checkpointing:
            checkpoint_activations(module, config.training.activation_checkpointing, synchronized=False)
        names = {named[id(one)]: index for index, one in enumerate(units)}
        repeats = repeats_of(module, self.blocks) if self.blocks else None
        traces, sent = [], []
        for rows in _ROWS:
            before = slices.sent
            traces.append(self._traced(network, rows, units, repeats, names))
            each = slices.sent - before
            if repeats is not None:  # most of it is sent in blocks
                left = len(self.blocks) - len(repeats.missing)
                each *= len(self.blocks) / left
            sent.append(each)
        shapes, update = self._shapes(module, units)
        buffers = sum(one.nbytes for one in module.buffers())
        return Sliced(shapes, (traces[0], traces[1]), (sent[0], sent[1]), update, buffers)

    def _traced(
        self,
        network: Network,
        rows: int,
        units: Sequence[nn.Module],
        repeats: Repeats | None,
        names: Mapping[str, int],
    ) -> Trace:
        module, training = network.module, self._inputs.config.training
        criterion = network.loss
        if named_loss(training.loss, network.task) == TOKEN_LOSS:
            criterion = network.total_loss
        if weights_of(self.batch(rows), self._inputs.info) is not None:
            criterion = network.weighted_loss

        def loss() -> Tensor:
            batch = self.batch(rows)
            with network.precision.autocast():
                outputs = network.call(batch)
            value: Tensor = in_float(criterion)(outputs, batch) * 0.5
            return value

        left = set() if repeats is None else {*repeats.missing}
        traced_blocks = [(index, module.get_submodule(name)) for index, name in enumerate(self.blocks)]
        state = [*module.parameters()], [*module.buffers()]
        parameters = {name: index for index, (name, _) in enumerate(module.named_parameters())}
        with left_out(module, repeats):
            kept = [(index, one) for index, one in traced_blocks if index not in left]
            trace = traced(state, loss, units, kept, len(self.blocks))
        return completed(trace, repeats, parameters, names)

    def _shapes(self, module: nn.Module, units: Sequence[nn.Module]) -> tuple[list[Shape], int]:
        """Return the parameters, and the bytes that an update needs besides."""
        training = self._inputs.config.training
        unit_of: dict[int, int] = {}
        for index, unit in enumerate(units):  # inner ones first
            for one in unit.parameters():
                unit_of.setdefault(id(one), index)
        optimizer = optim.build_optimizer(
            training, module, torch.device("cpu"), groups=parameter_groups(module, training)
        )
        parameters = list(module.parameters())
        for one in parameters:
            one.grad = torch.zeros_like(one) if one.requires_grad else None
        recorder = Recorder()
        for one in parameters:
            recorder.know(one)
        with torch.no_grad(), recorder:
            optim.update_of(optimizer)()
        state = {
            id(one): [value for value in values.values() if isinstance(value, Tensor)]
            for one, values in optimizer.state.items()
        }
        shapes = []
        for name, one in module.named_parameters():
            long = sum(value.nbytes for value in state.get(id(one), ()) if value.shape == one.shape)
            every = sum(value.nbytes for value in state.get(id(one), ()))
            first = one.shape[0] if one.dim() else 0
            shapes.append(
                Shape(
                    name,
                    one.numel(),
                    one.nbytes,
                    unit_of[id(one)],
                    first,
                    one.requires_grad,
                    long,
                    every - long,
                )
            )
            one.grad = None
        return shapes, recorder.peak - recorder.live
