"""Copy, write and restore the state of a model and its optimizer, as named tensors.

A checkpoint has up to three files:

    weights.safetensors     parameters and persistent buffers, named as in `state_dict`
    optimizer.safetensors   `PARAMETER.KEY` (the optimizer's tensors), `scaler/KEY` (the gradient scaler's),
                            `trained/PARAMETER` if `weights` are an average; of the user's own optimizer
                            also `groups/INDEX.KEY`, and `values` (JSON: what are no tensors);
                            where several processes save, the others' are in `optimizer.1.safetensors` ...
    module.safetensors      only if needed: `buffers/NAME` (non-persistent buffers), `extra/NAME` (JSON from
                            `get_extra_state`), `strides` (JSON: strides of tensors not in row-major order),
                            `changes` (JSON: how training changed the module's structure; see `structure`),
                            `architecture` (JSON: the configuration of a model of transformers)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from trainyard.digest import FileRecord, write_tensors
from trainyard.errors import ModelError
from trainyard.frameworks.base import WEIGHTS_FILE
from trainyard.frameworks.torch.ema import Average
from trainyard.frameworks.torch.layout import (
    Strides,
    copy_into,
    like,
    unusual_strides,
    with_strides,
    writable,
)
from trainyard.frameworks.torch.optim import is_built_in
from trainyard.frameworks.torch.own_optimizer import OwnState
from trainyard.frameworks.torch.precision import Precision
from trainyard.frameworks.torch.structure import Changes, Held, Structure, set_buffer
from trainyard.frameworks.torch.unsaved import optimizer_fingerprints
from trainyard.types import NamedBuffer

OPTIMIZER_FILE = "optimizer.safetensors"
MODULE_FILE = "module.safetensors"
_WEIGHTS, _OPTIMIZER, _MODULE = (Path(file).stem for file in (WEIGHTS_FILE, OPTIMIZER_FILE, MODULE_FILE))
_SCALER, _BUFFERS, _EXTRA, _STRIDES, _CHANGES = "scaler/", "buffers/", "extra/", "strides", "changes"
_TRAINED, _GROUPS, _VALUES, _ARCHITECTURE = "trained/", "groups/", "values", "architecture"
_MUCH, _PAGE = 16 << 20, 4096  # bytes
Tensors = dict[str, torch.Tensor]

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def named_buffer(name: str, tensor: torch.Tensor) -> NamedBuffer:
    """Return a tensor's bytes on the host; a contiguous tensor that is there already is not copied."""
    if tensor.dtype not in _DTYPES:
        raise ModelError(
            f"tensor {name!r} of the model is of {tensor.dtype}, which a checkpoint cannot "
            "hold; convert it, such as to float32"
        )
    if tensor.layout != torch.strided:
        raise ModelError(
            f"tensor {name!r} of the model is sparse, which a checkpoint cannot hold; keep a dense one"
        )
    flat = tensor.detach().to("cpu").resolve_neg().contiguous().reshape(-1)  # (elements,)
    return NamedBuffer(
        name, _DTYPES[tensor.dtype], tuple(tensor.shape), memoryview(flat.view(torch.uint8).numpy().data)
    )


