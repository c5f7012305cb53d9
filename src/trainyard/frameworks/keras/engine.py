"""What a backend does with a model: the steps and the predictions of a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainyard.frameworks.keras.backend import Backend
from trainyard.frameworks.keras.losses import Loss
from trainyard.order import stream_seed
from trainyard.require import require
from trainyard.types import Array, Batch


@dataclass(frozen=True)
class Learner:
    """What learns: `optimizer` is None where it is only to predict; `generators` are the variables that all random numbers
    of the model come from; a `strict` one refuses others.
    """

    model: Any
    loss: Loss
    optimizer: Any
    generators: Sequence[Any]
    strict: bool


class Engine(Protocol):
    """The steps of a learner on one backend.

    `seeds` (generators, 2) int64 are put into the generators first: what follows is a function of them.
    """

    def step(self, parts: Sequence[Batch], seeds: Sequence[Array], lr: float) -> Any:
        """One update, from gradients gathered over the microbatches `parts`, each with seeds of its own.

        Returns the mean loss over the samples, as a scalar of the backend. What layers and regularizers add to it is
        learnt from, but not told: it would make the losses of training and of validation two things.
        """

    def forward(self, batch: Batch, seeds: Array) -> tuple[Array, float]:
        """Outputs (rows, outputs) float32 of the model when it does not train, and the mean loss."""

    def publish(self) -> None:
        """Puts the state into the model's and the optimizer's variables, where it is kept elsewhere between steps."""

    def adopt(self) -> None:
        """Takes the state from the variables, which have been set anew."""


def shares(parts: Sequence[Batch]) -> list[float]:
    """What each microbatch weighs: as many samples as it has, so that the sum is the mean over the batch."""
    total = sum(len(part.targets) for part in parts)
    return [len(part.targets) / total for part in parts]


def generators_of(keras: Any, model: Any) -> list[Any]:
    """The seeds' variables of a (built) model's layers, and of the shared generator."""
    weights = {id(variable) for variable in model.weights}
    own = [variable for variable in model.variables if id(variable) not in weights]
    return [*own, shared_generator(keras)]


def shared_generator(keras: Any) -> Any:
    """The seed's variable of the generator that `keras.random` draws from unless it is given one."""
    return keras.src.random.seed_generator.global_seed_generator().state


def seeds_for(stream: int, count: int) -> Array:
    """(count, 2) int64: the states of so many generators; a backend takes 31 bits of a seed."""
    return np.array([[stream_seed(stream, i) & 0x7FFFFFFF, 0] for i in range(count)], dtype=np.int64)


@contextmanager
def seeded(backend: Backend, stream: int) -> Iterator[None]:
    """Has everything draw from one seed inside the context: layers seed themselves from Python's generator.

    Python's and NumPy's generators go on afterwards as if nothing had been drawn.
    """
    before = random.getstate(), np.random.get_state()
    seed = stream & 0x7FFFFFFF
    shared_generator(backend.keras).assign([seed, 0])
    random.seed(seed)  # after what may have made the shared generator, which would draw
    np.random.seed(seed)
    seed_backend(backend.name, seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def seed_backend(name: str, seed: int) -> None:
    """Seeds the backend's own generator, which Keras uses in part; JAX has none."""
    if name == "tensorflow":
        require("tensorflow", "keras").random.set_seed(seed)
    elif name == "torch":
        require("torch", "torch").manual_seed(seed)
