"""A built model with all that predictions need: what learners and loaded models have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.errors import ModelError, TrainingError, TrainwrightError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.keras import backend_trainer, building, losses
from trainwright.frameworks.keras.backend import Backend
from trainwright.frameworks.keras.builtin import BUILT_IN
from trainwright.frameworks.keras.measures import CompiledMetrics
from trainwright.frameworks.support.inputs import prediction_batch_size, require_plain_numbers
from trainwright.order import PREDICT, stream_seed
from trainwright.tasks.support.precision import learned
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo, Ids, Predictions

# (a batch, seeds (generators, 2)) -> the model's outputs (rows, outputs) float32, and the mean loss
Forward = Callable[[Batch, Array], tuple[Array, float]]


class Network:
    """A `keras.Model`, the meaning of its outputs, its loss and the metrics that it was compiled with.

    Args:
        inputs: What the model is built from; its new weights are drawn from Python's random generator.
        backend: The backend, whose scope must be entered.
        dtypes: The dtypes that the features may have.

    Raises:
        ModelError: The model cannot be built, or does not fit the data.
    """

    def __init__(self, inputs: ModelInputs, backend: Backend, dtypes: Sequence[Any]) -> None:
        if inputs.config.model.type in BUILT_IN:
            require_plain_numbers(inputs)
        self.inputs, self.backend = inputs, backend
        self.precision = _precision(inputs.config.training.precision, backend)
        keras, policy = backend.keras, building.POLICIES.get(self.precision, "float32")
        self.model, self.compiled = building.build_model(keras, inputs, policy)
        self.meaning = building.check_outputs(keras, self.model, self.compiled, inputs, dtypes)
        self.loss = losses.build_loss(
            keras, inputs.config.training, self.compiled.loss, self.meaning, inputs.info
        )
        self.metrics = (
            CompiledMetrics(backend, self.compiled, self.meaning, inputs.info)
            if self.compiled.metrics is not None
            else None
        )
        self.custom_metrics: Sequence[Any] = () if self.metrics is None else self.metrics.own
        self.generators = backend_trainer.generators_of(keras, self.model)

    def compilation(self, optimizer: Any = None, of_loss: Sequence[Any] = ()) -> backend_trainer.Compilation:
        """Return what a backend needs to train the model, or to predict with it."""
        strict = self.inputs.config.training.determinism == "bitwise"
        return backend_trainer.Compilation(self.model, self.loss, optimizer, self.generators, strict, of_loss)

    def predictions(self, split: Split, forward: Forward) -> Iterator[Predictions]:
        """Yield the outputs of a split; the last part also has the values of the compiled metrics.

        Raises:
            ModelError: A compiled metric cannot be computed.
            TrainingError: Keras or its backend fails.
        """
        parts: list[tuple[Array, Array]] = []  # outputs and targets for the compiled metrics, if any
        for ids in self._parts(len(split)):
            taken = split.take(ids)
            batch = contiguous(taken, self.inputs.info)
            outputs, loss = self._outputs(ids, batch, forward)
            values = self.meaning.to_predictions(outputs, self.inputs.info)
            weights = batch.get(WEIGHT)
            total = len(ids) if weights is None else float(weights.sum(dtype=np.float64))
            predictions = Predictions(ids, values, taken[TARGET], loss * total, weights=weights)
            if self.metrics is not None:
                parts.append((outputs, taken[TARGET]))
                if ids[-1] + 1 == len(split):
                    predictions = predictions._replace(measures=self.metrics.over(parts))
            yield predictions

    @property
    def rows_together(self) -> int:
        """The number of rows that are predicted together."""
        return prediction_batch_size(self.inputs.config)

    def _parts(self, rows: int) -> Iterator[Ids]:
        """Yield the ids of the rows that are predicted together."""
        size = self.rows_together
        for start in range(0, rows, size):
            yield np.arange(start, min(start + size, rows), dtype=np.int64)

    def _outputs(self, ids: Ids, batch: Batch, forward: Forward) -> tuple[Array, float]:
        # A model may draw random numbers in prediction, too: layers can be called with training=True.
        stream = stream_seed(self.inputs.config.experiment.seed, PREDICT, int(ids[0]))
        seeds = backend_trainer.seeds_for(stream, len(self.generators))
        try:
            with self.backend.scope():
                return forward(batch, seeds)
        except Exception as error:
            raise translated(error, "prediction") from error


def contiguous(batch: Batch, info: DataInfo) -> Batch:
    """Return features, targets as learned, and weights (float32), in this order, as C-contiguous arrays."""
    weights = {WEIGHT: batch[WEIGHT].astype(np.float32)} if WEIGHT in batch else {}
    arrays = {FEATURES: batch[FEATURES], TARGET: learned(batch[TARGET], info)}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()} | weights


def translated(error: Exception, where: str) -> Exception:
    """Return one of our errors for an error of Keras or its backend."""
    if isinstance(error, TrainwrightError):
        return error
    name = type(error).__name__
    text = next(iter(str(error).strip().splitlines()), "")
    hint = "see where with --debug"
    if name in ("ResourceExhaustedError", "OutOfMemoryError") or "RESOURCE_EXHAUSTED" in text:
        hint = "set a smaller training.microbatch_size, for less memory and the same step up to rounding"
    return TrainingError(f"{where} failed: {name}: {text}; {hint}")


def _precision(name: str, backend: Backend) -> str:
    """Return `training.precision`, with `mixed` resolved to the 16-bit format of the device."""
    if name == "tf32":
        raise ModelError("training.precision: tf32 is for torch; Keras takes fp32, bf16, fp16 and mixed")
    return ("bf16" if backend.device == "cpu" else "fp16") if name == "mixed" else name
