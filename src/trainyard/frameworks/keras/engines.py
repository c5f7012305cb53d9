"""Choose the engine of a backend."""

from __future__ import annotations

from trainyard.frameworks.keras.backend import Backend
from trainyard.frameworks.keras.engine import Engine, Learner


def make_engine(backend: Backend, learner: Learner) -> Engine:
    """Return the engine of a backend; no other backend's library is imported."""
    if backend.name == "tensorflow":
        from trainyard.frameworks.keras.on_tensorflow import TensorflowEngine

        return TensorflowEngine(backend.keras, learner)
    if backend.name == "jax":
        from trainyard.frameworks.keras.on_jax import JaxEngine

        return JaxEngine(backend.keras, learner)
    from trainyard.frameworks.keras.on_torch import TorchEngine

    return TorchEngine(backend.keras, learner)