class TrainingState:
    """Model, optimizer and scaler as the tensors that make them up, by file."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        precision: Precision,
        built: Structure | None = None,
        average: Average | None = None,
        architecture: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare to save and restore a model.

        Args:
            model: The module.
            optimizer: What trains it, if anything does.
            precision: The holder of the gradient scaler.
            built: The structure of the module when it was built; default: now.
            average: The average of the weights, if there is one: it is what the file of weights holds.
            architecture: What a model of transformers is built from, if it is one.
        """
        self._model = model
        self._optimizer = optimizer
        self._precision = precision
        self._built = built or Structure.of(model)
        self._average = average
        self._architecture = architecture
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        is_own = optimizer is not None and not is_built_in(optimizer)
        self._own = OwnState(optimizer, self._names) if is_own and optimizer is not None else None
        self._spare: dict[bool, list[dict[str, Tensors]]] = {True: [], False: []}
        self._reserving: threading.Thread | None = None
        # The buffers that were missing in the checkpoint of the last restore.
        self.not_restored: frozenset[str] = frozenset()

    def files(self, *, weights_only: bool) -> dict[str, Tensors]:
        """Return the live tensors, by file and by name; without the optimizer's for `weights_only`."""
        self.check_parameters()
        weights, extra = self._state_dict()
        files = {WEIGHTS_FILE: weights}
        if not weights_only and self._optimizer is not None:
            files[OPTIMIZER_FILE] = dict(self._optimizer_tensors(self._optimizer))
            if self._average is not None:
                trained = self._average.trained()
                files[OPTIMIZER_FILE] |= {f"{_TRAINED}{name}": one for name, one in trained.items()}
        module = {f"{_BUFFERS}{name}": value for name, value in _non_persistent_buffers(self._model).items()}
        strides: Strides = {}
        for file, tensors in [*files.items(), (MODULE_FILE, module)]:
            strides |= {f"{Path(file).stem}.{name}": s for name, s in unusual_strides(tensors).items()}
        module |= {f"{_EXTRA}{name}": _as_tensor(value) for name, value in extra.items()}
        if self._own is not None and OPTIMIZER_FILE in files:
            files[OPTIMIZER_FILE][_VALUES] = _as_tensor(self._own.values())
        if strides:
            module[_STRIDES] = _as_tensor(strides)
        if self._architecture is not None:
            module[_ARCHITECTURE] = _as_tensor(self._architecture)
        if changes := self._built.changes(self._model, buffers_only=weights_only):
            module[_CHANGES] = _as_tensor(changes)
        return files | ({MODULE_FILE: module} if module else {})

    def copy(self, *, weights_only: bool, share: tuple[int, int] | None = None) -> TorchSnapshot:
        """Copy the state to the host, into a released snapshot's memory if there is one: 5 times faster.

        Args:
            weights_only: Whether to leave out the optimizer's tensors.
            share: (index, count) of the share to copy; weights and module are in share 0. None: all of it.
        """
        files = self.files(weights_only=weights_only)
        live = files if share is None else _share(files, *share)
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None
        spare = self._spare[weights_only]
        buffers = spare.pop() if spare else {}
        copied = {
            file: {name: _copy(tensor, buffers.get(file, {}).get(name)) for name, tensor in tensors.items()}
            for file, tensors in live.items()
        }
        if any(tensor.is_cuda for tensors in live.values() for tensor in tensors.values()):
            torch.cuda.synchronize()
        return TorchSnapshot(copied, spare)

    def reserve(self, share: tuple[int, int] | None = None, *, weights: bool = True) -> None:
        """Allocate the memory of the first snapshots in another thread, if it is much.

        Pages that the system has not handed out yet make a copy 10 times slower.

        Args:
            share: The share of the whole state, as `copy` takes it.
            weights: Whether there will be snapshots of the weights alone.
        """
        files = self.files(weights_only=False)
        live = {False: files if share is None else _share(files, *share)}
        if weights:
            live[True] = self.files(weights_only=True)
        tensors = [one for files in live.values() for file in files.values() for one in file.values()]
        if sum(one.nbytes for one in tensors) < _MUCH:
            return

        def allocate() -> None:
            for weights_only, files in live.items():
                self._spare[weights_only].append(
                    {
                        file: {name: _touched(tensor) for name, tensor in tensors.items()}
                        for file, tensors in files.items()
                    }
                )

        self._reserving = threading.Thread(target=allocate, name="trainyard-reserve", daemon=True)
        self._reserving.start()

    def load(self, folder: Path, *, weights_only: bool) -> None:
        """Restore what a snapshot wrote, in the memory layout that it had."""
        try:
            weights = load_file(folder / WEIGHTS_FILE)
            module = load_file(folder / MODULE_FILE) if (folder / MODULE_FILE).exists() else {}
        except SafetensorError as error:
            raise ModelError(f"this is not a safetensors file: {error}") from error
        strides: Strides = _from_tensor(module[_STRIDES]) if _STRIDES in module else {}
        changes: Changes = _from_tensor(module[_CHANGES]) if _CHANGES in module else {}
        self._built.prepare_buffers(self._model, changes, weights)
        self._load_model(weights, module, strides)
        self._load_buffers(module, strides)
        if weights_only:
            if self._average is not None:
                self._average.begin()
            return
        self._built.set_flags(self._model, changes)
        self.not_restored = frozenset(
            name for name in _non_persistent_buffers(self._model) if f"{_BUFFERS}{name}" not in module
        )
        if self._optimizer is not None:
            shares = folder.glob(f"{_OPTIMIZER}.*{Path(OPTIMIZER_FILE).suffix}")
            tensors = {
                name: tensor
                for file in [folder / OPTIMIZER_FILE, *shares]
                for name, tensor in load_file(file).items()
            }
            self._load_optimizer(self._optimizer, tensors, strides)

    def evaluated(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters have the values that predict: their averages, if any."""
        return nullcontext() if self._average is None else self._average.in_place()

    def unsaved(self) -> dict[str, str]:
        """Return a hash of each part of the optimizer's state that no checkpoint can hold, by name."""
        if self._own is None:
            return {}
        tensors = [*self._model.parameters(), *self._model.buffers()]
        return optimizer_fingerprints(self._own.unsaved(), tensors, self._optimizer)

    def shared(self) -> list[str]:
        """Return the names of tensors of the optimizer that share memory, which a restore separates."""
        return (
            [] if self._own is None else self._own.shared([*self._model.parameters(), *self._model.buffers()])
        )

    def hold(self) -> Held:
        """Return a copy of the buffers and the extra state, which can be put back."""
        return Held(self._model)

    def check_parameters(self) -> None:
        """Check that the model still has the parameters that the optimizer was built with.

        Raises:
            ModelError: Training added, replaced or removed parameters.
        """
        if self._optimizer is None:
            return
        live = {id(parameter): name for name, parameter in self._model.named_parameters()}
        if live != self._names:
            names = sorted({name for _, name in live.items() ^ self._names.items()})
            raise ModelError(
                f"training added, replaced or removed the parameter {', '.join(names[:5])}: the optimizer "
                "would not train it, and no run could be resumed; create parameters in __init__ and assign "
                "to their .data, or use a buffer"
            )

    # -- the model

    def _state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the tensors of `state_dict`, and its other values, which JSON must be able to hold."""
        with self.evaluated():
            state = self._model.state_dict()
        tensors = {name: value.detach() for name, value in state.items() if isinstance(value, torch.Tensor)}
        extra = {name: value for name, value in state.items() if name not in tensors}
        for name, value in extra.items():
            _refuse_foreign(name, value)
        return tensors, extra

    def _load_model(self, weights: Tensors, module: Tensors, strides: Strides) -> None:
        live = self._model.state_dict()
        extra = {name: value for name, value in live.items() if not isinstance(value, torch.Tensor)}
        saved = {
            name.removeprefix(_EXTRA): _from_tensor(value)
            for name, value in module.items()
            if name.startswith(_EXTRA)
        }
        try:
            with writable([*self._model.parameters(), *self._model.buffers()]):
                # A file of weights alone says nothing of the extra state: the module's own stays.
                self._model.load_state_dict({**weights, **extra, **saved})
        except RuntimeError as error:
            hint = self._hint_of(weights)
            raise ModelError(f"the weights do not fit the model: {error}{hint}") from error
        if strides:
            for name, tensor in _named_tensors(self._model):
                wanted = strides.get(f"{_WEIGHTS}.{name}")
                if wanted is not None and list(tensor.stride()) != wanted:
                    tensor.data = with_strides(tensor.data, wanted, tensor.device)

    def _hint_of(self, weights: Tensors) -> str:
        """Return what to do if only buffers do not fit: they may have grown in training."""
        own = {name: tensor.shape for name, tensor in self._model.named_parameters()}
        if any(name not in weights or weights[name].shape != shape for name, shape in own.items()):
            return ""
        return (
            "; all parameters fit, but some buffers do not, which may change shape in training: "
            "leave these out of the file, or register them with persistent=False"
        )

    def _load_buffers(self, module: Tensors, strides: Strides) -> None:
        """Restore the buffers that are not persistent; their shapes may have changed, or they may be new."""
        saved = {
            name.removeprefix(_BUFFERS): value for name, value in module.items() if name.startswith(_BUFFERS)
        }
        live = _non_persistent_buffers(self._model)
        for name, value in saved.items():
            wanted, buffer = strides.get(f"{_MODULE}.{_BUFFERS}{name}"), live.get(name)
            if buffer is not None and _matches(buffer, value, wanted):
                copy_into(buffer, value)  # in place: it may share memory with another tensor
            else:
                device = next(self._model.parameters()).device if buffer is None else buffer.device
                set_buffer(self._model, name, with_strides(value, wanted, device), persistent=False)

    # -- the optimizer

    def _optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if isinstance(value, torch.Tensor):
                        yield f"{self._names[id(parameter)]}.{key}", value
        for key, value in self._precision.state().items():
            yield f"{_SCALER}{key}", value
        if self._own is not None:
            for key, value in self._own.tensors().items():
                yield f"{_GROUPS}{key}", value

    def _load_optimizer(
        self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], strides: Strides
    ) -> None:
        kinds: dict[str, Tensors] = {_SCALER: {}, _TRAINED: {}, _GROUPS: {}}
        by_parameter: dict[str, Tensors] = {}
        for name, value in tensors.items():
            kind = next((kind for kind in kinds if name.startswith(kind)), None)
            if kind is not None:
                kinds[kind][name.removeprefix(kind)] = value
            elif name != _VALUES:
                owner, _, key = name.rpartition(".")  # a parameter's name may have dots, a key has none
                by_parameter.setdefault(owner, {})[key] = value
        self._precision.load(kinds[_SCALER])
        if self._average is not None:
            self._average.restore(kinds[_TRAINED])
        for group in optimizer.param_groups:
            on_host = not (group.get("fused") or group.get("capturable"))  # where step counters are kept
            for parameter in group["params"]:
                owner = self._names[id(parameter)]
                for key, value in by_parameter.get(owner, {}).items():
                    device = torch.device("cpu") if key == "step" and on_host else parameter.device
                    wanted = strides.get(f"{_OPTIMIZER}.{owner}.{key}")
                    restored = like(value, parameter, device)
                    if wanted is not None and list(restored.stride()) != wanted:
                        restored = with_strides(value, wanted, device)
                    optimizer.state[parameter][key] = restored
        if self._own is not None and _VALUES in tensors:
            self._own.restore(_from_tensor(tensors[_VALUES]), kinds[_GROUPS])


def saved_architecture(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model of transformers that a snapshot wrote.

    Raises:
        ModelError: The file is damaged, or has none.
    """
    try:
        with safe_open(folder / MODULE_FILE, "pt") as file:
            architecture: dict[str, Any] = _from_tensor(file.get_tensor(_ARCHITECTURE))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / MODULE_FILE} does not say what model it is of: {error}") from error
    return architecture


