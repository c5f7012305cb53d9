"""The contract of backend trainers: how a backend trains a model and predicts with it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainwright.frameworks.keras.backend import Backend
from trainwright.frameworks.keras.losses import Loss
from trainwright.order import stream_seed
from trainwright.require import require
from trainwright.types import TARGET, WEIGHT, Array, Batch

_SEED = "seed_generator_state"  # Keras's name of the variable of a generator


@dataclass(frozen=True)
class Compilation:
    """A model with its loss, its optimizer and its random generators.

    `optimizer` is None for a loaded model. `generators` are the seed variables that the model's random
    numbers come from. If `strict`, a model that draws random numbers from anywhere else is refused where that
    can be detected. `of_loss` are the variables of the loss.
    """

    model: Any
    loss: Loss
    optimizer: Any
    generators: Sequence[Any]
    strict: bool
    of_loss: Sequence[Any] = ()


class BackendPredictor(Protocol):
    """Predict on one backend, with random numbers that depend on `seeds`, (generators, 2) int64, alone."""

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """Return the model's outputs in inference mode, (rows, outputs) float32, and the mean loss.

        The mean is by the weights of the samples, if the batch has them.
        """


class BackendTrainer(BackendPredictor, Protocol):
    """Train and predict on one backend.

    Each call first assigns `seeds`, (generators, 2) int64, to the generators, so that its random numbers
    depend on nothing else.
    """

    def step(self, microbatches: Sequence[Batch], seeds: Sequence[Array], lr: float) -> Any:
        """Run one step, from gradients accumulated over microbatches.

        Losses that layers and regularizers add are minimized, but not returned: otherwise training and
        validation losses would not be comparable.

        Args:
            microbatches: The microbatches.
            seeds: The seeds of each microbatch.
            lr: The learning rate.

        Returns:
            The mean loss over the samples, as a scalar of the backend.
        """

    def publish(self) -> None:
        """Copy the state into the model's and optimizer's variables, if the trainer keeps it elsewhere."""

    def adopt(self) -> None:
        """Take over the state from the variables after they have been assigned."""


def weights_in(batch: Batch) -> list[Array]:
    """Return the weights of the samples, (rows,), as the last argument of a function; or nothing."""
    return [batch[WEIGHT]] if WEIGHT in batch else []


def shares(microbatches: Sequence[Batch]) -> list[float]:
    """Return each microbatch's share of the samples, or of their weights.

    Losses that are multiplied by it sum to the mean over the batch.
    """
    if WEIGHT in microbatches[0]:
        sums = [math.fsum(part[WEIGHT].tolist()) for part in microbatches]
        return [one / (math.fsum(sums) or 1.0) for one in sums]
    total = sum(len(part[TARGET]) for part in microbatches)
    return [len(part[TARGET]) / total for part in microbatches]


def generators_of(keras: Any, model: Any) -> list[Any]:
    """Return the seed variables of a built model's layers, followed by that of the shared generator."""
    return [*(one for one in others_of(model) if one.name == _SEED), shared_generator(keras)]


def others_of(model: Any) -> list[Any]:
    """Return the variables of a built model that are not its weights: of seeds, and of metrics in layers."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def shared_generator(keras: Any) -> Any:
    """Return the seed variable of the generator that `keras.random` uses by default."""
    return keras.src.random.seed_generator.global_seed_generator().state


def seeds_for(stream: int, count: int) -> Array:
    """Return the states of `count` generators, (count, 2) int64; backends accept seeds of 31 bits."""
    return np.array([[stream_seed(stream, i) & 0x7FFFFFFF, 0] for i in range(count)], dtype=np.int64)


@contextmanager
def seeded(backend: Backend, seed: int) -> Iterator[None]:
    """Seed all random generators inside the context, and restore Python's and NumPy's on exit.

    Args:
        backend: The backend.
        seed: A seed of 31 bits.
    """
    with seeded_python(seed):
        shared_generator(backend.keras).assign([seed, 0])
        random.seed(seed)  # `shared_generator` has drawn from it if it has created the generator
        seed_backend(backend.name, seed)
        yield


@contextmanager
def seeded_python(seed: int) -> Iterator[None]:
    """Seed the generators of Python and NumPy inside the context, and restore them on exit.

    Layers seed themselves from Python's generator when they are created.
    """
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def seed_backend(name: str, seed: int) -> None:
    """Seed the backend's own global generator, which Keras sometimes uses; JAX has none."""
    if name == "tensorflow":
        require("tensorflow", "keras").random.set_seed(seed)
    elif name == "torch":
        require("torch", "torch").manual_seed(seed)
