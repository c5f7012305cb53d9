"""One training step: forward, backward and update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.data import Tensors, TensorSource
from trainwright.frameworks.torch.generators import drawing_from, generators, seed_generators
from trainwright.frameworks.torch.losses.base import Loss
from trainwright.frameworks.torch.optim.freezing import Freezing
from trainwright.frameworks.torch.optim.update import Update
from trainwright.frameworks.torch.outputs import Outputs
from trainwright.frameworks.torch.parallel import virtual_ranks
from trainwright.frameworks.torch.parallel.batch_norm import BatchNorms
from trainwright.frameworks.torch.parallel.pipeline.passes import Computation, Microbatch
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.stopwatch import Stopwatch
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.precision import Precision
from trainwright.order import STEP, SampleOrder, stream_seed
from trainwright.types import Array, StepResult

UPDATE_STREAM = (1 << 64) - 1  # in a stream's key, in place of a virtual rank: the stream of the update
Take = Callable[[Samples], Tensors]


@dataclass(frozen=True)
class StepSettings:
    """The values of the config that a step needs."""

    seed: int
    microbatch_size: int
    virtual_ranks: int = 1


class End(NamedTuple):
    """The gradients that are complete after a backward pass: of a virtual rank, and of all in the step."""

    part: bool
    step: bool


NOT_YET = End(part=False, step=False)


class TorchStep:
    """Run the optimizer steps of a torch model."""

    def __init__(
        self,
        call: Callable[[Tensors], Outputs],
        loss: Loss,
        update: Update,
        precision: Precision,
        settings: StepSettings,
        *,
        strategy: Strategy | None = None,
        weights: Callable[[Samples], Array] | None = None,
        batch_norms: BatchNorms | None = None,
        freezing: Freezing | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        """Prepare the steps.

        Args:
            call: Calls the model with a batch.
            loss: Returns the loss of its outputs, which autocast may have lowered to 16 bits.
            update: Updates the parameters from their gradients.
            precision: In which the model computes.
            settings: The values of the config.
            strategy: How the virtual ranks of a step are spread over processes; default: this one has all.
            weights: Returns the weights of training samples, (n,); `loss` then gives weighted sums. None:
                they all count the same, and `loss` gives means.
            batch_norms: Given if the model normalizes over virtual ranks.
            freezing: Given if some parameters are frozen in some steps.
            pipeline: Given if the model is computed stage by stage.
        """
        self._call = call
        self._loss = loss
        self._update = update
        self._precision = precision
        self._settings = settings
        self._strategy = strategy = strategy or Strategy()
        self._weights = weights
        self._freezing = freezing
        self._pipeline = pipeline
        self._parameters: list[nn.Parameter] = update.parameters  # those that are trained now
        # A stage of a pipeline may have none that are ever trained.
        self._device = self._parameters[0].device if self._parameters else strategy.device
        self._stream = stream_seed(settings.seed, STEP)
        self._generators = generators(self._device)
        world = strategy.world
        self._mine = strategy.ranks(world.rank, settings.virtual_ranks)  # the virtual ranks of this process
        self._prepare_sums()
        self._batch_norms = batch_norms
        self.stopwatch = Stopwatch(self._device)
        # In lockstep, on GPUs, and in torch's own calls it is not known how long passes wait.
        waits = strategy.passes_communicate or world.mesh.pipeline * world.mesh.tensor > 1
        is_ours = strategy.distributed.exact and self._device.type != "cuda"
        is_known = batch_norms is None and (is_ours or not waits)
        self._is_timed = world.size > 1 and is_known

    def __call__(self, step: int, lr: float, order: SampleOrder, source: TensorSource) -> StepResult:
        """Run step number `step`, counted from 0.

        The loss in the result is () with one virtual rank; with more, (ranks,): one for each of this process.
        """
        if self._freezing is not None and self._freezing.apply(step):
            self._prepare_sums()
        samples, ranks = Samples.of_step(order, step), self._settings.virtual_ranks  # (batch,)
        take, total = source.take_from, self._total(samples)
        if ranks == 1 and self._strategy.world.size == 1 and self._pipeline is None:
            loss = self._part(take, samples, (step,), total)
        else:
            parts = virtual_ranks.cut(samples, ranks)
            if self._is_timed:
                self.stopwatch.mark()
            compute = self._sequentially if self._batch_norms is None else self._in_lockstep
            if self._pipeline is not None:
                compute = partial(self._in_stages, self._pipeline)
            loss = torch.stack(compute(take, parts, step, total))
            if self._is_timed:
                self.stopwatch.mark()
            self._strategy.reduce()
        if self._update.may_draw:
            # Processes have drawn differently in the forward pass, but must make the same update.
            with drawing_from(self._generators, stream_seed(self._stream, step, UPDATE_STREAM)):
                self._update(step, lr)
        else:
            self._update(step, lr)
        return StepResult(loss, len(samples))

    def _prepare_sums(self) -> None:
        """Prepare the sums of gradients over virtual ranks and processes; frozen parameters have none."""
        freezing = self._freezing
        self._parameters = [
            one for one in self._update.parameters if freezing is None or not freezing.is_frozen(one)
        ]
        self._strategy.train(self._parameters)

    def own_microbatches(self, samples: Samples) -> list[Samples]:
        """Return the microbatches of a batch that this process computes."""
        parts, size = virtual_ranks.cut(samples, self._settings.virtual_ranks), self._settings.microbatch_size
        return [some for rank in self._mine for some in virtual_ranks.microbatches(parts[rank], size)]

    def _total(self, samples: Samples) -> float:
        """Return the number of samples of a whole batch, or the sum of their weights.

        The sum is the exact one, rounded, so that it is the same in every process.
        """
        return len(samples) if self._weights is None else math.fsum(self._weights(samples).tolist())

    def _loss_factor(self, rows: int, total: float) -> float:
        """Return the factor on the loss of some rows, which is a mean, or a sum if there are weights."""
        if self._weights is None:
            return rows / total
        return 1 / total if total else 0.0

    def _sequentially(self, take: Take, parts: Sequence[Samples], step: int, total: float) -> list[Tensor]:
        """Compute the virtual ranks of this process one after the other; return their losses, each ()."""
        losses, passes, size = [], 0, self._settings.microbatch_size
        if self._strategy.passes_communicate:
            passes = max(-(-len(part) // size) for part in parts)
        for rank in self._mine:
            is_last, part = rank == self._mine[-1], parts[rank]
            missing = max(0, passes - -(-len(part) // size))
            end = End(part=True, step=is_last)
            losses.append(self._part(take, part, (step, rank), total, end=NOT_YET if missing else end))
            for number in range(1, missing + 1):
                stream = (step, rank, passes + number)
                self._idle_pass(take, parts, stream, end if number == missing else NOT_YET)
            self._strategy.end_part(is_last=is_last)
        return losses

    def _idle_pass(self, take: Take, parts: Sequence[Samples], stream: tuple[int, ...], end: End) -> None:
        """Make a forward and a backward pass, with another's sample, that add nothing to the gradients."""
        sample = next(part for part in parts if len(part))[:1]
        self._microbatch(take, sample, stream_seed(self._stream, *stream), 0.0, end=end, into=None)

    def _in_lockstep(self, take: Take, parts: Sequence[Samples], step: int, total: float) -> list[Tensor]:
        """Compute the virtual ranks of this process together; return their losses, each ().

        Each is suspended where a layer needs a sum over all of them.
        """
        assert self._batch_norms is not None
        if self._strategy.passes_communicate:
            (rank,) = self._mine
            compute = partial(
                self._part, take, parts[rank], (step, rank), total, end=End(part=True, step=True)
            )
            losses = self._batch_norms.run([compute])
            self._strategy.end_part(is_last=True)
            return losses
        gradients = [virtual_ranks.PartGradients(self._parameters) for _ in self._mine]
        losses = self._batch_norms.run(
            [
                partial(self._part, take, parts[rank], (step, rank), total, into=into)
                for rank, into in zip(self._mine, gradients, strict=True)
            ]
        )
        for rank, into in zip(self._mine, gradients, strict=True):
            into.put_back()
            self._strategy.end_part(is_last=rank == self._mine[-1])
        return losses

    def _in_stages(
        self, pipeline: Pipeline, take: Take, parts: Sequence[Samples], step: int, total: float
    ) -> list[Tensor]:
        """Compute the virtual ranks of this process stage by stage; return their losses, each ().

        The losses are those of the processes that have the last stage; others return zeros.
        """
        streams = {rank: (step,) if len(parts) == 1 else (step, rank) for rank in self._mine}
        made = [one for rank in self._mine for one in self._microbatches(parts, rank, streams[rank], total)]
        losses = pipeline.train(made, self._mine, _OfStages(self, take))
        by_rank: dict[int, list[Tensor]] = {rank: [] for rank in self._mine}
        for one, loss in zip(made, losses, strict=pipeline.is_last):
            if not one.is_idle:
                by_rank[one.rank].append(loss)
        zero = torch.zeros((), device=self._device)
        return [
            some[0] if len(some) == 1 else torch.stack(some).sum() if some else zero
            for some in by_rank.values()
        ]

    def _microbatches(
        self, parts: Sequence[Samples], rank: int, stream: tuple[int, ...], total: float
    ) -> list[Microbatch]:
        """Return the microbatches of a virtual rank, and those that add nothing to the gradients."""
        size = self._settings.microbatch_size
        some = virtual_ranks.microbatches(parts[rank], size)
        passes = len(some)
        if self._strategy.passes_communicate:
            passes = max(-(-len(part) // size) for part in parts)
        sample = next(part for part in parts if len(part))[:1]
        made = []
        for number in range(passes):
            seed, is_idle = stream_seed(self._stream, *stream, number), number >= len(some)
            samples = sample if is_idle else some[number]
            factor = 0.0 if is_idle else self._loss_factor(len(samples), total)
            made.append(Microbatch(samples, rank, seed, factor, is_idle, number == passes - 1))
        return made

    def _part(
        self,
        take: Take,
        samples: Samples,
        stream: tuple[int, ...],
        total: float,
        *,
        end: End = NOT_YET,
        into: virtual_ranks.PartGradients | None = None,
    ) -> Tensor:
        """Add the gradients of a part of the batch to the parameters, and return its share of the loss, ().

        Args:
            take: Returns the tensors of samples.
            samples: (part,) the samples.
            stream: What the random stream of the part depends on: the step, and its virtual rank.
            total: The number of samples in the whole batch, or the sum of their weights.
            end: What its last backward pass ends.
            into: Collects the gradients, instead of the parameters.
        """
        size = self._settings.microbatch_size
        if len(samples) <= size:
            if not len(samples):
                return torch.zeros((), device=self._device)
            seed = stream_seed(self._stream, *stream, 0)
            factor = self._loss_factor(len(samples), total)
            return self._microbatch(take, samples, seed, factor, end=end, into=into)
        parts = virtual_ranks.microbatches(samples, size)
        # Each microbatch weighs as many samples as it has, so the sum is the mean over the batch.
        losses = [
            self._microbatch(
                take,
                microbatch,
                stream_seed(self._stream, *stream, i),
                self._loss_factor(len(microbatch), total),
                end=end if i == len(parts) - 1 else NOT_YET,
                into=into,
            )
            for i, microbatch in enumerate(parts)
        ]
        return torch.stack(losses).sum()

    def _microbatch(
        self,
        take: Take,
        samples: Samples,
        seed: int,
        factor: float,
        *,
        end: End,
        into: virtual_ranks.PartGradients | None,
    ) -> Tensor:
        """Add a microbatch's gradients to those of the batch, and return its share of the loss."""
        seed_generators(self._generators, seed)
        batch = take(samples)  # tensors (microbatch, ...)
        scaled, loss = self._losses(self._outputs(batch), batch, factor)
        if into is None:
            self._strategy.backward(scaled, ends_part=end.part, is_last=end.step)
        else:
            into.add(scaled)
        return loss

    def _outputs(self, batch: Tensors) -> Outputs:
        """Call the model: tensors (microbatch, ...) -> (microbatch, outputs), or several such."""
        with self._precision.autocast():
            return self._call(batch)

    def _losses(self, outputs: Outputs, batch: Tensors, factor: float) -> tuple[Tensor, Tensor]:
        """Return the scaled loss of a microbatch, whose gradient is asked for, and its share, both ()."""
        loss = self._loss(outputs, batch)  # ()
        if factor != 1.0:
            loss = loss * factor
        scale = self._precision.scale
        return loss if scale is None else scale.scaled(loss), loss.detach()


class _OfStages(Computation):
    """The work of a step for the microbatches of a pipeline.

    Args:
        step: The step.
        take: Returns the tensors of samples.
    """

    def __init__(self, step: TorchStep, take: Take) -> None:
        self._step, self._take = step, take

    def take(self, microbatch: Microbatch) -> Tensors:
        return self._take(microbatch.samples)

    def outputs(self, batch: Tensors) -> Outputs:
        return self._step._outputs(batch)

    def loss(self, outputs: Outputs, batch: Tensors, microbatch: Microbatch) -> tuple[Tensor, Tensor]:
        return self._step._losses(outputs, batch, microbatch.factor)

    def backward(
        self,
        output: Tensor,
        gradient: Tensor | None,
        microbatch: Microbatch,
        stage: Sequence[nn.Parameter],
    ) -> None:
        self._step._strategy.backward(output, gradient, ends_part=microbatch.ends_rank, stage=stage)

    def end_stage(self, parameters: Sequence[nn.Parameter]) -> None:
        self._step._strategy.collect(parameters)

    def end_rank(self, rank: int) -> None:
        self._step._strategy.end_part(is_last=rank == self._step._mine[-1])
