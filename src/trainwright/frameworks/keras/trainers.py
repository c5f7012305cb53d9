"""The choice of a backend's trainer or predictor."""

from __future__ import annotations

from trainwright.frameworks.keras.backend import Backend
from trainwright.frameworks.keras.backend_trainer import BackendPredictor, BackendTrainer, Compilation
from trainwright.frameworks.keras.draws import OwnDraws


def make_trainer(backend: Backend, compilation: Compilation) -> BackendTrainer:
    """Return the trainer of a backend; no other backend's library is imported."""
    if backend.name == "tensorflow":
        from trainwright.frameworks.keras.on_tensorflow import TensorflowTrainer

        return TensorflowTrainer(backend.keras, compilation)
    if backend.name == "jax":
        from trainwright.frameworks.keras.on_jax import JaxTrainer

        return JaxTrainer(backend.keras, compilation)
    from trainwright.frameworks.keras.on_torch import TorchTrainer

    return TorchTrainer(backend.keras, compilation)


def make_predictor(backend: Backend, compilation: Compilation, draws: OwnDraws) -> BackendPredictor:
    """Return the predictor of a loaded model; many threads may use it at once."""
    if backend.name == "tensorflow":
        from trainwright.frameworks.keras.on_tensorflow import TensorflowPredictor

        return TensorflowPredictor(backend.keras, compilation, draws)
    if backend.name == "jax":  # where a prediction is a function of the state
        from trainwright.frameworks.keras.on_jax import JaxTrainer

        return JaxTrainer(backend.keras, compilation)
    from trainwright.frameworks.keras.on_torch import TorchPredictor

    return TorchPredictor(backend.keras, compilation, draws)
