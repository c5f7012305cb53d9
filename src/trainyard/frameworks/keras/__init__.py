"""Keras 3, on TensorFlow, JAX or PyTorch."""

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
from trainyard.frameworks.base import Framework, FrameworkInputs, Plan, Snapshot, minibatch_plan, refuse_gaps
from trainyard.frameworks.keras.params import COMPILED, LOSSES, MODELS, OPTIMIZERS
from trainyard.frameworks.support.stored import StoredSnapshot, buffers
from trainyard.order import INIT, PREDICT, STEP, stream_seed
from trainyard.require import require
from trainyard.types import Array, Batch, Determinism, Ids, NamedBuffer, Predictions, StepResult

log = logging.getLogger("trainyard")


class KerasFramework(Framework):
    """Trains a `keras.Model` on one device; what it is made of stands in the modules beside this one."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = MODELS
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = OPTIMIZERS
    losses: ClassVar[Sequence[str]] = LOSSES
    base_modules: ClassVar[Sequence[str]] = ("keras",)
    model_bases: ClassVar[Sequence[str]] = ("keras:Model",)
    formats: ClassVar[Sequence[str]] = ("keras", "saved_model")

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:
        """A model of the user's may be compiled; one that is saved has learnt from features and values as they were."""
        if model == "keras":
            return {"training.optimizer.type": COMPILED, "data.standardize": False}
        return {"training.optimizer.type": COMPILED} if ":" in model else {}

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - it is what they were made for
        return TrainingConfig.model_fields

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        from trainyard.frameworks.keras import optim

        plan, rate = minibatch_plan(config, rows), None
        if not optim.leaves_rate(config):
            return plan
        if (compiled := getattr(model, "optimizer", None)) is not None:
            rate = optim.rate_of(compiled)
        elif model is None and config.model.type == "keras":
            rate = optim.rate_in(Path(config.model.params["file"]))
        return plan if rate is None else plan._replace(learning_rate=rate)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        from trainyard.frameworks.keras import backend

        name, on_gpu = backend.may_use_gpu(config)
        if on_gpu and (name == "jax" or config.training.determinism == "best"):
            hint = "" if name == "jax" else "; training.determinism: bitwise refuses those that have not"
            return Determinism(
                "order", f"Keras ({name}) on CUDA: not every operation has a deterministic kernel{hint}"
            )
        return Determinism(
            "bitwise",
            f"Keras ({name}): deterministic kernels, a pinned number of threads, random streams by step",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        require("safetensors", "keras")
        from trainyard.frameworks.keras import backend, engine, engines, losses, measures, models, state

        if inputs.config.model.type in ("keras_mlp", "keras_cnn"):
            refuse_gaps(inputs)
        training, self._inputs = inputs.config.training, inputs
        self._backend = backend.start(inputs.config, inputs.threads, trains=inputs.order is not None)
        keras, precision = self._backend.keras, self._precision()
        with (
            self._backend.scope(),
            engine.seeded(self._backend, stream_seed(inputs.config.experiment.seed, INIT)),
        ):
            self._model, compiled = models.build_model(
                keras, inputs, models.POLICIES.get(precision, "float32")
            )
            self._outputs = models.tried(keras, self._model, compiled, inputs)
            loss = losses.build_loss(keras, training.loss, compiled.loss, self._outputs, inputs.info)
            optimizer = self._optimizer(compiled.optimizer, precision) if inputs.order else None
            strict = training.determinism == "bitwise"
            learner = engine.Learner(
                self._model, loss, optimizer, engine.generators_of(keras, self._model), strict
            )
            self._engine = engines.make_engine(self._backend, learner)
            self._metrics = measures.of_model(self._backend, compiled, self._outputs, inputs)
        self._generators = len(learner.generators)
        self._seeds_for = engine.seeds_for
        self._state = state.TrainingState(self._model, optimizer)
        self._stream = stream_seed(inputs.config.experiment.seed, STEP)
        self._micro = training.microbatch_size or training.batch_size

    def describe(self) -> Mapping[str, str]:
        return self._backend.describe()

    def definition(self) -> Mapping[str, str]:
        if self._inputs.model is not None:
            from trainyard.frameworks.keras.models import definition

            return definition(self._inputs.model)
        named = self._inputs.config.model.type == "keras"
        return {"file": sha256_file(Path(self._inputs.model_params["file"]))} if named else {}

    def step(self, step: int, lr: float) -> StepResult:
        assert self._inputs.order is not None, "made only to predict"
        ids = self._inputs.order.batch(step)
        train, size = self._inputs.splits["train"], self._micro
        parts = [_contiguous(train.take(ids[start : start + size])) for start in range(0, len(ids), size)]
        seeds = [
            self._seeds_for(stream_seed(self._stream, step, i), self._generators) for i in range(len(parts))
        ]
        try:
            with self._backend.scope():
                return StepResult(self._engine.step(parts, seeds, lr), len(ids))
        except Exception as error:
            raise _translated(error, f"step {step + 1}") from error

    def predict(self, split: Split) -> Iterator[Predictions]:
        seed, size = (
            self._inputs.config.experiment.seed,
            self._inputs.config.evaluation.batch_size or 4 * self._micro,
        )
        parts: list[tuple[Array, Array]] = []  # for the metrics that the model was compiled with, if any
        for start in range(0, len(split), size):
            ids: Ids = np.arange(start, min(start + size, len(split)), dtype=np.int64)
            batch = _contiguous(split.take(ids))
            seeds = self._seeds_for(
                stream_seed(seed, PREDICT, start), self._generators
            )  # as dropout may be on here, too
            try:
                with self._backend.scope():
                    outputs, loss = self._engine.forward(batch, seeds)
            except Exception as error:
                raise _translated(error, "a prediction") from error
            values = self._outputs.to_predictions(outputs, self._inputs.info)
            found = Predictions(ids, values, batch.targets, loss * len(ids))
            if self._metrics is not None:
                parts.append((outputs, batch.targets))
                found = (
                    found._replace(measures=self._metrics.over(parts)) if ids[-1] + 1 == len(split) else found
                )
            yield found

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:  # noqa: ARG002 - not cumulative
        self._engine.publish()
        return StoredSnapshot(self._state.arrays(weights_only=weights_only))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        self._state.load(folder, weights_only=weights_only)
        self._engine.adopt()

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        self._engine.publish()
        yield from buffers(self._state.arrays(weights_only=weights_only))

    @property
    def native(self) -> Any:
        self._engine.publish()
        return self._model

    def export(self, path: Path, form: str) -> None:
        """Writes a .keras file, or a TensorFlow SavedModel; either gives what the model gives: logits, say, and values in the
        unit that it learnt them in.

        Raises:
            ModelError: the model has parts that cannot be saved, or the backend writes no SavedModel.
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
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder) / "model.keras"  # Keras insists on the ending
            self.native.save(file)
            file.replace(path)

    def _precision(self) -> str:
        name = self._inputs.config.training.precision
        return ("bf16" if self._backend.device == "cpu" else "fp16") if name == "mixed" else name

    def _optimizer(self, compiled: Any, precision: str) -> Any:
        from trainyard.frameworks.keras import optim

        keras, training = self._backend.keras, self._inputs.config.training
        halves = any(layer.compute_dtype == "float16" for layer in self._model._flatten_layers())
        optimizer = optim.build_optimizer(keras, training, compiled, scale_loss=precision == "fp16" or halves)
        optimizer.build(self._model.trainable_variables)
        self._check_rate(compiled)
        return optimizer

    def _check_rate(self, compiled: Any) -> None:
        """Core asks for the learning rate before a class or a function of the user's has made its model."""
        from trainyard.frameworks.keras import optim

        config = self._inputs.config
        if compiled is None or not optim.leaves_rate(config):
            return
        rate = optim.rate_of(compiled)
        if (
            self._inputs.model is None
            and config.model.type != "keras"
            and rate != config.training.learning_rate
        ):
            raise ModelError(
                f"model {config.model.type}: it comes compiled with the learning rate {rate}; set training.learning_rate to it, "
                "or name an optimizer in training.optimizer"
            )
        log.info("learning rate %s: the one that the model was compiled with", rate)


def _contiguous(batch: Batch) -> Batch:
    return Batch(np.ascontiguousarray(batch.features), np.ascontiguousarray(batch.targets))


def _translated(error: Exception, where: str) -> Exception:
    if isinstance(error, TrainyardError):
        return error
    name = type(error).__name__
    text = next(iter(str(error).strip().splitlines()), "")
    hint = "see where with --debug"
    if name in ("ResourceExhaustedError", "OutOfMemoryError") or "RESOURCE_EXHAUSTED" in text:
        hint = "set training.microbatch_size: smaller microbatches need less memory, and give the same step up to rounding"
    return TrainingError(f"{where} failed: {name}: {text}; {hint}")
