"""Copy, write and restore the state of a model and its optimizer, as named tensors.

A checkpoint has up to four files:

    weights.safetensors     parameters and persistent buffers, named as in `state_dict`
    optimizer.safetensors   `PARAMETER.KEY` (the optimizer's tensors), `scaler/KEY` (the gradient scaler's),
                            `trained/PARAMETER` if `weights` are an average; of the user's own optimizer
                            also `groups/INDEX.KEY`, `attributes/NAME`, `values` (JSON: what are no tensors);
    module.safetensors      only if needed: `buffers/NAME` (non-persistent buffers), `extra/NAME` (JSON from
                            `get_extra_state`), `strides` (JSON: strides of tensors not in row-major order),
                            `changes` (JSON: how training changed the module's structure; see `structure`),
                            `architecture` (JSON: the configuration of a model of transformers),
                            `compression` (JSON: how the module is compressed; see `compression.structure`)
    loss.safetensors        only if needed: what training changed in custom losses; see `state.custom`

Where several processes save, each has files of its own, such as `optimizer.1.safetensors`, with the tensors,
and blocks of tensors, that it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainwright.errors import ModelError
from trainwright.frameworks.base import WEIGHTS_FILE
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.parallel.blocks import Blocks
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.custom import LOSS_FILE, CustomLosses
from trainwright.frameworks.torch.state.files import load_tensors
from trainwright.frameworks.torch.state.json_tensors import from_tensor, is_json, to_tensor
from trainwright.frameworks.torch.state.layout import (
    Strides,
    address,
    copy_into,
    local,
    unusual_strides,
    with_strides,
    writable,
)
from trainwright.frameworks.torch.state.optimizer import OptimizerState
from trainwright.frameworks.torch.state.snapshot import (
    OPTIMIZER_FILE,
    Files,
    Owned,
    SnapshotMemory,
    Tensors,
    TorchSnapshot,
    owner_of,
)
from trainwright.frameworks.torch.state.start import GROWN
from trainwright.frameworks.torch.state.structure import Changes, Structure, set_buffer
from trainwright.frameworks.torch.state.unsaved import fingerprints

MODULE_FILE = "module.safetensors"
_WEIGHTS, _OPTIMIZER, _MODULE = (Path(file).stem for file in (WEIGHTS_FILE, OPTIMIZER_FILE, MODULE_FILE))
_BUFFERS, _EXTRA, _STRIDES, _CHANGES = "buffers/", "extra/", "strides", "changes"
_ARCHITECTURE, COMPRESSION = "architecture", "compression"
Owner = Callable[[Files], Owned]


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
        losses: CustomLosses | None = None,
        blocks: Blocks | None = None,
        elsewhere: Collection[str] = (),
        gather: Callable[[Changes], Sequence[Changes]] = lambda own: [own],
    ) -> None:
        """Prepare to save and restore a model.

        Args:
            model: The module.
            optimizer: What trains it, if anything does.
            precision: Holds the gradient scaler.
            built: The structure of the module when it was built; default: now.
            average: The average of the weights, if there is one: it is what the file of weights holds.
            architecture: What a Hugging Face model is built from, if it is one.
            losses: The losses of the user's, which may have state.
            blocks: What the optimizer updates in place of the parameters; default: these.
            elsewhere: The names of parameters and buffers that only other processes of a pipeline have.
            gather: Returns what all processes of a pipeline pass; a collective call.
        """
        self._model = model
        self._gather = gather
        self._optimizer = None
        if optimizer is not None:
            self._optimizer = OptimizerState(optimizer, model, precision, average, blocks)
        self._built = built or Structure.of(model)
        self._average = average
        self._elsewhere = frozenset(elsewhere)
        self._architecture = architecture
        self._losses = losses or CustomLosses()
        self._memory = SnapshotMemory()

    def files(self, *, weights_only: bool) -> Files:
        """Return the live tensors, by file and by name; without the optimizer's for `weights_only`.

        Raises:
            ModelError: Training changed the parameters, or the model has state that no file can hold.
        """
        if self._optimizer is not None:
            self._optimizer.check_parameters()
        weights, extra = self._state_dict()
        files = {WEIGHTS_FILE: weights}
        if not weights_only and self._optimizer is not None:
            files[OPTIMIZER_FILE] = self._optimizer.tensors()
        module = {
            f"{_BUFFERS}{name}": value for name, value in _buffers_of(self._model, persistent=False).items()
        }
        strides: Strides = {}
        for file, tensors in [*files.items(), (MODULE_FILE, module)]:
            strides |= {f"{Path(file).stem}.{name}": s for name, s in unusual_strides(tensors).items()}
        changes = self._built.changes(self._model, buffers_only=weights_only)
        strides, changes = _merged(self._gather({_STRIDES: strides, _CHANGES: changes}))
        module |= {f"{_EXTRA}{name}": to_tensor(value) for name, value in extra.items()}
        if strides:
            module[_STRIDES] = to_tensor(strides)
        if self._architecture is not None:
            module[_ARCHITECTURE] = to_tensor(self._architecture)
        if changes:
            module[_CHANGES] = to_tensor(changes)
        if module:
            files[MODULE_FILE] = module
        if losses := self._losses.tensors():
            files[LOSS_FILE] = losses
        return files

    def copy(self, owned: Owner = Owned, *, weights_only: bool) -> TorchSnapshot:
        """Copy the state to the host.

        Args:
            owned: Returns what this process saves of the live tensors.
            weights_only: Whether to leave out the optimizer's tensors.
        """
        files = self.files(weights_only=weights_only)
        names = [f"{Path(file).stem}.{name}" for file, tensors in files.items() for name in tensors]
        return self._memory.copy(owned(files), names, weights_only=weights_only)

    def reserve(self, owned: Owner = Owned) -> None:
        """Allocate the memory of the first snapshots ahead; see `SnapshotMemory.reserve`, and `copy`."""
        files = self.files(weights_only=False)
        weights = {file: tensors for file, tensors in files.items() if file != OPTIMIZER_FILE}
        self._memory.reserve({False: owned(files).files, True: owned(weights).files})

    def load(self, folder: Path, *, weights_only: bool) -> None:
        """Restore what a snapshot wrote, in the memory layout that it had.

        Raises:
            ModelError: The files are damaged, or do not fit the model.
        """
        try:
            weights = load_tensors(
                folder, WEIGHTS_FILE, dict(_named_tensors(self._model)).get, skip=self._skip(WEIGHTS_FILE)
            )
            module = load_tensors(folder, MODULE_FILE, optional=True, skip=self._skip(MODULE_FILE))
        except SafetensorError as error:
            raise ModelError(f"this is not a safetensors file: {error}") from error
        strides = _strides_by_file(module)
        changes: Changes = from_tensor(module[_CHANGES]) if _CHANGES in module else {}
        self._built.prepare_buffers(self._model, changes, weights)
        self._load_model(weights, module, strides[_WEIGHTS])
        self._load_buffers(module, strides[_MODULE])
        self._losses.load(folder)
        if weights_only:
            if self._average is not None:
                self._average.begin()
            return
        self._built.set_flags(self._model, changes)
        if self._optimizer is not None:
            saved = load_tensors(
                folder, OPTIMIZER_FILE, self._optimizer.layouts(), skip=self._skip(OPTIMIZER_FILE)
            )
            self._optimizer.load(saved, strides[_OPTIMIZER])

    def begin(self, folder: Path, names: Mapping[str, str]) -> None:
        """Take some tensors of a file of weights as initial ones; the others stay as they are.

        Args:
            folder: The folder of the file.
            names: The name in the model of each tensor to take, by its name in the file.
        """
        live = dict(_named_tensors(self._model))
        saved = load_tensors(
            folder, WEIGHTS_FILE, lambda name: live.get(names[name]), skip=lambda name: name not in names
        )
        with writable([*self._model.parameters(), *self._model.buffers()]):
            own = self._model.state_dict()
            self._model.load_state_dict(own | {names[name]: one for name, one in saved.items()})
        if self._average is not None:
            self._average.begin()

    def _skip(self, file: str) -> Callable[[str], bool]:
        """Return a function that says whether a tensor of a file belongs to another process's stages."""
        return lambda name: owner_of(file, name) in self._elsewhere

    def unsaved(self, *, has_trained: bool) -> dict[str, str]:
        """Return a hash of each part of the state that no checkpoint can hold, by name.

        Args:
            has_trained: Whether there was a step. Before it, groups of the optimizer may share tensors (their
                defaults) that they are about to replace; those that share memory later are named, too, since
                a restore separates them.

        Raises:
            ModelError: Training added, replaced or removed parameters.
        """
        assert self._optimizer is not None, "only a model that is trained is asked"
        self._optimizer.check_parameters()
        shared = dict.fromkeys(self._optimizer.shared(), "shared") if has_trained else {}
        return {**fingerprints(self._model), **self._optimizer.unsaved(), **shared}

    def evaluated(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters have their averages, if there are any, for evaluation."""
        return nullcontext() if self._average is None else self._average.in_place()

    def _state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the tensors of `state_dict`, and its other values, which JSON must be able to hold."""
        with self.evaluated():
            state = self._model.state_dict()
            tensors = {
                name: value.detach() for name, value in state.items() if isinstance(value, torch.Tensor)
            }
            if self._optimizer is not None:
                _refuse_lossy(
                    tensors, {**self._optimizer.parameters(), **_buffers_of(self._model, persistent=True)}
                )
        if self._average is not None and (averages := self._average.of_blocks()):
            tensors = {name: averages.get(address(one), one) for name, one in tensors.items()}
        extra = {name: value for name, value in state.items() if name not in tensors}
        for name, value in extra.items():
            _refuse_foreign(name, value)
        return tensors, extra

    def _load_model(self, weights: Tensors, module: Tensors, strides: Strides) -> None:
        live = self._model.state_dict()
        extra = {name: value for name, value in live.items() if not isinstance(value, torch.Tensor)}
        saved = {
            name.removeprefix(_EXTRA): from_tensor(value)
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
                wanted = strides.get(name)
                if wanted is not None and list(tensor.stride()) != wanted:
                    tensor.data = with_strides(tensor.data, wanted, tensor.device)

    def _hint_of(self, weights: Tensors) -> str:
        """Return what to do if only buffers do not fit: they may have grown in training."""
        own = {name: tensor.shape for name, tensor in self._model.named_parameters()}
        if any(name not in weights or weights[name].shape != shape for name, shape in own.items()):
            return ""
        return GROWN

    def _load_buffers(self, module: Tensors, strides: Strides) -> None:
        """Restore the buffers that are not persistent; their shapes may have changed, or they may be new."""
        saved = {
            name.removeprefix(_BUFFERS): value for name, value in module.items() if name.startswith(_BUFFERS)
        }
        live = _buffers_of(self._model, persistent=False)
        for name, value in saved.items():
            wanted, buffer = strides.get(f"{_BUFFERS}{name}"), live.get(name)
            if buffer is not None and _matches(buffer, value, wanted):
                copy_into(buffer, value)  # in place: it may share memory with another tensor
            else:
                device = next(self._model.parameters()).device if buffer is None else buffer.device
                set_buffer(self._model, name, with_strides(value, wanted, device), persistent=False)


def _merged(stages: Sequence[Changes]) -> tuple[Strides, Changes]:
    """Return the strides of all stages of a pipeline together, and the changes of their structures.

    They are in the order of the names, however the stages divide the model.
    """
    strides: Strides = {}
    changes: Changes = {}
    for stage in stages:
        strides |= stage[_STRIDES]
        for key, value in stage[_CHANGES].items():
            is_mapping = isinstance(value, dict)
            changes[key] = (
                {**changes.get(key, {}), **value} if is_mapping else {*changes.get(key, ()), *value}
            )
    ordered = {
        key: dict(sorted(value.items())) if isinstance(value, dict) else sorted(value)
        for key, value in sorted(changes.items())
    }
    return dict(sorted(strides.items())), ordered


def saved_architecture(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model of transformers that a snapshot wrote.

    Raises:
        ModelError: The file is damaged, or has none.
    """
    try:
        with safe_open(folder / MODULE_FILE, "pt") as file:
            architecture: dict[str, Any] = from_tensor(file.get_tensor(_ARCHITECTURE))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / MODULE_FILE} does not say what model it is of: {error}") from error
    return architecture


def saved_compression(folder: Path) -> dict[str, Any] | None:
    """Return how the module of a snapshot is compressed; None if it is not.

    Raises:
        ModelError: The file is damaged.
    """
    path = folder / MODULE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            if COMPRESSION not in file.keys():  # noqa: SIM118 - not a mapping
                return None
            structure: dict[str, Any] = from_tensor(file.get_tensor(COMPRESSION))
    except SafetensorError as error:
        raise ModelError(f"{path} is not a safetensors file: {error}") from error
    return structure


def _strides_by_file(module: Tensors) -> dict[str, Strides]:
    """Return the strides that the module's file holds, by the stem of a file and by name."""
    strides: dict[str, Strides] = {_WEIGHTS: {}, _OPTIMIZER: {}, _MODULE: {}}
    saved: Strides = from_tensor(module[_STRIDES]) if _STRIDES in module else {}
    for name, wanted in saved.items():
        stem, _, tensor = name.partition(".")
        strides.setdefault(stem, {})[tensor] = wanted
    return strides


def _matches(buffer: torch.Tensor, value: torch.Tensor, strides: list[int] | None) -> bool:
    """Return whether a value can be copied into a buffer without changing what kind of tensor it is."""
    layout = buffer.is_contiguous() if strides is None else list(buffer.stride()) == strides
    return buffer.shape == value.shape and buffer.dtype == value.dtype and layout


def _buffers_of(model: torch.nn.Module, *, persistent: bool) -> Tensors:
    """Return the buffers that torch's `state_dict` has, or those that it leaves out, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer.detach()
        for prefix, module in model.named_modules()
        for name, buffer in sorted(module._buffers.items())
        if buffer is not None and (name not in module._non_persistent_buffers_set) == persistent
    }


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers themselves; `state_dict` would give aliases of them."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _refuse_lossy(saved: Tensors, live: Tensors) -> None:
    """Refuse a `state_dict` of the user's own that leaves out tensors, or gives other values."""
    held = {(local(one).data_ptr(), one.dtype) for one in saved.values() if one.layout == torch.strided}
    for name, tensor in live.items():
        if tensor.layout != torch.strided or (local(tensor).data_ptr(), tensor.dtype) in held:
            continue  # maybe under another name
        value = saved.get(name)
        if value is None or value.dtype != tensor.dtype or not torch.equal(value, tensor):
            what = "leaves out" if value is None else "changes"
            raise ModelError(
                f"the model's own state_dict {what} {name}, so that a checkpoint would lose it: return all "
                "tensors as they are; give parameters that need not be saved requires_grad=False, and "
                "register such buffers with persistent=False"
            )


def _refuse_foreign(name: str, value: Any) -> None:
    if not is_json(value):
        raise ModelError(
            f"the model's state has {name!r}, a {type(value).__name__}: a checkpoint holds tensors, and from "
            "get_extra_state also numbers, strings, lists, and dictionaries with names as keys, but no tuples"
        )
