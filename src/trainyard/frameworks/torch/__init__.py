"""PyTorch, in one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import RunConfig, TrainingConfig
from trainyard.datasets.base import Split
from trainyard.digest import sha256_bytes
from trainyard.errors import ModelError, TrainingError, TrainyardError
from trainyard.frameworks.base import (
    WEIGHTS_FILE,
    Framework,
    FrameworkInputs,
    Plan,
    Snapshot,
    minibatch_plan,
    refuse_gaps,
)
from trainyard.frameworks.definition import path_of
from trainyard.frameworks.torch.params import LOSSES, MODELS, OPTIMIZERS
from trainyard.order import INIT, PREDICT, stream_seed
from trainyard.require import require
from trainyard.types import Determinism, NamedBuffer, Predictions, StepResult

if TYPE_CHECKING:
    import torch

    from trainyard.frameworks.torch.data import TensorSource


class TorchFramework(Framework):
    """Trains a `torch.nn.Module` on one device; what it is made of stands in the modules beside this one."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = MODELS
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = OPTIMIZERS
    losses: ClassVar[Sequence[str]] = LOSSES
    base_modules: ClassVar[Sequence[str]] = ("torch",)
    model_bases: ClassVar[Sequence[str]] = ("torch.nn:Module",)
    formats: ClassVar[Sequence[str]] = ("safetensors",)

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - it is what they were made for
        return TrainingConfig.model_fields

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:  # noqa: ARG004 - any model takes any steps
        return minibatch_plan(config, rows)

    def __init__(self, inputs: FrameworkInputs) -> None:
        require("torch", "torch")
        require("safetensors", "torch")
        from trainyard.frameworks.torch import losses, optim, precision, snapshot, step

        training = inputs.config.training
        refuse_gaps(inputs)
        self._inputs = inputs
        self._device = _device(training.device)
        _pin(inputs)
        self._model = self._build_model()
        self._loss = losses.build_loss(training.loss, inputs.info)
        self._to_predictions = losses.to_predictions
        self._precision = precision.Precision(training.precision, self._device)
        self._sources: dict[int, TensorSource] = {}
        if inputs.order:
            _refuse_lonely_sample(self._model, inputs)
        optimizer = (
            optim.build_optimizer(training, self._model.parameters(), self._device) if inputs.order else None
        )
        self._state = snapshot.TrainingState(self._model, optimizer, self._precision)
        self._named_buffer = snapshot.named_buffer
        if optimizer is not None:
            size = training.microbatch_size or training.batch_size
            settings = step.StepSettings(inputs.config.experiment.seed, size, training.max_grad_norm)
            self._step = step.TorchStep(self._model, self._loss, optimizer, self._precision, settings)
            self._order, self._train = inputs.order, self._source(inputs.splits["train"])

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        if config.training.determinism == "best" and _device(config.training.device).type == "cuda":
            reason = "on CUDA, an operation without a deterministic kernel only warns; training.determinism: bitwise refuses it"
            return Determinism("order", reason)
        return Determinism(
            "bitwise", "deterministic algorithms, a pinned number of threads, random streams by step"
        )

    def describe(self) -> Mapping[str, str]:
        import torch

        device = (
            torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else self._device.type
        )
        return {"torch": torch.__version__, "device": device}

    def definition(self) -> Mapping[str, str]:
        if self._inputs.model is None:
            return {}
        parts = [
            ("class", self._inputs.model),
            *((name, part) for name, part in self._inputs.model.named_modules() if name),
        ]
        own = {
            name: path_of(type(part))
            for name, part in parts
            if not type(part).__module__.startswith("torch.")
        }
        return {"layers": sha256_bytes(repr(self._inputs.model).encode()), **own}

    def step(self, step: int, lr: float) -> StepResult:
        try:
            return self._step(step, lr, self._order, self._train)  # type: ignore[arg-type]
        except TrainyardError:
            raise
        except Exception as error:
            raise _translated(error, f"step {step + 1}") from error

    def read(self, losses: Sequence[Any]) -> list[float]:
        import torch

        return [] if not losses else [float(value) for value in torch.stack(list(losses)).tolist()]

    def predict(self, split: Split) -> Iterator[Predictions]:
        import torch

        from trainyard.frameworks.torch import step

        source, size, rows = self._source(split), self._prediction_rows(), len(split)
        seed, generators = self._inputs.config.experiment.seed, step.generators(self._device)
        self._model.eval()
        try:
            for start in range(0, rows, size):
                ids = np.arange(start, min(start + size, rows), dtype=np.int64)
                step.seed_generators(
                    generators, stream_seed(seed, PREDICT, start)
                )  # as dropout may be on here, too
                features, targets = source.take(ids)
                with torch.no_grad(), self._precision.autocast():
                    outputs = self._model(features).float()
                    loss = float(self._loss(outputs, targets)) * len(ids)
                    values = self._to_predictions(outputs, self._inputs.info)
                yield Predictions(ids, values.cpu().numpy(), targets.cpu().numpy(), loss)
        except TrainyardError:
            raise
        except Exception as error:
            raise _translated(error, "a prediction") from error
        finally:
            self._model.train()

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:  # noqa: ARG002 - not cumulative
        return self._state.copy(weights_only=weights_only)

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        self._state.load(folder, weights_only=weights_only)

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        for file, tensors in self._state.files(weights_only=weights_only).items():
            for name, tensor in tensors.items():
                yield self._named_buffer(f"{Path(file).stem}.{name}", tensor)

    @property
    def native(self) -> torch.nn.Module:
        return self._model

    def export(self, path: Path, form: str) -> None:  # noqa: ARG002 - there is one
        self.snapshot(weights_only=True).write(path.parent)
        (path.parent / WEIGHTS_FILE).rename(path)

    def _source(self, split: Split) -> TensorSource:
        from trainyard.frameworks.torch.data import TensorSource

        source = self._sources.get(id(split)) or TensorSource(split, self._device)
        if self._inputs.owns(split):
            self._sources[id(split)] = source
        return source

    def _prediction_rows(self) -> int:
        training = self._inputs.config.training
        return self._inputs.config.evaluation.batch_size or 4 * (
            training.microbatch_size or training.batch_size
        )

    def _build_model(self) -> torch.nn.Module:
        from trainyard.frameworks.torch.models import build_model

        inputs = self._inputs
        # An object is copied, since training must not change an input: it is the initial weights of a repetition, too.
        model: torch.nn.Module = copy.deepcopy(inputs.model)
        if inputs.model is None:
            model = build_model(inputs.config.model.type, inputs.model_params, inputs.info)
        model = model.to(self._device).train()
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ModelError(f"model {inputs.config.model.type}: it has no parameters to train")
        self._try(model)
        return model

    def _try(self, model: torch.nn.Module) -> None:
        """Feeds the model one sample of the data, so that a misfit is found here and not as a traceback of step 1."""
        import torch

        info = self._inputs.info
        if self._inputs.order is None:
            return  # no rows to try: the model has been tried when it was trained
        batch = self._inputs.splits["train"].take(np.zeros(1, dtype=np.int64))
        sample = torch.from_numpy(np.ascontiguousarray(batch.features)).to(self._device)
        try:
            with torch.no_grad():  # not inference_mode: what the model may cache here is used in training
                outputs = model.eval()(sample)
        except Exception as error:
            shape = tuple(sample.shape)
            raise ModelError(
                f"model {self._inputs.config.model.type}: fed with features {shape}, it fails: {error}"
            ) from error
        finally:
            model.train()
        given = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        if given not in {(1, info.outputs), (1,) if info.outputs == 1 else (1, info.outputs)}:
            kind = "classes" if info.task == "classification" else "values"
            raise ModelError(
                f"model {self._inputs.config.model.type}: for one sample it gives {given}, "
                f"but the data has {info.outputs} {kind}: a tensor of shape (1, {info.outputs}) is expected"
            )


