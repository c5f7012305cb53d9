"""Training on PyTorch, in eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from trainwright.frameworks.keras.backend_trainer import Compilation, shares, weights_in
from trainwright.frameworks.keras.draws import OwnDraws
from trainwright.require import require
from trainwright.types import FEATURES, TARGET, Array, Batch


class TorchTrainer:
    """See `BackendTrainer`."""

    def __init__(self, keras: Any, compilation: Compilation) -> None:
        self._torch: Any = require("torch", "torch")
        self._keras = keras
        self._compilation = compilation
        self._variables = list(compilation.model.trainable_variables)

    def step(self, microbatches: Sequence[Batch], seeds: Sequence[Array], lr: float) -> Any:
        """See `BackendTrainer`."""
        losses = [
            self._backward(part, some, share)
            for part, some, share in zip(microbatches, seeds, shares(microbatches), strict=True)
        ]
        gradients = [variable.value.grad for variable in self._variables]
        self._compilation.optimizer.learning_rate = lr
        with self._torch.no_grad():
            self._compilation.optimizer.apply(gradients, self._variables)
        for variable in self._variables:
            variable.value.grad = None
        return sum(losses[1:], losses[0])

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """See `BackendTrainer`."""
        self._seed(seeds)
        with self._torch.no_grad():
            outputs, loss = self._outputs_and_loss(batch, training=False)
        values: Array = outputs.cpu().numpy()
        return values, float(loss)

    def publish(self) -> None:
        """Do nothing: the variables are the state."""

    def adopt(self) -> None:
        """Do nothing: the variables are the state."""

    def _backward(self, batch: Batch, seeds: Array, share: float) -> Any:
        """Accumulate the gradients of a microbatch, and return its share of the batch's loss."""
        self._seed(seeds)
        _, loss = self._outputs_and_loss(batch, training=True)
        total = sum((some.float() for some in self._compilation.model.losses), loss)
        self._compilation.optimizer.scale_loss(total * share).backward()
        return (loss * share).detach()

    def _outputs_and_loss(self, batch: Batch, *, training: bool) -> tuple[Any, Any]:
        """Return the outputs, (rows, outputs) float32, and the mean loss."""
        convert = self._keras.ops.convert_to_tensor
        outputs = self._compilation.model(convert(batch[FEATURES]), training=training).float()
        weights = [convert(array) for array in weights_in(batch)]
        return outputs, self._compilation.loss(outputs, convert(batch[TARGET]), *weights)

    def _seed(self, seeds: Array) -> None:
        """Assign the generators' seeds (generators, 2), and seed torch's own generator with the last one."""
        # Keras's dropout layers without a seed draw from torch's own generators.
        self._torch.manual_seed(int(seeds[-1, 0]))
        for generator, seed in zip(self._compilation.generators, seeds, strict=True):
            generator.assign(seed)


class TorchPredictor:
    """See `BackendPredictor`; threads may share it, since nothing is assigned."""

    def __init__(self, keras: Any, compilation: Compilation, draws: OwnDraws) -> None:
        self._torch: Any = require("torch", "torch")
        self._keras, self._compilation, self._draws = keras, compilation, draws
        self._uses_torchs: bool | None = None  # whether the model draws from torch's own generators

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """See `BackendPredictor`."""
        from trainwright.frameworks.support.torch_draws import OwnGenerators

        # As in `TorchTrainer._seed`. A mode costs time in each operation.
        own = None if self._uses_torchs is False else OwnGenerators(int(seeds[-1, 0]))
        with (
            self._torch.no_grad(),
            self._draws.seeded(self._compilation.generators, seeds),
            own or nullcontext(),
        ):
            convert = self._keras.ops.convert_to_tensor
            outputs = self._compilation.model(convert(batch[FEATURES]), training=False).float()
            weights = [convert(array) for array in weights_in(batch)]
            loss = self._compilation.loss(outputs, convert(batch[TARGET]), *weights)
        if own is not None and self._uses_torchs is None:
            self._uses_torchs = own.drew
        values: Array = outputs.cpu().numpy()
        return values, float(loss)
