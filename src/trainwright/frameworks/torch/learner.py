"""Train a `torch.nn.Module` on one device."""

from __future__ import annotations

import copy
import itertools
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainwright.config.schema import TrainingConfig
from trainwright.datasets.base import Split, known_arrays
from trainwright.digest import sha256_bytes
from trainwright.errors import ModelError, TrainwrightError
from trainwright.frameworks.base import WEIGHTS_FILE, Learner, LearnerInputs, Snapshot
from trainwright.frameworks.support.inputs import require_plain_numbers
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.activations import Undo, checkpoint_activations
from trainwright.frameworks.torch.compiling import compiled, compiled_token_loss
from trainwright.frameworks.torch.data import TensorSource
from trainwright.frameworks.torch.generators import seed_all
from trainwright.frameworks.torch.huggingface.module import check_tokens, definition_of, versions_of
from trainwright.frameworks.torch.initial import InitialWeights
from trainwright.frameworks.torch.losses.base import Loss
from trainwright.frameworks.torch.losses.labels import TOKEN_LOSS, Counts, label_counts, named_loss
from trainwright.frameworks.torch.model import LiveModel
from trainwright.frameworks.torch.models import find_model
from trainwright.frameworks.torch.network import Network, is_whole, translated
from trainwright.frameworks.torch.optim import build as optim
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.optim.freezing import Freezing, frozen_until, statistics_until
from trainwright.frameworks.torch.optim.groups import Group, parameter_groups
from trainwright.frameworks.torch.optim.named import build_several, whole_of_several
from trainwright.frameworks.torch.optim.update import Clipping, Update
from trainwright.frameworks.torch.outputs import Outputs, call_of, in_float
from trainwright.frameworks.torch.own.build import own_step, own_training
from trainwright.frameworks.torch.own.configured import configured, replaced
from trainwright.frameworks.torch.parallel.batch_norm import batch_norms_of, has_batch_norms
from trainwright.frameworks.torch.parallel.pipeline.measured import MEASURED, measured_split
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.pipeline.placed import placed_stages
from trainwright.frameworks.torch.parallel.pipeline.split import SPLIT_KEY
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.parallel.virtual_ranks import tree_sum
from trainwright.frameworks.torch.parallel.world import ProcessGroup
from trainwright.frameworks.torch.params import TRANSFORMERS
from trainwright.frameworks.torch.process import device_model, device_of
from trainwright.frameworks.torch.state import layout
from trainwright.frameworks.torch.state.passed import PassedModule
from trainwright.frameworks.torch.state.snapshot import named_buffer
from trainwright.frameworks.torch.state.start import Live, check_adapters, converted, start_of
from trainwright.frameworks.torch.state.structure import Structure
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.frameworks.torch.step import StepSettings, TorchStep
from trainwright.order import INIT, stream_seed
from trainwright.plugins import adapter
from trainwright.process.global_random import seed_global_random
from trainwright.records.initial_weights import LoadedWeights
from trainwright.types import LoggedValues, NamedBuffer, StepResult, weights_of

log = logging.getLogger("trainwright")