def _refuse_lonely_sample(model: torch.nn.Module, inputs: FrameworkInputs) -> None:
    """Batch normalization of flat rows needs two of them: a last (micro)batch of one is said before the training begins."""
    import torch

    training, rows = inputs.config.training, len(inputs.splits["train"])
    micro = training.microbatch_size or training.batch_size
    batches = {min(training.batch_size, rows), rows % training.batch_size}
    lonely = len(inputs.info.input_shape) == 1 and (
        micro == 1 or any(batch % micro == 1 for batch in batches)
    )
    if lonely and any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules()):
        raise ModelError(
            f"the model has batch normalization, and {rows} rows in batches of {training.batch_size} (microbatches of {micro}) "
            "leave one of a single sample, which it cannot normalize; change training.batch_size or microbatch_size"
        )


def _translated(error: Exception, where: str) -> TrainingError:
    hint = "see where with --debug"
    if type(error).__name__ == "OutOfMemoryError":
        hint = "set training.microbatch_size: smaller microbatches need less memory, and give the same step up to rounding"
    return TrainingError(f"{where} failed: {type(error).__name__}: {error}; {hint}")


def _device(name: str) -> torch.device:
    require("torch", "torch")
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"training.device: {name} was asked for, but torch sees no CUDA device; use cpu or auto"
        )
    return torch.device(name)


def _pin(inputs: FrameworkInputs) -> None:
    """Sets whatever the bits depend on: threads, algorithms, and the seed of the initial weights."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.set_num_threads(inputs.threads)
    # The same as use_deterministic_algorithms(True), which besides imports the compiler, and so takes two seconds.
    torch.set_deterministic_debug_mode("error" if inputs.config.training.determinism == "bitwise" else "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time, and we read no such memory
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(stream_seed(inputs.config.experiment.seed, INIT))
