"""A module that predicts: the live one of a learner, and one that was loaded."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trainwright.datasets.base import Split
from trainwright.digest import files_of
from trainwright.errors import InputError, ModelError, TrainwrightError
from trainwright.frameworks.base import WEIGHTS_FILE, Model, ModelInputs
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.support.torch_draws import OwnGenerators
from trainwright.frameworks.torch.compression.structure import compress_structure
from trainwright.frameworks.torch.data import TensorSource
from trainwright.frameworks.torch.generators import generators, seed_generators
from trainwright.frameworks.torch.huggingface.build import ARCHITECTURE
from trainwright.frameworks.torch.models import build_model
from trainwright.frameworks.torch.network import Network, translated
from trainwright.frameworks.torch.outputs import as_float, call_of, first_output
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.parallel.tensor.parallelize import split
from trainwright.frameworks.torch.params import TRANSFORMERS
from trainwright.frameworks.torch.predictions import to_predictions
from trainwright.frameworks.torch.process import device_of
from trainwright.frameworks.torch.state import structure
from trainwright.frameworks.torch.state.training import (
    TrainingState,
    saved_architecture,
    saved_compression,
)
from trainwright.frameworks.torch.state.unsaved import fingerprints
from trainwright.process.machine import available_memory
from trainwright.tasks.base import Task
from trainwright.tasks.support.accumulators import Accumulator
from trainwright.types import INPUT_IDS, Array, Ids, Predictions

_LISTED = 5  # attributes that a message names
_PARTS = 16  # parts that a process predicts before it tells the others


class _TorchModel(Model):
    """A torch module as a `Model`."""

    def __init__(self, network: Network, state: TrainingState) -> None:
        self._network = network
        self._module = network.module
        self._state = state

    @property
    def input_names(self) -> Sequence[str]:
        """The arrays that `forward` names."""
        return self._network.names

    @property
    def rows_together(self) -> int:
        """The rows of a forward pass."""
        return self._network.rows

    @property
    def native(self) -> torch.nn.Module:
        """The module itself."""
        return self._module

    @property
    def predicting(self) -> torch.nn.Module:
        """A module in evaluation mode from arrays to the predictions of the task, for exports; a copy.

        It takes the arrays of `input_names`, in their order. Of language models it gives the logits.

        Raises:
            InputError: It is compressed, and computes with kernels that other formats lack.
        """
        own = [name for name, one in self._module.named_modules() if getattr(one, "has_own_kernel", False)]
        if own:
            raise InputError(
                f"layer {own[0]} is compressed, and computes with a kernel of torch that this format lacks: "
                "export the run that it is compressed from"
            )
        return _Predicting(copy.deepcopy(self._module), self._network.names, self._network.task).eval()

    @property
    def parameter_count(self) -> int:
        """The number of elements of the module's parameters."""
        return sum(one.numel() for one in self._module.parameters())


