"""Softmax regression in NumPy, with momentum and noisy inputs.

As small as a framework can be that has all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import Split
from trainwright.digest import FileRecord, write_tensors
from trainwright.frameworks.base import (
    WEIGHTS_FILE,
    Framework,
    Learner,
    LearnerInputs,
    Library,
    Model,
    ModelInputs,
    Plan,
    Snapshot,
)
from trainwright.frameworks.support.plans import minibatch_plan
from trainwright.order import INIT, STEP, stream_seed
from trainwright.types import Determinism, Ids, NamedBuffer, Predictions, StepResult

_OPTIMIZER_FILE = "optimizer.safetensors"


class ToyParams(Section):
    """The options of the model."""

    noise: float = Field(0.0, ge=0, description="standard deviation of the noise on the inputs")


class MomentumParams(Section):
    """The options of the optimizer."""

    momentum: float = Field(0.9, ge=0, lt=1)


class ToyFramework(Framework):
    """The adapter."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"toy": ToyParams}
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = {"momentum": MomentumParams}
    losses: ClassVar[Sequence[str]] = ("auto",)
    tasks: ClassVar[Collection[str] | None] = ("classification",)
    library: ClassVar[Library] = Library(("trainwright_toy",))

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:
        return ("epochs", "max_steps", "batch_size", "learning_rate", "scheduler", "optimizer", "loss")

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        return minibatch_plan(config, rows)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        return Determinism("bitwise", "NumPy on one thread")

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        return ToyLearner(inputs)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        return ToyModel(_read(folder, WEIGHTS_FILE))


class ToyModel(Model):
    """Predicts with the tensor `w`, (features, classes), as it is at the call."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors

    def predict(self, split: Split) -> Iterator[Predictions]:
        for start in range(0, len(split), 64):
            ids: Ids = np.arange(start, min(start + 64, len(split)), dtype=np.int64)
            batch = split.take(ids)
            features, targets = batch["features"], batch["target"]
            outputs = _softmax(features @ self.tensors["w"]).astype(np.float32)
            loss = -np.log(outputs[np.arange(len(ids)), targets] + 1e-12).sum()
            yield Predictions(ids, outputs, targets, float(loss))

    @property
    def native(self) -> Any:
        return self.tensors["w"]


class ToyLearner(Learner):
    """Trains in place."""

    def __init__(self, inputs: LearnerInputs) -> None:
        self._inputs = inputs
        self._momentum = float(inputs.config.training.optimizer.params.get("momentum", 0.9))
        self._noise = float(inputs.model_params["noise"])
        generator = np.random.Generator(np.random.PCG64(stream_seed(inputs.config.experiment.seed, INIT)))
        shape = (int(np.prod(inputs.info.input_shape)), inputs.info.outputs)
        self._tensors = {
            WEIGHTS_FILE: {"w": generator.normal(0, 0.01, shape)},
            _OPTIMIZER_FILE: {"v": np.zeros(shape)},
        }
        self._model = ToyModel(self._tensors[WEIGHTS_FILE])

    def model(self) -> ToyModel:
        return self._model

    def describe(self) -> Mapping[str, str]:
        return {"numpy": np.__version__}

    def step(self, step: int, lr: float) -> StepResult:
        ids = self._inputs.order.batch(step)
        batch = self._inputs.splits["train"].take(ids)
        seed = stream_seed(self._inputs.config.experiment.seed, STEP, step)
        x = batch["features"] + np.random.Generator(np.random.PCG64(seed)).normal(
            0, self._noise, batch["features"].shape
        )
        w, v = self._tensors[WEIGHTS_FILE]["w"], self._tensors[_OPTIMIZER_FILE]["v"]
        probabilities = _softmax(x @ w)
        rows = np.arange(len(ids))
        loss = -np.log(probabilities[rows, batch["target"]] + 1e-12).mean()
        probabilities[rows, batch["target"]] -= 1
        v *= self._momentum
        v += x.T @ probabilities / len(ids)
        w -= lr * v
        return StepResult(loss, len(ids))

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        return _Snapshot(
            {
                file: {k: v.copy() for k, v in named.items()}
                for file, named in self._files(weights_only).items()
            }
        )

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        for file, named in self._files(weights_only).items():
            named.update(_read(folder, file))

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        for file, named in self._files(weights_only).items():
            yield from (_buffer(f"{Path(file).stem}.{name}", array) for name, array in named.items())

    def _files(self, weights_only: bool) -> dict[str, dict[str, Any]]:
        return {
            file: named for file, named in self._tensors.items() if file == WEIGHTS_FILE or not weights_only
        }


class _Snapshot:
    def __init__(self, files: dict[str, dict[str, Any]]) -> None:
        self._files = files

    def write(self, folder: Path) -> list[FileRecord]:
        return [
            write_tensors(folder / file, [_buffer(name, array) for name, array in named.items()])
            for file, named in self._files.items()
        ]

    def release(self) -> None:
        """Nothing to give back."""


def _read(folder: Path, file: str) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / file))


def _buffer(name: str, array: Any) -> NamedBuffer:
    return NamedBuffer(name, "F64", array.shape, memoryview(array.reshape(-1).view(np.uint8)))


def _softmax(logits: Any) -> Any:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
