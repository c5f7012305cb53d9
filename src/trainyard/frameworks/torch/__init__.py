"""The PyTorch framework, in one process."""

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
    require_plain_numbers,
)
from trainyard.frameworks.support.definition import path_of
from trainyard.frameworks.torch.params import LOSSES, MODELS, OPTIMIZERS
from trainyard.order import INIT, PREDICT, stream_seed
from trainyard.registry import task_for
from trainyard.require import require
from trainyard.types import Determinism, NamedBuffer, Predictions, StepResult

if TYPE_CHECKING:
    import torch

    from trainyard.frameworks.torch.data import TensorSource


class TorchFramework(Framework):
    """Train a `torch.nn.Module` on one device."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = MODELS
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = OPTIMIZERS
    losses: ClassVar[Sequence[str]] = LOSSES
    takes_named_inputs: ClassVar[bool] = True
    base_modules: ClassVar[Sequence[str]] = ("torch",)
    model_bases: ClassVar[Sequence[str]] = ("torch.nn:Module",)
    formats: ClassVar[Sequence[str]] = ("safetensors",)
    unsaved_hint: ClassVar[str] = (
        "keep tensors with register_buffer, and give the rest back from get_extra_state and set_extra_state"
    )

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - the same for all
        """Return all keys of `training`."""
        return TrainingConfig.model_fields

    @staticmethod
    def reset() -> None:
        """Undo what code of the user's may have set in torch for the whole process."""
        from trainyard.frameworks.torch import settings

        settings.reset()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:  # noqa: ARG004 - the same for all models
        """Return the plan of a framework that trains on minibatches."""
        return minibatch_plan(config, rows)

    def __init__(self, inputs: FrameworkInputs) -> None:
        require("torch", "torch")
        require("safetensors", "torch")
        from trainyard.frameworks.torch import losses, precision, snapshot, step, structure

        training = inputs.config.training
        require_plain_numbers(inputs)
        self._inputs = inputs
        self._device = _device(training.device)
        _pin(inputs)
        self._model = self._build_model()
        built = structure.Structure.of(self._model)  # before a first sample, which prediction does not need
        self._task = task_for(inputs.info)
        self._loss = losses.build_loss(training.loss, self._task)
        self._names = losses.input_names(self._model, inputs.info)
        self._call = losses.call_of(self._model, self._names)
        self._sources: dict[int, TensorSource] = {}
        self._check_fit(self._model)
        self._precision = precision.Precision(training.precision, self._device)
        if inputs.order:
            _refuse_single_sample(self._model, inputs)
        optimizer = self._build_optimizer(training) if inputs.order else None
        self._state = snapshot.TrainingState(self._model, optimizer, self._precision, built)
        self._named_buffer = snapshot.named_buffer
        if optimizer is not None:
            size = training.microbatch_size or training.batch_size
            settings = step.StepSettings(inputs.config.experiment.seed, size, training.max_grad_norm)
            self._step = step.TorchStep(self._call, self._loss, optimizer, self._precision, settings)
            self._order, self._train = inputs.order, self._source(inputs.splits["train"])

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise`, unless a CUDA operation may lack a deterministic kernel."""
        if config.training.determinism == "best" and _device(config.training.device).type == "cuda":
            reason = "on CUDA, an operation without a deterministic kernel only warns; "
            return Determinism("order", reason + "training.determinism: bitwise refuses it")
        return Determinism(
            "bitwise", "deterministic algorithms, a pinned number of threads, random streams by step"
        )

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu`, without importing torch if the config says so, or the model of the GPU."""
        name = config.training.device
        return name if name == "cpu" else _model_of(_device(name))

    def describe(self) -> Mapping[str, str]:
        """Return torch's version, the device's model, and the precision; on CUDA, the version of cuDNN."""
        import torch

        cudnn = {}
        if self._device.type == "cuda":
            cudnn["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        precision = {"precision": self._precision.name}
        return {"torch": torch.__version__, "device": _model_of(self._device), **precision, **cudnn}

    def definition(self) -> Mapping[str, str]:
        """Return the layers of a model that was passed as an object, with the import paths of own classes."""
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
        """Run one optimizer step; see `step.TorchStep`.

        Raises:
            TrainingError: Torch fails. Options and data are checked in the constructor.
        """
        try:
            return self._step(step, lr, self._order, self._train)  # type: ignore[arg-type]
        except TrainyardError:
            raise
        except Exception as error:
            raise _translated(error, f"step {step + 1}") from error

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy the losses of some steps from the device, all at once."""
        import torch

        if not losses:
            return []
        return [float(value) for value in torch.stack(list(losses)).tolist()]  # (steps,)

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split; each part draws from the stream of its first row.

        What an evaluation changes in buffers is undone if it is not finished, since a resume repeats it.

        Raises:
            TrainingError: Torch fails.
        """
        import torch

        from trainyard.frameworks.torch import step, structure
        from trainyard.frameworks.torch.losses import as_float, first_output, to_predictions

        task, source, size, rows = self._task, self._source(split), self._prediction_rows(), len(split)
        seed, generators = self._inputs.config.experiment.seed, step.generators(self._device)
        modes, held = structure.modes(self._model), self._state.hold() if self._inputs.order else None
        self._model.eval()
        try:
            for start in range(0, rows, size):
                ids = np.arange(start, min(start + size, rows), dtype=np.int64)
                # The model may draw here, too: Monte Carlo dropout, say.
                step.seed_generators(generators, stream_seed(seed, PREDICT, start))
                batch = source.take(ids)  # tensors (n, ...)
                with torch.no_grad(), self._precision.autocast():
                    outputs = as_float(self._call(batch))  # (n, outputs), or several such
                    # The sum over the n rows. A task whose predictions are sums has its loss in them.
                    loss = 0.0 if task.sums else float(self._loss(outputs, batch)) * len(ids)
                    values = to_predictions(first_output(outputs), batch, task).cpu().numpy()
                targets = np.empty((len(ids), 0)) if task.sums else batch[task.target].cpu().numpy()
                yield Predictions(ids, values, targets, loss)
            held = None
        except TrainyardError:
            raise
        except Exception as error:
            raise _translated(error, "a prediction") from error
        finally:
            self._model.train()
            structure.set_modes(self._model, modes)
            if held is not None:
                held.put_back()

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:  # noqa: ARG002 - not cumulative
        """Copy the state to the host."""
        return self._state.copy(weights_only=weights_only)

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore what a snapshot wrote."""
        self._state.load(folder, weights_only=weights_only)

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield `weights.*`, then `optimizer.*` and `module.*`; see `snapshot`."""
        for file, tensors in self._state.files(weights_only=weights_only).items():
            if weights_only and file != WEIGHTS_FILE:
                continue
            for name, tensor in tensors.items():
                yield self._named_buffer(f"{Path(file).stem}.{name}", tensor)

    def unsaved_state(self) -> Mapping[str, str]:
        """Return a hash of each attribute of the modules that a snapshot leaves out."""
        from trainyard.frameworks.torch.unsaved import fingerprints

        self._state.check_parameters()
        return fingerprints(self._model, self._state.not_restored)

    @property
    def input_names(self) -> Sequence[str] | None:
        """The arrays that `forward` names."""
        return self._names

    @property
    def native(self) -> torch.nn.Module:
        """The module itself."""
        return self._model

    def export(self, path: Path, form: str) -> None:  # noqa: ARG002 - there is one
        """Write the weights as a safetensors file."""
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
        # An object is an input, so training must not change it: `reproduce` starts from its weights again.
        model: torch.nn.Module = copy.deepcopy(inputs.model)
        if inputs.model is None:
            model = build_model(inputs.config.model.type, inputs.model_params, inputs.info)
        model = model.to(self._device).train()
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ModelError(f"model {inputs.config.model.type}: it has no parameters to train")
        return model

    def _build_optimizer(self, training: TrainingConfig) -> torch.optim.Optimizer:
        from trainyard.frameworks.torch import layout, optim

        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and layout.is_expanded(parameter):
                raise ModelError(
                    f"parameter {name} is expanded: its elements share memory, and no optimizer can update "
                    "it; make the parameter of the tensor before expand(), and expand it in forward"
                )
        sparse = [
            name for name, module in self._model.named_modules() if getattr(module, "sparse", 0) is True
        ]
        return optim.build_optimizer(training, self._model.parameters(), self._device, sparse)

    def _check_fit(self, model: torch.nn.Module) -> None:
        """Feed the model one sample, so that a misfit is an error here and not a traceback of step 1."""
        import torch

        from trainyard.frameworks.torch.losses import as_float, first_output

        info, name = self._inputs.info, self._inputs.config.model.type
        if self._inputs.order is None:
            return  # there are no rows, and the model was checked when it was trained
        sample = self._source(self._inputs.splits["train"]).take(np.zeros(1, dtype=np.int64))  # (1, ...) each
        inputs = ", ".join(f"{input_} {tuple(sample[input_].shape)}" for input_ in self._names)
        try:
            with torch.no_grad():  # not inference_mode: training may use what the model caches here
                model.eval()
                outputs = self._call(sample)
        except Exception as error:
            raise ModelError(f"model {name} fails on {inputs}: {error}") from error
        finally:
            model.train()
        shape, expected = tuple(first_output(outputs).shape), (1, *self._task.output_shape)
        if shape != expected and not (shape == (1,) and expected == (1, 1)):
            raise ModelError(
                f"model {name}: for one sample it gives {shape}, but the data has {info.outputs} "
                f"{self._task.noun}: a tensor of shape {expected} is expected"
            )
        try:
            with torch.no_grad():
                self._loss(as_float(outputs), sample)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"training.loss: {self._inputs.config.training.loss} fails on the outputs of model {name}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _refuse_single_sample(model: torch.nn.Module, inputs: FrameworkInputs) -> None:
    """Refuse a last (micro)batch of one sample, which batch normalization of flat rows cannot normalize."""
    import torch

    training, rows = inputs.config.training, len(inputs.splits["train"])
    micro = training.microbatch_size or training.batch_size
    batches = {min(training.batch_size, rows), rows % training.batch_size}
    single = micro == 1 or any(batch % micro == 1 for batch in batches)
    flat = len(inputs.info.input_shape) == 1
    if flat and single and any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules()):
        raise ModelError(
            f"the model has batch normalization, and {rows} rows in batches of {training.batch_size} "
            f"(microbatches of {micro}) leave one of a single sample, which it cannot normalize; "
            "change training.batch_size or microbatch_size"
        )


def _translated(error: Exception, where: str) -> TrainingError:
    hint = "see where with --debug"
    if type(error).__name__ == "OutOfMemoryError":
        hint = (
            "set training.microbatch_size: a smaller one needs less memory, with the same step up to rounding"
        )
    return TrainingError(f"{where} failed: {type(error).__name__}: {error}; {hint}")


def _device(name: str) -> torch.device:
    require("torch", "torch")
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"training.device: {name} was requested, but torch sees no CUDA device; use cpu or auto"
        )
    return torch.device(name)


def _model_of(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _pin(inputs: FrameworkInputs) -> None:
    """Set what the bits depend on in this process: threads, algorithms, seed of the initial weights."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.set_num_threads(inputs.threads)
    # The same as use_deterministic_algorithms(True), which takes two seconds since it imports the compiler.
    torch.set_deterministic_debug_mode("error" if inputs.config.training.determinism == "bitwise" else "warn")
    # Filling memory costs time, and we read none that is uninitialized.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(stream_seed(inputs.config.experiment.seed, INIT))