class _Predicting(torch.nn.Module):
    """A module, and what its task makes of its outputs.

    Args:
        module: The module.
        names: The arrays that it takes.
        task: The task.
    """

    def __init__(self, module: torch.nn.Module, names: Sequence[str], task: Task) -> None:
        super().__init__()
        self.module = module
        self._names = names
        self._task = task

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Return predictions, (rows,) or (rows, outputs, ...), of arrays, (rows, ...) each."""
        batch = dict(zip(self._names, arrays, strict=True))
        outputs = first_output(as_float(call_of(self.module, self._names)(batch)))
        if self._task.has_inner_labels:
            return outputs.softmax(dim=-1)
        if self._task.generates_text:  # its predictions are sums over labels
            return outputs
        return to_predictions(outputs, {}, self._task)


class LiveModel(_TorchModel):
    """A view of a module in training; `source_of` returns the samples of a split.

    Of several processes, each group that computes different samples predicts a share, and all have them all.
    """

    def __init__(
        self,
        network: Network,
        state: TrainingState,
        source_of: Callable[[Split], TensorSource],
        strategy: Strategy | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        super().__init__(network, state)
        self._pipeline = pipeline
        self._strategy = strategy or Strategy()
        self._source_of = source_of
        self._generators = generators(network.device)

    @property
    def parameter_count(self) -> int:
        """The number of elements of the parameters of all stages."""
        return super().parameter_count if self._pipeline is None else self._pipeline.parameter_count

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split; see `evaluate`."""
        return self.evaluate(split)

    def evaluate(self, split: Split, accumulators: Sequence[Accumulator] = ()) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, and what metrics count on them.

        If the predictions are not read to the end, what they changed in buffers is undone: a resume repeats
        them. Of several processes, all must read them to the end.

        Raises:
            TrainingError: Torch fails.
        """
        module, source = self._module, self._source_of(split)
        strategy, world = self._strategy, self._strategy.world
        group, groups = strategy.group(world.rank), strategy.groups
        parts = self._network.parts(len(split))
        # All processes make as many passes: those without a part at the end repeat the last one.
        own = [parts[min(i, len(parts) - 1)] for i in range(group, len(parts) + group, groups)]
        source.expect(map(Samples, own))
        modes = structure.modes(module)
        held: structure.Held | None = structure.Held(self._module)
        losses = self._network.custom_losses.held()
        module.eval()
        try:
            with self._state.evaluated(), strategy.evaluating():
                for start in range(0, len(own), _PARTS):
                    some = own[start : start + _PARTS]
                    passes = (self._part(source, ids, accumulators) for ids in some)
                    if world.size == 1:
                        yield from filter(None, passes)
                        continue
                    mine = [_portable(part) for part in passes if part is not None]
                    count = len(parts[group::groups]) - start
                    shares: dict[int, list[Predictions]] = {}
                    for process, theirs in enumerate(world.gather(mine[:count])):
                        if theirs:  # none in stages before the last one
                            shares.setdefault(strategy.group(process), theirs)
                    yield from _interleaved([shares.get(group, []) for group in range(groups)])
            if world.size > 1 and held is not None and held.has_changed():
                raise ModelError(
                    "the model changes its buffers when it predicts, and each process predicts a share only; "
                    "change them in training mode only, or set distributed.nproc=1"
                )
            held = None
        except TrainwrightError:
            raise
        except Exception as error:
            raise translated(error, "a prediction") from error
        finally:
            module.train()
            structure.set_modes(module, modes)
            if held is not None:
                held.put_back()
                self._network.custom_losses.put_back(losses)

    def _part(
        self, source: TensorSource, ids: Ids, accumulators: Sequence[Accumulator]
    ) -> Predictions | None:
        """Return the outputs for some rows; None if another process has the last stage."""
        # The module may draw random numbers here, too, as in Monte Carlo dropout.
        network, seed = self._network, self._network.stream(ids)
        if self._pipeline is None:
            seed_generators(self._generators, seed)
            return network.predict(source, ids, accumulators)
        batch = source.take(ids)
        with torch.no_grad(), network.precision.autocast():
            outputs = self._pipeline.predict(seed, batch, network.call)
        if outputs is None:
            return None
        return network.predictions(outputs, batch, source, ids, accumulators)


def _portable(part: Predictions) -> Predictions:
    """Return a part that other processes can read: read-only views of mappings cannot be pickled."""
    return part._replace(
        measures=dict(part.measures),
        counts=dict(part.counts),
        logged=dict(part.logged),
        heads=dict(part.heads),
    )


def _interleaved(shares: Sequence[Sequence[Predictions]]) -> Iterator[Predictions]:
    """Yield the parts of all processes in their order: the first of each, then the second of each ..."""
    for row in zip_longest(*shares):
        yield from (part for part in row if part is not None)


class _Rows(NamedTuple):
    """Rows that are predicted at once, and the metrics that count on them; see `Network.predict`."""

    source: TensorSource
    ids: Ids
    accumulators: Sequence[Accumulator]
    judges: bool


class LoadedModel(_TorchModel):
    """A module that owns its weights and may be used from many threads.

    Most modules only read their weights when they predict, so threads may call them at the same time. The
    first call finds out whether this one does. A module that changes its buffers is called by one thread at a
    time, and its buffers are restored after each part. A module that keeps other state from call to call (it
    has a generator of its own, say) may be used by the first thread only: that state could not be restored.

    A module may draw, or change its buffers, only for some rows, which the first call did not have. So each
    later call is watched, and what it did is undone and done again with the precautions that it needs.
    """

    def __init__(self, inputs: ModelInputs, folder: Path) -> None:
        super().__init__(*opened(inputs, folder))
        split(self._module, inputs.config.distributed)  # into the slices of training, so that bits are equal
        self._module.eval()
        self._lock = _SharedLock()
        self._is_examined = False  # whether the first call has set the following
        self._draws = self._changes_buffers = False
        self._loaded: structure.Held  # the buffers with which predictions begin, and their versions
        self._versions: list[tuple[int, int]]
        self._has_dirty_buffers = False  # whether they have other values now
        self._owner: int | None = None  # the only thread that may predict; None: all may
        self._kept = ""  # names of the state that the module keeps from call to call

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split; see `evaluate`."""
        return self._predictions(split, (), judges=False)

    def evaluate(self, split: Split, accumulators: Sequence[Accumulator] = ()) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, and what metrics count on them.

        Raises:
            ModelError: The module keeps state from call to call, and another thread has used it.
            TrainingError: Torch fails.
        """
        return self._predictions(split, accumulators, judges=True)

    def _predictions(
        self, split: Split, accumulators: Sequence[Accumulator], *, judges: bool
    ) -> Iterator[Predictions]:
        source = self._network.source(split)
        for ids in self._network.parts(len(split)):
            try:
                yield self._part(_Rows(source, ids, accumulators, judges))
            except TrainwrightError:
                raise
            except Exception as error:
                raise translated(error, "a prediction") from error

    def next_token(self, tokens: Ids) -> Array:
        """Return the logits of the next token, (vocabulary,)."""
        logits: Array = self.token_logits(tokens[None])[0, -1].astype(np.float64)
        return logits

    def token_logits(self, tokens: Ids) -> Array:
        """Return the logits of tokens, (rows, length, vocabulary); one thread at a time calls the module."""
        with self._lock.exclusive(), torch.no_grad(), self._network.precision.autocast():
            batch = {INPUT_IDS: torch.from_numpy(tokens).to(self._network.device)}
            outputs = first_output(as_float(self._network.call(batch)))
        return outputs.cpu().numpy()

    def _part(self, rows: _Rows) -> Predictions:
        """Return the outputs for some rows, with the precautions that the module needs."""
        self._check_owner()
        before: list[torch.Tensor] = []
        if self._is_examined and not self._changes_buffers:
            with self._lock.shared(self._note_buffers):
                before = [] if self._draws else self._random_state()
                try:
                    part = self._predicted(rows, self._generators(rows.ids))
                finally:
                    needs_repetition = self._note_side_effects(before)
                if not needs_repetition:
                    return part
        with self._lock.exclusive():
            self._check_owner()
            if not self._is_examined:
                return self._predict_first(rows)
            return self._predict_alone(rows, before)

    def _check_owner(self) -> None:
        if self._owner is not None and self._owner != threading.get_ident():
            raise ModelError(
                f"model {self._network.inputs.config.model.type} is stateful between predictions "
                f"({self._kept}), so it is not thread-safe; load one model per thread"
            )

    def _predict_alone(self, rows: _Rows, before: Sequence[torch.Tensor]) -> Predictions:
        """Return the outputs for some rows while no other thread uses the module.

        Args:
            rows: The rows.
            before: The state of the default generators before a call that may have drawn from them.
        """
        if self._has_dirty_buffers:
            self._loaded.put_back()
            self._has_dirty_buffers = False
        own, held = self._generators(rows.ids), structure.Held(self._module)
        try:
            part = self._predicted(rows, own)
        finally:
            held.put_back()
        if own is not None and own.drew and before:
            for generator, state in zip(generators(self._network.device), before, strict=True):
                generator.set_state(state)
        if own is not None and own.borrowed:
            self._owner, self._kept = threading.get_ident(), ", ".join(sorted(own.borrowed)[:_LISTED])
        return part

    def _note_buffers(self) -> None:
        """Keep the buffers' values if the user has changed them since the last call."""
        if not self._has_dirty_buffers and (versions := self._buffer_versions()) != self._versions:
            self._loaded, self._versions = structure.Held(self._module), versions

    def _random_state(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in generators(self._network.device)]

    def _note_side_effects(self, before: Sequence[torch.Tensor]) -> bool:
        """Return whether a call may have drawn or changed buffers, and must be repeated with precautions.

        They are taken from now on.

        Args:
            before: The state of the default generators before the call; empty if it has not used them.
        """
        if self._buffer_versions() != self._versions:
            self._changes_buffers = self._has_dirty_buffers = True
        # Another thread of the process may have drawn as well: then this one is only slower from now on.
        has_drawn = not all(map(torch.equal, before, self._random_state()))
        self._draws |= has_drawn
        return self._changes_buffers or has_drawn

    def _predicted(self, rows: _Rows, generators: OwnGenerators | None) -> Predictions:
        with generators or nullcontext():
            return self._network.predict(rows.source, rows.ids, rows.accumulators, judges=rows.judges)

    def _generators(self, ids: Ids) -> OwnGenerators | None:
        """Return the generators of a part; None if the module draws nothing, as they slow down every call."""
        return OwnGenerators(self._network.stream(ids)) if self._draws else None

    def _predict_first(self, rows: _Rows) -> Predictions:
        """Predict some rows for the first time, and examine what that changes in the module."""
        generators, held = OwnGenerators(self._network.stream(rows.ids)), structure.Held(self._module)
        before, versions = fingerprints(self._module), self._buffer_versions()
        try:
            part = self._predicted(rows, generators)
            after = fingerprints(self._module)
            kept = sorted(generators.borrowed)
            if after != before:  # attributes that are made once, such as a cache, have their last value now
                self._predicted(rows, OwnGenerators(self._network.stream(rows.ids)))
                again = fingerprints(self._module)
                kept += [name for name, value in again.items() if after.get(name) != value]
            self._changes_buffers = self._buffer_versions() != versions
        finally:
            held.put_back()
            self._loaded, self._versions = held, self._buffer_versions()
        self._draws = generators.drew
        if kept:
            self._owner, self._kept = threading.get_ident(), ", ".join(kept[:_LISTED])
        self._is_examined = True
        return part

    def _buffer_versions(self) -> list[tuple[int, int]]:
        """Return values that differ after a buffer was changed or replaced."""
        return [
            (id(buffer), buffer._version)
            for module in self._module.modules()
            for buffer in module._buffers.values()
            if buffer is not None
        ]


