"""Training of a Keras model, step by step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.digest import sha256_file
from trainwright.errors import ModelError
from trainwright.frameworks.base import Learner, LearnerInputs, Snapshot
from trainwright.frameworks.keras import backend, building, optim, trainers
from trainwright.frameworks.keras.backend_trainer import seeded, seeds_for
from trainwright.frameworks.keras.custom_state import CUSTOM_FILE, CustomState
from trainwright.frameworks.keras.model import LiveModel
from trainwright.frameworks.keras.network import Network, contiguous, translated
from trainwright.frameworks.keras.state import TrainingState
from trainwright.frameworks.support.stored import StoredSnapshot, buffers
from trainwright.order import STEP, stream_seed
from trainwright.types import FEATURES, Array, NamedBuffer, StepResult

log = logging.getLogger("trainwright")


class KerasLearner(Learner):
    """The training of a `keras.Model` on one device."""

    def __init__(self, inputs: LearnerInputs) -> None:
        self._inputs, training = inputs, inputs.config.training
        self._definition = {} if inputs.model is None else building.definition(inputs.model)
        self._policies = [] if inputs.model is None else building.policies(inputs.model)
        self._backend = backend.current(inputs.config)
        with self._backend.scope(), seeded(self._backend, backend.init_seed(inputs.config)):
            self._network = network = Network(inputs, self._backend, [_dtype(inputs)])
            building.check_trainable(network.model, inputs)
            optimizer = self._optimizer()
            self._custom = CustomState(self._backend, network, optimizer)
            compilation = network.compilation(optimizer, self._custom.of_loss)
            self._trainer = trainers.make_trainer(self._backend, compilation)
            if network.metrics is not None:
                network.metrics.check()
        self._model = LiveModel(network, self._trainer, self._custom)
        self._state = TrainingState(network.model, optimizer)
        self._stream = stream_seed(inputs.config.experiment.seed, STEP)
        self._micro = training.largest_microbatch

    def describe(self) -> Mapping[str, str]:
        """Return the versions of Keras and its backend, the device, and Keras's numeric settings."""
        return self._backend.describe()

    def definition(self) -> Mapping[str, str]:
        """Return the digest of a model object's layers, or of a .keras file."""
        if self._inputs.model is not None:
            return self._definition
        from_file = self._inputs.config.model.type == "keras"
        return {"file": sha256_file(Path(self._inputs.model_params["file"]))} if from_file else {}

    def step(self, step: int, lr: float) -> StepResult:
        """Train one step, summing gradients over the microbatches.

        Raises:
            ModelError: Random numbers that no checkpoint can restore are refused; see `on_tensorflow.py`.
            TrainingError: Keras or its backend fails.
        """
        ids = self._inputs.order.batch(step)
        train, size = self._inputs.splits["train"], self._micro
        microbatches = [
            contiguous(train.take(ids[start : start + size]), self._inputs.info)
            for start in range(0, len(ids), size)
        ]
        seeds = [
            seeds_for(stream_seed(self._stream, step, i), len(self._network.generators))
            for i in range(len(microbatches))
        ]
        try:
            with self._backend.scope():
                return StepResult(self._trainer.step(microbatches, seeds, lr), len(ids))
        except Exception as error:
            raise translated(error, f"step {step + 1}") from error

    def model(self) -> LiveModel:
        """Return the view of the model in training."""
        return self._model

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:  # noqa: ARG002 - not cumulative
        """Copy the weights and, unless `weights_only`, the optimizer's variables."""
        self._trainer.publish()
        return StoredSnapshot(self._files(weights_only=weights_only))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Load the variables.

        Raises:
            ModelError: Names or shapes differ from the model's.
        """
        self._state.load(folder, weights_only=weights_only)
        if not weights_only:
            self._custom.load(folder)
        self._trainer.adopt()

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the weights and, unless `weights_only`, the optimizer's variables."""
        self._trainer.publish()
        yield from buffers(self._files(weights_only=weights_only))

    def unsaved_state(self) -> Mapping[str, str]:
        """Return a hash of each part of the state of the user's objects that a snapshot leaves out."""
        self._trainer.publish()
        return self._custom.unsaved()

    def close(self) -> None:
        """Give a model object its dtype policies back; each snapshot has published the weights."""
        building.set_policies(self._policies)

    def changed_definition(self) -> Mapping[str, str]:
        """Return what training has changed in a model object, besides its weights."""
        if self._inputs.model is None:
            return {}
        now = building.definition(self._inputs.model)
        return {name: value for name, value in now.items() if self._definition.get(name) != value}

    def _files(self, *, weights_only: bool) -> dict[str, dict[str, Array]]:
        files = self._state.arrays(weights_only=weights_only)
        own = {} if weights_only else self._custom.arrays()
        return files | ({CUSTOM_FILE: own} if own else {})

    def _optimizer(self) -> Any:
        """Build the optimizer and its variables."""
        model, compiled = self._network.model, self._network.compiled.optimizer
        halves = any(layer.compute_dtype == "float16" for layer in model._flatten_layers())
        optimizer = optim.build_optimizer(
            self._backend.keras,
            self._inputs.config.training,
            compiled,
            scale_loss=self._network.precision == "fp16" or halves,
        )
        optimizer.build(model.trainable_variables)
        self._check_rate(compiled)
        return optimizer

    def _check_rate(self, compiled: Any) -> None:
        """Check that the compiled learning rate is the planned one.

        The plan is made before the user's class or function constructs its model, so it cannot know the
        compiled rate.

        Args:
            compiled: The optimizer that the model was compiled with, if any.

        Raises:
            ModelError: The rates differ.
        """
        config = self._inputs.config
        if compiled is None or not optim.uses_compiled_rate(config):
            return
        rate = optim.rate_of(compiled)
        if (
            self._inputs.model is None
            and config.model.type != "keras"
            and rate != config.training.learning_rate
        ):
            raise ModelError(
                f"model {config.model.type}: it is compiled with the learning rate {rate}; "
                "set training.learning_rate to that, or choose an optimizer in training.optimizer"
            )
        log.info("learning rate %s, as the model was compiled with", rate)


def _dtype(inputs: LearnerInputs) -> Any:
    """Return the dtype of the training features."""
    return inputs.splits["train"].take(np.zeros(1, dtype=np.int64))[FEATURES].dtype