class TorchLearner(Learner):
    """Train a `torch.nn.Module` on one device; `given` is set if the module was passed in Python."""

    def __init__(self, inputs: LearnerInputs, passed: PassedModule | None = None) -> None:
        require_plain_numbers(inputs)
        training = inputs.config.training
        self._inputs, self._passed = inputs, passed
        self._network, initial = _initial_network(inputs)
        self._module = self._network.module
        _refuse_untrained(self._module, inputs.config.model.type)
        self._own = own_training(self._module, inputs)
        self._sources: dict[int, TensorSource] = {}
        self._is_expecting = False  # whether the training samples are read ahead
        self._train = self._source(inputs.splits["train"])
        check_tokens(self._module, inputs.splits)
        if inputs.world.is_main:
            self._network.heads.warn_of_rounding(inputs.splits["train"])
        initial = self._checked_fit(initial)
        _refuse_single_sample(self._module, inputs)
        groups = parameter_groups(self._module, training)
        until = frozen_until(self._module, training.freeze)
        statistics = statistics_until(self._module, training.freeze)
        self._strategy = _strategy_of(inputs, self._network)
        whole: Collection[str] = whole_of_several(training, self._module)
        self._choices: Mapping[str, str] = {}
        self._pipeline = self._placed_stages(inputs)
        self._strategy.place(self._module)
        if initial is not None:
            initial.fill(self._network.device, inputs.config.experiment.seed)
        self._configured = configured(self._module, training, inputs.order)
        whole = self._configured.whole if self._configured else whole
        self._strategy.prepare(self._module, whole)
        optimizer = self._build_optimizer(training, groups, whole)
        is_exact = self._strategy.is_exact
        average = Average(self._module, training.ema, is_divided=is_exact) if training.ema else None
        self.weights = "ema" if average else "trained"
        self._state = TrainingState(
            self._module,
            optimizer,
            self._network.precision,
            self._network.built if self._pipeline is None else Structure.of(self._module),
            average=average,
            architecture=self._network.architecture,
            losses=self._network.custom_losses,
            blocks=self._strategy.blocks,
            elsewhere=() if self._pipeline is None else self._pipeline.elsewhere,
            **({"gather": inputs.world.gather} if inputs.world.mesh.pipeline > 1 else {}),
        )
        self._freezing = Freezing(self._module, until, statistics) if until or statistics else None
        self._world, self._ranks = inputs.world, inputs.config.distributed.virtual.sizes.data
        self._is_divisible = False  # into virtual ranks, as the first step has shown
        self._has_trained = False  # a step, after which the memory of the first saves is reserved
        self._update = Update(
            optimizer,
            list(self._module.parameters()),
            self._network.precision,
            Clipping.of(training),
            average,
            self._strategy,
            self._configured.rates if self._configured else None,
        )
        self._undo: Undo | None = None
        self._step = self._build_step(inputs, optimizer, average)
        self._model = LiveModel(self._network, self._state, self._source, self._strategy, self._pipeline)

    def _checked_fit(self, initial: InitialWeights | None) -> InitialWeights | None:
        """Call the module with one sample, and return the weights that it still lacks afterwards.

        A module that asks for values in its forward pass cannot be called without; it is made whole first.

        Raises:
            ModelError: The module or the loss fails on the sample.
        """
        sample = self._train.take(np.zeros(1, dtype=np.int64))
        try:
            self._network.check_fit(sample)
        except ModelError as error:
            if initial is None or "meta" not in str(error.__cause__).lower():
                raise
            initial.fill(self._network.device, self._inputs.config.experiment.seed)
            self._network.check_fit(sample)
            log.info("each process makes the whole model, as it cannot be called without values")
            return None
        return initial

    def _placed_stages(self, inputs: LearnerInputs) -> Pipeline | None:
        """Return the stages of the model, once this process has its own alone; None if there is one stage.

        A collective call.

        Raises:
            ModelError: The model cannot be divided, or computed in stages.
        """
        distributed, module = inputs.config.distributed, self._module
        if (count := distributed.virtual.sizes.pipeline) == 1:
            return None
        if inputs.config.training.compile:
            raise ModelError(
                f"training.compile: a model of {count} stages (distributed.virtual.pipeline) cannot be "
                "compiled as a whole; leave it out"
            )
        if has_batch_norms(module):
            raise ModelError(
                f"distributed.virtual.pipeline: {count} given, but the model normalizes over the batch, "
                "whose microbatches a pipeline computes one after the other; use group or layer "
                "normalization, or leave distributed.pipeline and virtual.pipeline out"
            )
        first_blocks = self._first_blocks(inputs, count)
        sample = self._train.take(np.zeros(1, dtype=np.int64))
        return placed_stages(
            module,
            self._strategy,
            self._network.call,
            sample,
            first_blocks,
            checkpoints=bool(inputs.config.training.activation_checkpointing),
        )

    def _first_blocks(self, inputs: LearnerInputs, count: int) -> Sequence[str]:
        """Return the names of the first blocks of the later stages: those of the config, or measured ones.

        A collective call.
        """
        if (given := inputs.config.distributed.pipeline_split) != MEASURED:
            return given
        if not (chosen := inputs.choices.get(SPLIT_KEY)):
            chosen = inputs.world.from_main(lambda: json.dumps(self._measured_blocks(inputs, count)))
        self._choices = {SPLIT_KEY: chosen}
        names: list[str] = json.loads(chosen)
        return names

    def _measured_blocks(self, inputs: LearnerInputs, count: int) -> Sequence[str]:
        """Return the names of the first blocks of the later stages, so that stages take equal times."""
        training, network = inputs.config.training, self._network
        part = -(-training.batch_size // inputs.config.distributed.virtual.sizes.data)
        rows = min(part, training.largest_microbatch, len(inputs.splits["train"]))
        batch, loss = self._train.take(np.arange(rows)), in_float(network.loss)

        def compute(module: torch.nn.Module) -> Outputs:
            with network.precision.autocast():
                return call_of(module, network.names)(batch)

        return measured_split(
            self._module, count, network.device, compute, lambda outputs: loss(outputs, batch)
        )

    def choices(self) -> Mapping[str, str]:
        """Return the division into stages, if it was measured."""
        return self._choices

    def _build_step(
        self, inputs: LearnerInputs, optimizer: torch.optim.Optimizer, average: Average | None
    ) -> TorchStep:
        """Prepare the module as the config asks, and return the step."""
        training = inputs.config.training
        weights, loss = self._weighting(inputs)
        batch_norms = batch_norms_of(self._module, inputs, self._network.device, self._strategy)
        if patterns := training.activation_checkpointing:
            self._undo = checkpoint_activations(self._module, patterns, synchronized=batch_norms is not None)
        call, loss_of_outputs = self._network.call, in_float(loss)
        if training.compile:
            call = call_of(compiled(self._module), self._network.names, self._network.optional)
            if named_loss(training.loss, self._network.task) == TOKEN_LOSS:
                loss_of_outputs = compiled_token_loss(loss)
        settings = StepSettings(inputs.config.experiment.seed, training.largest_microbatch, self._ranks)
        parts = self._update, self._network.precision, settings
        options: dict[str, Any] = {
            "strategy": self._strategy,
            "batch_norms": batch_norms,
            "freezing": self._freezing,
        }
        if self._own is not None:
            rates = self._configured.rates if self._configured else None
            return own_step(self._own, optimizer, average, self._module, inputs, rates, *parts, **options)
        return TorchStep(call, loss_of_outputs, *parts, weights=weights, pipeline=self._pipeline, **options)

    def step(self, step: int, lr: float) -> StepResult:
        """Run one optimizer step; see `step.TorchStep`.

        Raises:
            TrainingError: Torch fails. Options and data are checked before.
        """
        if not self._is_expecting:
            self._is_expecting = True
            self._train.expect(self._upcoming(step))
        before = self._own_buffers() if self._ranks > 1 and not self._is_divisible else {}
        try:
            result = self._step(step, lr, self._inputs.order, self._train)
            if before:
                self._check_buffers(before)
            self._is_divisible = True
            if not self._has_trained:
                self._reserve()
            return result
        except TrainwrightError:
            raise
        except Exception as error:
            raise translated(error, f"step {step + 1}") from error

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy the losses of some steps from the device, all at once.

        With virtual ranks, the losses of all of them, in whatever process, are added up like the gradients.
        Of a pipeline, the process with the last stage has them.
        """
        if not losses:
            return []
        values = torch.stack(list(losses))  # (steps,), or (steps, virtual ranks of this process)
        if values.dim() > 1:
            mesh, columns = self._world.mesh, dict[int, torch.Tensor]()
            for process, part in enumerate(self._world.gather(values.cpu())):
                if mesh.coordinates(process).pipeline == mesh.pipeline - 1:
                    ranks = self._strategy.ranks(process, self._ranks)
                    columns |= zip(ranks, part.to(values).unbind(1), strict=True)
            values = tree_sum([columns[rank] for rank in range(self._ranks)])  # (steps,)
        return [float(value) for value in values.tolist()]

    def measures(self) -> Mapping[str, float]:
        """Return the norm of the last step's gradient, if it is measured; the loss has been waited for."""
        norm, rates = self._update.norm, {}
        if self._configured is not None:
            rates = self._configured.measured()
        return rates if norm is None else {**rates, "grad_norm": float(norm)}

    def logged(self) -> Sequence[LoggedValues]:
        """Return what the module's own step has logged since the last call."""
        return () if self._own is None else self._own.logged.take(self._world)

    def step_seconds(self) -> Sequence[float]:
        """Return the times of the forward and backward passes of this process; see `parallel.stopwatch`."""
        return self._step.stopwatch.take()

    def model(self) -> LiveModel:
        """Return the view of the live module."""
        return self._model

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:  # noqa: ARG002 - not cumulative
        """Copy the parts of the state that this process owns to the host."""
        own, saving = self._state.copy(self._strategy.owned, weights_only=weights_only), self._strategy.saving
        return own if saving is None else saving.take(own)

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore what a snapshot wrote."""
        self._state.load(folder, weights_only=weights_only)
        if self._freezing is not None:
            self._freezing.reset()

    def begin(self, folder: Path) -> LoadedWeights:
        """Take the initial weights of `model.init_from`; see `state.start`."""
        options, params = self._inputs.config.model.init_from, self._inputs.model_params
        assert options is not None, "there are initial weights"
        converted(folder)
        check_adapters(folder, params.get("lora"))
        info = self._inputs.info
        heads = None if self._network.task.generates_text else info.outputs
        elsewhere = () if self._pipeline is None else self._pipeline.elsewhere
        start = start_of(folder, Live.of(self._module, heads, elsewhere), options)
        if start.is_whole:
            self.restore(folder, weights_only=True)
        else:
            self._state.begin(folder, start.names)
        return start.record

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield `weights.*`, then `optimizer.*` and `module.*`; see `snapshot`."""
        files, blocks = self._strategy.held(self._state.files(weights_only=weights_only))
        for file, tensors in files.items():
            if weights_only and file != WEIGHTS_FILE:
                continue
            places = blocks.get(file, {})
            for name, tensor in tensors.items():
                buffer = named_buffer(f"{Path(file).stem}.{name}", tensor)
                yield buffer._replace(block=places.get(name))

    def unsaved_state(self) -> Mapping[str, str]:
        """Return a hash of each part of the state that a snapshot leaves out, by name."""
        losses = self._network.custom_losses.unsaved(has_one_process=self._ranks == 1)
        return {**self._state.unsaved(has_trained=self._has_trained), **losses}

    def describe(self) -> Mapping[str, str]:
        """Return the versions of libraries, the device's model, and the precision."""
        device, cudnn = self._network.device, {}
        if device.type == "cuda":
            cudnn["cudnn"] = str(torch.backends.cudnn.version())
        precision = {"precision": self._network.precision.name}
        libraries = {"torch": torch.__version__, **versions_of(self._module)}
        chosen = {} if self._configured is None else self._configured.describe()
        return {**libraries, "device": device_model(device), **precision, **cudnn, **chosen}

    def definition(self) -> Mapping[str, str]:
        """Return the parts of a model that was passed as an object.

        For a Hugging Face model that the config names, return what its folder or the hub says.
        """
        if self._passed is not None:
            return self._passed.definition
        return definition_of(self._module) if self._network.architecture is not None else {}

    def _reserve(self) -> None:
        """Reserve the memory of the first saves, now that the optimizer has its state."""
        self._has_trained = True
        self._state.reserve(self._strategy.owned)

    def close(self) -> None:
        """End the processes that read samples, and give a module back that was passed in Python."""
        for source in (self._train, *self._sources.values()):
            source.close()
        self._is_expecting = False
        self._strategy.close()
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        if self._undo is not None:
            self._undo()
            self._undo = None
        if self._passed is not None:
            self._passed.release()

    def changed_definition(self) -> Mapping[str, str]:
        """Return what training has changed in a module that was passed in Python, besides its weights."""
        return {} if self._passed is None else self._passed.changed()

    def _upcoming(self, step: int) -> Iterator[Samples]:
        """Yield the samples that this process takes from a step on."""
        order = copy.copy(self._inputs.order)  # which keeps one epoch; this may be an epoch ahead
        for later in itertools.count(step):
            yield from self._step.own_microbatches(Samples.of_step(order, later))

    def _own_buffers(self) -> dict[str, str]:
        """Return a hash of each buffer that the virtual ranks do not share."""
        return {
            f"{prefix}.{name}" if prefix else name: sha256_bytes(named_buffer(name, buffer).buffer)
            for prefix, part in self._module.named_modules()
            if not isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
            for name, buffer in part.named_buffers(recurse=False)
        }

    def _check_buffers(self, before: Mapping[str, str]) -> None:
        """Refuse a model whose training changes buffers: each virtual rank would, by its samples alone."""
        after = self._own_buffers()
        if changed := [name for name, sha256 in before.items() if after.get(name) != sha256]:
            raise ModelError(
                f"distributed.virtual.data: training changes the buffer {changed[0]}, which each process "
                "would do by its own part of the batch; leave virtual and nproc out"
            )

    def _source(self, split: Split) -> TensorSource:
        """Return the samples of a split as tensors; those of the run's own splits are kept."""
        source = self._sources.get(id(split)) or self._network.source(split)
        if self._inputs.owns(split):
            self._sources[id(split)] = source
        return source

    def _weighting(self, inputs: LearnerInputs) -> tuple[Counts | None, Loss]:
        """Return what weighs the training samples, and the loss: a mean, or a sum if there are weights."""
        network, train = self._network, inputs.splits["train"]
        arrays = known_arrays(train)
        weights = None if arrays is None else weights_of(arrays, inputs.info)
        if weights is not None:
            return lambda samples: weights[samples.ids], network.weighted_loss
        training, seed = inputs.config.training, inputs.config.experiment.seed
        counts = label_counts(train, network.task, training.loss, seed)
        is_cut = self._ranks > 1 or training.largest_microbatch < training.batch_size
        # The mean over the pixels of a batch that is not cut needs no count beforehand.
        if counts is None or (network.task.gives_masks and not is_cut):
            return None, network.loss
        return counts, network.total_loss

    def _build_optimizer(
        self, training: TrainingConfig, groups: Sequence[Group], whole: Collection[str]
    ) -> torch.optim.Optimizer:
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and layout.is_expanded(parameter):
                raise ModelError(
                    f"parameter {name} is expanded: its elements share memory, and no optimizer can update "
                    "it; make the parameter of the tensor before expand(), and expand it in forward"
                )
        sparse = [
            name for name, module in self._module.named_modules() if getattr(module, "sparse", 0) is True
        ]
        if sparse and self._inputs.world.size > 1:
            raise ModelError(
                f"distributed.nproc: {sparse[0]} has sparse gradients, which do not travel between "
                "processes; build it with sparse=False, or train in one process"
            )
        updated, device = self._strategy.blocks.updated, self._network.device
        if self._inputs.config.distributed.offload:
            if sparse:
                raise ModelError(
                    f"distributed.offload: {sparse[0]} has sparse gradients, which stay on the device; build "
                    "it with sparse=False, or leave distributed.offload out"
                )
            device = torch.device("cpu")
        if self._configured is not None:
            replaced(self._configured.optimizer, updated)
            return self._configured.optimizer
        if training.optimizers:
            return build_several(training, self._module, device, sparse, whole=whole, updated=updated)
        return optim.build_optimizer(
            training, self._module, device, sparse, groups=groups, whole=whole, updated=updated
        )


def _initial_network(inputs: LearnerInputs) -> tuple[Network, InitialWeights | None]:
    """Return the module, and the initial weights that it gets when it is placed; None: it has them.

    Several processes make it without memory where that is possible: each gets its parts alone.
    """
    name, seed = inputs.config.model.type, inputs.config.experiment.seed
    if inputs.model is None and name not in TRANSFORMERS:
        find_model(name)  # its module may draw when it is imported, which happens once in a process
    seed_global_random(seed)
    seed_all(stream_seed(seed, INIT))
    if inputs.model is not None:
        return Network(inputs), None
    is_alone = inputs.world.size == 1
    initial = InitialWeights.of(name, inputs.model_params, inputs.info, divided=not is_alone)
    # A loss of the user's may have parameters, which become a part of the model and have values.
    losses = [inputs.config.training.loss, *(one.loss for one in inputs.config.training.heads.values())]
    has_loss = is_whole(inputs.config) and any(":" in loss for loss in losses)
    if not (is_alone or initial.why_whole or has_loss):
        return Network(inputs, initial.module, is_placed=False), initial
    initial.fill(device_of(inputs.config.training.device), seed)
    return Network(inputs, initial.module), None


def _strategy_of(inputs: LearnerInputs, network: Network) -> Strategy:
    """Return how the run is spread over its processes; a collective call."""
    world, distributed = inputs.world, inputs.config.distributed
    if not isinstance(world, ProcessGroup):
        return Strategy(world, distributed=distributed, device=network.device)
    named: type[Strategy] = adapter("strategy", distributed.strategy)
    strategy = named.chosen(network.module, world, distributed.virtual.sizes)
    everyone = strategy.divides_state or world.mesh.size > world.mesh.data
    saving = world.savers(everyone=everyone)
    return strategy(world, saving, distributed=distributed, device=network.device)


def _refuse_untrained(module: torch.nn.Module, name: str) -> None:
    """Refuse a model that has nothing to train."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        frozen = "all its parameters have requires_grad=False: there is nothing to train"
        has_some = any(True for _ in module.parameters())
        raise ModelError(f"model {name}: {frozen if has_some else 'it has no parameters to train'}")


def _refuse_single_sample(model: torch.nn.Module, inputs: LearnerInputs) -> None:
    """Refuse a last (micro)batch of one sample, which batch normalization of flat rows cannot normalize."""
    training, rows = inputs.config.training, inputs.order.samples
    micro = training.largest_microbatch
    single = micro == 1 or any(batch % micro == 1 for batch in inputs.order.batch_sizes)
    flat = len(inputs.info.input_shape) == 1 and inputs.config.distributed.virtual.data == 1
    if flat and single and any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules()):
        raise ModelError(
            f"the model has batch normalization, and {rows} rows in batches of {training.batch_size} "
            f"(microbatches of {micro}) leave one of a single sample, which it cannot normalize; "
            "change training.batch_size or microbatch_size, or set training.drop_last"
        )
