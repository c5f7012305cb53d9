"""Keras 3 on TensorFlow, JAX or PyTorch."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import RunConfig, TrainingConfig
from trainyard.datasets.base import Split
from trainyard.digest import sha256_file
from trainyard.errors import ModelError, TrainingError, TrainyardError
from trainyard.frameworks.base import (
    Framework,
    FrameworkInputs,
    Plan,
    Snapshot,
    minibatch_plan,
    require_plain_numbers,
)
from trainyard.frameworks.keras.params import COMPILED, LOSSES, MODELS, OPTIMIZERS
from trainyard.frameworks.support.stored import StoredSnapshot, buffers
from trainyard.order import INIT, PREDICT, STEP, stream_seed
from trainyard.require import require
from trainyard.types import (
    FEATURES,
    TARGET,
    Array,
    Batch,
    Determinism,
    Ids,
    NamedBuffer,
    Predictions,
    StepResult,
)

log = logging.getLogger("trainyard")


class KerasFramework(Framework):
    """Train a `keras.Model` on one device."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = MODELS
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = OPTIMIZERS
    losses: ClassVar[Sequence[str]] = LOSSES
    tasks: ClassVar[Collection[str] | None] = ("classification", "regression")
    base_modules: ClassVar[Sequence[str]] = ("keras",)
    model_bases: ClassVar[Sequence[str]] = ("keras:Model",)
    formats: ClassVar[Sequence[str]] = ("keras", "saved_model")

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:
        """Return config defaults: a user's model keeps its compiled optimizer and learning rate.

        A saved model also gets unstandardized data, since it was trained on the features as they were.
        """
        if model == "keras":
            return {"training.optimizer.type": COMPILED, "data.standardize": False}
        return {"training.optimizer.type": COMPILED} if ":" in model else {}

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - the same for all
        """Return all keys of `training`."""
        return TrainingConfig.model_fields

    @staticmethod
    def reset() -> None:
        """Undo what code of the user's may have set in Keras for the whole process."""
        from trainyard.frameworks.keras import settings

        settings.reset()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan minibatch steps, with the compiled learning rate if the config leaves it open.

        Raises:
            DataError: `training.batch_size` is larger than the number of training rows.
            ModelError: The compiled learning rate is a schedule, or the .keras file cannot be read.
        """
        from trainyard.frameworks.keras import optim

        plan, rate = minibatch_plan(config, rows), None
        if not optim.uses_compiled_rate(config):
            return plan
        if (compiled := getattr(model, "optimizer", None)) is not None:
            rate = optim.rate_of(compiled)
        elif model is None and config.model.type == "keras":
            rate = optim.rate_in(Path(config.model.params["file"]))
        return plan if rate is None else plan._replace(learning_rate=rate)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and on a GPU with enforced deterministic kernels, otherwise `order`."""
        from trainyard.frameworks.keras import backend

        name, on_gpu = backend.may_use_gpu(config)
        if on_gpu and (name == "jax" or config.training.determinism == "best"):
            hint = "" if name == "jax" else "; training.determinism: bitwise refuses those that do not"
            return Determinism(
                "order", f"Keras ({name}) on CUDA: not every operation has a deterministic kernel{hint}"
            )
        return Determinism(
            "bitwise",
            f"Keras ({name}): deterministic kernels, a pinned number of threads, random streams by step",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        require("safetensors", "keras")
        from trainyard.frameworks.keras import (
            backend,
            backend_trainer,
            losses,
            measures,
            models,
            state,
            trainers,
        )

        if inputs.config.model.type in ("keras_mlp", "keras_cnn"):
            require_plain_numbers(inputs)
        training, self._inputs = inputs.config.training, inputs
        self._backend = backend.start(inputs.config, inputs.threads, trains=inputs.order is not None)
        keras, precision = self._backend.keras, self._precision()
        with (
            self._backend.scope(),
            backend_trainer.seeded(self._backend, stream_seed(inputs.config.experiment.seed, INIT)),
        ):
            self._model, compiled = models.build_model(
                keras, inputs, models.POLICIES.get(precision, "float32")
            )
            self._outputs = models.check_outputs(keras, self._model, compiled, inputs)
            loss = losses.build_loss(keras, training.loss, compiled.loss, self._outputs, inputs.info)
            optimizer = self._optimizer(compiled.optimizer, precision) if inputs.order else None
            strict = training.determinism == "bitwise"
            compilation = backend_trainer.Compilation(
                self._model, loss, optimizer, backend_trainer.generators_of(keras, self._model), strict
            )
            self._trainer = trainers.make_trainer(self._backend, compilation)
            self._metrics = measures.of_model(self._backend, compiled, self._outputs, inputs)
        self._generators = len(compilation.generators)
        self._seeds_for = backend_trainer.seeds_for
        self._state = state.TrainingState(self._model, optimizer)
        self._stream = stream_seed(inputs.config.experiment.seed, STEP)
        self._micro = training.microbatch_size or training.batch_size

    def describe(self) -> Mapping[str, str]:
        """Return the versions of Keras and its backend, the device, and Keras's numeric settings."""
        return self._backend.describe()

    def definition(self) -> Mapping[str, str]:
        """Return the digest of a model object's layers, or of a .keras file."""
        if self._inputs.model is not None:
            from trainyard.frameworks.keras.models import definition

            return definition(self._inputs.model)
        from_file = self._inputs.config.model.type == "keras"
        return {"file": sha256_file(Path(self._inputs.model_params["file"]))} if from_file else {}

    def step(self, step: int, lr: float) -> StepResult:
        """Train one step, summing gradients over the microbatches.

        Raises:
            ModelError: Random numbers that no checkpoint can restore are refused; see `on_tensorflow.py`.
            TrainingError: Keras or its backend fails.
        """
        assert self._inputs.order is not None, "constructed for prediction only"
        ids = self._inputs.order.batch(step)
        train, size = self._inputs.splits["train"], self._micro
        microbatches = [
            _contiguous(train.take(ids[start : start + size])) for start in range(0, len(ids), size)
        ]
        seeds = [
            self._seeds_for(stream_seed(self._stream, step, i), self._generators)
            for i in range(len(microbatches))
        ]
        try:
            with self._backend.scope():
                return StepResult(self._trainer.step(microbatches, seeds, lr), len(ids))
        except Exception as error:
            raise _translated(error, f"step {step + 1}") from error

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs of a split; the last part also has the values of the compiled metrics.

        Raises:
            ModelError: A compiled metric cannot be computed.
            TrainingError: Keras or its backend fails.
        """
        seed = self._inputs.config.experiment.seed
        size = self._inputs.config.evaluation.batch_size or 4 * self._micro
        parts: list[tuple[Array, Array]] = []  # outputs and targets for the compiled metrics, if any
        for start in range(0, len(split), size):
            ids: Ids = np.arange(start, min(start + size, len(split)), dtype=np.int64)
            batch = _contiguous(split.take(ids))
            # A model may draw random numbers in prediction, too: layers can be called with training=True.
            seeds = self._seeds_for(stream_seed(seed, PREDICT, start), self._generators)
            try:
                with self._backend.scope():
                    outputs, loss = self._trainer.forward(batch, seeds)
            except Exception as error:
                raise _translated(error, "prediction") from error
            values = self._outputs.to_predictions(outputs, self._inputs.info)
            predictions = Predictions(ids, values, batch[TARGET], loss * len(ids))
            if self._metrics is not None:
                parts.append((outputs, batch[TARGET]))
                if ids[-1] + 1 == len(split):
                    predictions = predictions._replace(measures=self._metrics.over(parts))
            yield predictions

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:  # noqa: ARG002 - not cumulative
        """Copy the weights and, unless `weights_only`, the optimizer's variables."""
        self._trainer.publish()
        return StoredSnapshot(self._state.arrays(weights_only=weights_only))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Load the variables.

        Raises:
            ModelError: Names or shapes differ from the model's.
        """
        self._state.load(folder, weights_only=weights_only)
        self._trainer.adopt()

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the weights and, unless `weights_only`, the optimizer's variables."""
        self._trainer.publish()
        yield from buffers(self._state.arrays(weights_only=weights_only))

    @property
    def native(self) -> Any:
        """The `keras.Model`, with its current weights."""
        self._trainer.publish()
        return self._model

    def export(self, path: Path, form: str) -> None:
        """Write a .keras file, or a TensorFlow SavedModel.

        The exported model returns its raw outputs, such as logits, or values in standardized units.

        Raises:
            ModelError: The model has parts that cannot be saved, or the backend cannot write a SavedModel.
        """
        try:
            if form == "keras":
                self._save(path)
            else:
                self.native.export(str(path), format="tf_saved_model", verbose=False)
        except Exception as error:
            raise ModelError(
                f"the model cannot be written as {form}: {type(error).__name__}: {error}"
            ) from error

    def _save(self, path: Path) -> None:
        """Write a .keras file to a path with any suffix."""
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder) / "model.keras"  # Keras requires this suffix
            self.native.save(file)
            file.replace(path)

    def _precision(self) -> str:
        """Return `training.precision`, with `mixed` resolved to the 16-bit format of the device."""
        name = self._inputs.config.training.precision
        return ("bf16" if self._backend.device == "cpu" else "fp16") if name == "mixed" else name

    def _optimizer(self, compiled: Any, precision: str) -> Any:
        """Build the optimizer and its variables; `compiled` is the one that the model was compiled with."""
        from trainyard.frameworks.keras import optim

        keras, training = self._backend.keras, self._inputs.config.training
        halves = any(layer.compute_dtype == "float16" for layer in self._model._flatten_layers())
        optimizer = optim.build_optimizer(keras, training, compiled, scale_loss=precision == "fp16" or halves)
        optimizer.build(self._model.trainable_variables)
        self._check_rate(compiled)
        return optimizer

    def _check_rate(self, compiled: Any) -> None:
        """Check that the compiled learning rate is the planned one.

        The plan is made before the user's class or function constructs its model, so it cannot know the
        compiled rate.

        Raises:
            ModelError: The rates differ.
        """
        from trainyard.frameworks.keras import optim

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
                "set training.learning_rate to it, or choose an optimizer in training.optimizer"
            )
        log.info("learning rate %s, as the model was compiled with", rate)


def _contiguous(batch: Batch) -> Batch:
    """Return the features and the targets, in this order, as C-contiguous arrays."""
    return {name: np.ascontiguousarray(batch[name]) for name in (FEATURES, TARGET)}


def _translated(error: Exception, where: str) -> Exception:
    """Return one of our errors for an error of Keras or its backend."""
    if isinstance(error, TrainyardError):
        return error
    name = type(error).__name__
    text = next(iter(str(error).strip().splitlines()), "")
    hint = "see where with --debug"
    if name in ("ResourceExhaustedError", "OutOfMemoryError") or "RESOURCE_EXHAUSTED" in text:
        hint = "set a smaller training.microbatch_size, for less memory and the same step up to rounding"
    return TrainingError(f"{where} failed: {name}: {text}; {hint}")
