"""Random numbers of a loaded model: all global generators are left as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from trainwright.frameworks.keras.backend import Backend
from trainwright.frameworks.keras.backend_trainer import seeded_python


class OwnDraws:
    """A generator that stands in for the one that `keras.random` uses by default.

    Keras keeps the latter, and its scopes, for each thread; so threads do not disturb each other.
    """

    def __init__(self, backend: Backend) -> None:
        self._keras, self._name = backend.keras, backend.name
        self._generator = backend.keras.random.SeedGenerator(seed=0, name="trainwright_seed_generator")

    @contextmanager
    def building(self, seed: int) -> Iterator[None]:
        """Let a model be built inside with the constants that layers draw under this seed.

        TensorFlow's own generator is not among what is seeded, as it cannot be restored: only `pin` seeds it.
        """
        with seeded_python(seed), self._stands_in(), _torchs_own(self._name, seed):
            self._generator.state.assign([seed, 0])
            yield

    @contextmanager
    def seeded(self, generators: Sequence[Any], seeds: Any) -> Iterator[None]:
        """Let generators (seed variables) have `seeds`, (generators, 2), inside; no variable is assigned."""
        mapping = [(variable, seeds[i]) for i, variable in enumerate(generators)]
        with self._stands_in(), self._keras.StatelessScope(state_mapping=mapping):
            yield

    @contextmanager
    def _stands_in(self) -> Iterator[None]:
        """Put the generator in the place of this thread's."""
        state, name = self._keras.src.backend.common.global_state, "global_seed_generator"
        before = state.get_global_attribute(name)
        state.set_global_attribute(name, self._generator)
        try:
            yield
        finally:
            state.set_global_attribute(name, before)


def _torchs_own(backend: str, seed: int) -> AbstractContextManager[Any]:
    """Return a context in which torch draws from generators of the model's own."""
    if backend != "torch":
        return nullcontext()
    from trainwright.frameworks.support.torch_draws import OwnGenerators

    return OwnGenerators(seed)
