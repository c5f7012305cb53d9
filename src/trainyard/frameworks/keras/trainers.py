"""The choice of a backend's trainer."""

from __future__ import annotations

from trainyard.frameworks.keras.backend import Backend
from trainyard.frameworks.keras.backend_trainer import BackendTrainer, Compilation


def make_trainer(backend: Backend, compilation: Compilation) -> BackendTrainer:
    """Return the trainer of a backend; no other backend's library is imported."""
    if backend.name == "tensorflow":
        from trainyard.frameworks.keras.on_tensorflow import TensorflowTrainer

        return TensorflowTrainer(backend.keras, compilation)
    if backend.name == "jax":
        from trainyard.frameworks.keras.on_jax import JaxTrainer

        return JaxTrainer(backend.keras, compilation)
    from trainyard.frameworks.keras.on_torch import TorchTrainer

    return TorchTrainer(backend.keras, compilation)
