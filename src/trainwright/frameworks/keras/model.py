"""A Keras model that predicts: the live one of a learner, and one that was loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.frameworks.base import Model, ModelInputs
from trainwright.frameworks.keras import backend, trainers
from trainwright.frameworks.keras.backend_trainer import BackendTrainer
from trainwright.frameworks.keras.custom_state import CustomState
from trainwright.frameworks.keras.draws import OwnDraws
from trainwright.frameworks.keras.losses import Outputs
from trainwright.frameworks.keras.network import Network
from trainwright.frameworks.keras.state import TrainingState
from trainwright.frameworks.support.object_state import Captured
from trainwright.types import Predictions

_BUILDING = threading.Lock()  # Keras is not made for models to be built by several threads at once


class _KerasModel(Model):
    """A Keras model that predicts, live or loaded."""

    _network: Network

    @property
    def rows_together(self) -> int:
        """The rows of a forward pass."""
        return self._network.rows_together

    @property
    def parameter_count(self) -> int:
        """The number of elements of the model's weights."""
        return int(self.native.count_params())

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self._network.backend.name

    @property
    def meaning(self) -> Outputs:
        """The meaning of the model's outputs."""
        return self._network.meaning


class LiveModel(_KerasModel):
    """The view of a model in training."""

    def __init__(self, network: Network, trainer: BackendTrainer, custom: CustomState) -> None:
        self._network, self._trainer, self._custom = network, trainer, custom

    @property
    def native(self) -> Any:
        """The `keras.Model`, with its current weights."""
        self._trainer.publish()
        return self._network.model

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs of a split; the last part also has the values of the compiled metrics.

        Raises:
            ModelError: A compiled metric cannot be computed.
            TrainingError: Keras or its backend fails.
        """
        held: Mapping[str, Captured] | None = self._custom.held()
        try:
            yield from self._network.predictions(split, self._trainer.forward)
            held = None
        finally:
            if held is not None:  # it was not read to the end: a resume repeats it
                self._custom.put_back(held)


class LoadedModel(_KerasModel):
    """A model of its own, for many threads: each prediction is a function of weights, rows and seeds."""

    def __init__(self, inputs: ModelInputs, folder: Path) -> None:
        running = backend.current(inputs.config)
        with _BUILDING, running.scope():
            draws = OwnDraws(running)
            with draws.building(backend.init_seed(inputs.config)):
                # Rows to predict may be of either.
                self._network = Network(inputs, running, [np.float32, np.int64])
            TrainingState(self._network.model, None).load(folder, weights_only=True)
            self._predictor = trainers.make_predictor(running, self._network.compilation(), draws)

    @property
    def native(self) -> Any:
        """The `keras.Model`."""
        return self._network.model

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs of a split; the last part also has the values of the compiled metrics.

        Raises:
            ModelError: A compiled metric cannot be computed.
            TrainingError: Keras or its backend fails.
        """
        yield from self._network.predictions(split, self._predictor.forward)