class TorchSnapshot:
    """Tensors on the host that training does not touch; `release` makes their memory spare again."""

    def __init__(self, files: dict[str, Tensors], spare: list[dict[str, Tensors]]) -> None:
        self._files = files
        self._spare = spare

    def write(self, folder: Path) -> list[FileRecord]:
        """Write the files, hashing them on the way."""
        return [
            write_tensors(folder / file, [named_buffer(name, tensor) for name, tensor in tensors.items()])
            for file, tensors in self._files.items()
        ]

    def release(self) -> None:
        """Give the memory to a later snapshot."""
        if self._files:
            self._spare.append(self._files)
            self._files = {}


NOTHING = TorchSnapshot({}, [])


def _share(files: dict[str, Tensors], index: int, count: int) -> dict[str, Tensors]:
    """Return one of `count` shares of about the same size; every process divides the files alike."""
    optimizer = files[OPTIMIZER_FILE]
    others = [tensors for file, tensors in files.items() if file != OPTIMIZER_FILE]
    bytes_ = [sum(one.nbytes for tensors in others for one in tensors.values())] + [0] * (count - 1)
    mine: Tensors = {}
    for name, tensor in sorted(optimizer.items(), key=lambda item: (-item[1].nbytes, item[0])):
        smallest = bytes_.index(min(bytes_))
        bytes_[smallest] += tensor.nbytes
        if smallest == index:
            mine[name] = tensor
    if index == 0:
        return files | {OPTIMIZER_FILE: mine}
    return {f"{_OPTIMIZER}.{index}{Path(OPTIMIZER_FILE).suffix}": mine}


