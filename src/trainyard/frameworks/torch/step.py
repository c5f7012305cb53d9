"""One training step: forward, backward and update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainyard.frameworks.torch import virtual_ranks
from trainyard.frameworks.torch.data import Tensors, TensorSource
from trainyard.frameworks.torch.losses import Loss, Outputs, as_float
from trainyard.frameworks.torch.optim import update_of
from trainyard.frameworks.torch.precision import Precision
from trainyard.order import STEP, SampleOrder, stream_seed
from trainyard.types import Ids, StepResult


@dataclass(frozen=True)
class StepSettings:
    """The values of the config that a step needs."""

    seed: int
    microbatch_size: int
    max_grad_norm: float | None
    virtual_ranks: int = 1


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's default generators, from which a model on this device draws unless it has its own."""
    own = [torch.default_generator]
    if device.type == "cuda":
        own.append(torch.cuda.default_generators[device.index or 0])
    return own


def seed_generators(generators: Sequence[torch.Generator], seed: int) -> None:
    """Seed generators, so that what they draw next is a function of the seed."""
    for generator in generators:
        # The CPU's generator takes 32 bits of a seed, CUDA's takes 64.
        generator.manual_seed(seed & 0xFFFFFFFF if generator is torch.default_generator else seed)


class TorchStep:
    """Run the optimizer steps of a torch model."""

    def __init__(
        self,
        call: Callable[[Tensors], Outputs],
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        settings: StepSettings,
    ) -> None:
        self._call = call
        self._loss = loss
        self._optimizer = optimizer
        self._precision = precision
        self._settings = settings
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._apply = update_of(optimizer)
        self._stream = stream_seed(settings.seed, STEP)
        self._generators = generators(self._parameters[0].device)
        self._tree = virtual_ranks.GradientTree(self._parameters)

    def __call__(self, step: int, lr: float, order: SampleOrder, source: TensorSource) -> StepResult:
        """Run step number `step`, counted from 0."""
        ids, ranks = order.batch(step), self._settings.virtual_ranks  # (batch,)
        if ranks == 1:
            loss = self._part(source, ids, (step,), len(ids))
        else:
            losses = []
            for rank, part in enumerate(virtual_ranks.cut(ids, ranks)):
                losses.append(self._part(source, part, (step, rank), len(ids)))
                self._tree.take()
            self._tree.put_back()
            loss = virtual_ranks.tree_sum(losses)
        self._update(lr)
        return StepResult(loss, len(ids))

    def _part(self, source: TensorSource, ids: Ids, stream: tuple[int, ...], batch: int) -> Tensor:
        """Add the gradients of a part of the batch to the parameters, and return its share of the loss, ().

        Args:
            source: The training samples.
            ids: (part,) its samples.
            stream: What the random stream of the part depends on: the step, and its virtual rank.
            batch: Number of samples in the whole batch.
        """
        size = self._settings.microbatch_size
        if len(ids) <= size:
            if not len(ids):
                return torch.zeros((), device=self._parameters[0].device)
            return self._microbatch(source, ids, stream_seed(self._stream, *stream, 0), len(ids) / batch)
        microbatches = [ids[start : start + size] for start in range(0, len(ids), size)]
        # Each microbatch weighs as many samples as it has, so the sum is the mean over the batch.
        losses = [
            self._microbatch(source, some, stream_seed(self._stream, *stream, i), len(some) / batch)
            for i, some in enumerate(microbatches)
        ]
        return torch.stack(losses).sum()

    def _microbatch(self, source: TensorSource, ids: Ids, seed: int, share: float) -> Tensor:
        """Add a microbatch's gradients to those of the batch, and return its share of the loss."""
        seed_generators(self._generators, seed)
        batch = source.take(ids)  # tensors (microbatch, ...)
        with self._precision.autocast():
            outputs = self._call(batch)  # (microbatch, outputs), or several such
        loss = self._loss(as_float(outputs), batch)  # ()
        if share != 1.0:
            loss = loss * share
        scaler = self._precision.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        return loss.detach()

    def _update(self, lr: float) -> None:
        optimizer, scaler, limit = self._optimizer, self._precision.scaler, self._settings.max_grad_norm
        for group in optimizer.param_groups:
            group["lr"] = lr
        if limit is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        if scaler is None:
            with torch.no_grad():
                self._apply()  # optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        for parameter in self._parameters:
            parameter.grad = None