def opened(inputs: ModelInputs, folder: Path) -> tuple[Network, TrainingState]:
    """Return a network with the weights in a folder, compressed as these are."""
    size = sum(path.stat().st_size for path in files_of(folder, WEIGHTS_FILE))
    device = device_of(inputs.config.training.device)
    require_room(size, memory_left(device), device)
    with OwnGenerators():  # the initial weights are not those that a learner has: they are replaced
        inputs = with_architecture(inputs, folder)
        module = None
        if (structure := saved_compression(folder)) is not None:
            module = inputs.model or build_model(inputs.config.model.type, inputs.model_params, inputs.info)
            compress_structure(module, structure)
        network = Network(inputs, module)
    state = TrainingState(
        network.module,
        None,
        network.precision,
        network.built,
        architecture=network.architecture,
        losses=network.custom_losses,
    )
    state.load(folder, weights_only=True)
    return network, state


def memory_left(device: torch.device) -> int | None:
    """Return the bytes that are free where a model computes; None if unknown."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def require_room(size: int, room: int | None, device: torch.device) -> None:
    """Check that the weights of a model fit where it computes.

    Args:
        size: Their bytes.
        room: The bytes that are free there; None if unknown.
        device: The device.

    Raises:
        ModelError: They do not.
    """
    if room is None or size <= room:
        return
    given = f"the weights of the model are {size / 1e9:,.1f} GB, and {room / 1e9:,.1f} GB of memory are left"
    if device.type != "cuda":
        raise ModelError(f"{given}: free some, or use a machine with more")
    count = 2
    while size > count * room:
        count *= 2
    raise ModelError(
        f"{given} on the GPU: let the processes of several GPUs share them out; predict, evaluate and "
        f"generate take distributed.nproc={count} distributed.strategy=fsdp"
    )


def with_architecture(inputs: ModelInputs, folder: Path) -> ModelInputs:
    """Return the inputs with the saved configuration of a model of transformers, if it is one."""
    if inputs.model is not None or inputs.config.model.type not in TRANSFORMERS:
        return inputs
    return replace(inputs, model_params={**inputs.model_params, ARCHITECTURE: saved_architecture(folder)})


class _SharedLock:
    """Let calls run together, or one of them alone (a readers-writer lock)."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._running = 0

    @contextmanager
    def shared(self, begin: Callable[[], None]) -> Iterator[None]:
        """Hold the lock together with others; the first of them calls `begin`."""
        with self._changed:
            if not self._running:
                begin()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for all others to end, and hold the lock alone; those that come meanwhile wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            yield
