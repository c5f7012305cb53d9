"""One training step: forward, backward and update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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

    def __call__(self, step: int, lr: float, order: SampleOrder, source: TensorSource) -> StepResult:
        """Run step number `step`, counted from 0."""
        ids = order.batch(step)  # (batch,)
        size = self._settings.microbatch_size
        if len(ids) <= size:
            loss = self._microbatch(source, ids, stream_seed(self._stream, step, 0), 1.0)
        else:
            microbatches = [ids[start : start + size] for start in range(0, len(ids), size)]
            # Each microbatch weighs as many samples as it has, so the sum is the mean over the batch.
            losses = [
                self._microbatch(source, part, stream_seed(self._stream, step, i), len(part) / len(ids))
                for i, part in enumerate(microbatches)
            ]
            loss = torch.stack(losses).sum()  # ()
        self._update(lr)
        return StepResult(loss, len(ids))

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