def _copy(tensor: torch.Tensor, spare: torch.Tensor | None) -> torch.Tensor:
    """Copy a tensor to the host, into spare memory if that has its shape and dtype."""
    if spare is None or spare.shape != tensor.shape or spare.dtype != tensor.dtype:
        spare = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return spare.copy_(tensor, non_blocking=True)


def _touched(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory on the host for a tensor, with all its pages there."""
    memory = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    if memory.nbytes:
        content = torch.empty(0, dtype=torch.uint8).set_(memory.untyped_storage())
        content.numpy()[::_PAGE] = 0  # not by torch, which would use as many threads as the step
    return memory


def _matches(buffer: torch.Tensor, value: torch.Tensor, strides: list[int] | None) -> bool:
    """Return whether a value can be copied into a buffer without changing what kind of tensor it is."""
    layout = buffer.is_contiguous() if strides is None else list(buffer.stride()) == strides
    return buffer.shape == value.shape and buffer.dtype == value.dtype and layout


def _non_persistent_buffers(model: torch.nn.Module) -> Tensors:
    """Return the buffers that `state_dict` leaves out, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer.detach()
        for prefix, module in model.named_modules()
        for name in sorted(module._non_persistent_buffers_set)
        if (buffer := module._buffers.get(name)) is not None
    }


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers themselves; `state_dict` would give aliases of them."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _as_tensor(value: Any) -> torch.Tensor:
    """Return the JSON text of a value as a (bytes,) uint8 tensor."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_tensor(tensor: torch.Tensor) -> Any:
    return json.loads(tensor.numpy().tobytes())


def _refuse_foreign(name: str, value: Any) -> None:
    if not _is_json(value):
        raise ModelError(
            f"the model's state has {name!r}, a {type(value).__name__}: a checkpoint holds tensors, and from "
            "get_extra_state also numbers, strings, lists, and dictionaries with names as keys, but no tuples"
        )


def _is_json(value: Any) -> bool:
    """Return whether JSON gives back the same value."""
    if type(value) is list:
        return all(_is_json(part) for part in value)
    if type(value) is dict:
        return all(type(key) is str and _is_json(part) for key, part in value.items())
    return value is None or type(value) in (bool, int, float, str)
