"""An optimizer of the user's, or any of torch's, by its import path, and all of its state."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainwright.config.schema import TrainingConfig
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.support.object_state import ObjectState
from trainwright.frameworks.torch.optim.groups import RATIO, Group
from trainwright.frameworks.torch.state.custom import OptimizerKinds, shared_generators
from trainwright.frameworks.torch.state.layout import address
from trainwright.require import import_path

Json = dict[str, Any]
# Attributes that torch gives to every optimizer, and that training does not change, or a checkpoint holds.
_TORCHS = {"state", "param_groups", "defaults"}
_SET = {"params", "lr", RATIO}  # entries of a group that each step sets, or that do not change


def build_custom(path: str, groups: Sequence[Group], training: TrainingConfig) -> torch.optim.Optimizer:
    """Build the optimizer that an import path names.

    Raises:
        ModelError: It cannot be imported, is no optimizer, rejects its options, or needs a closure.
    """
    key, options = "training.optimizer", dict(training.optimizer.params)
    try:
        cls = import_path(path)
    except InputError as error:
        raise ModelError(f"{key}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise ModelError(f"{key}: {path} is not a subclass of torch.optim.Optimizer")
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ModelError(
            f"{key}: {path} calls the model itself (step needs a closure), which is not "
            "supported; choose another optimizer"
        )
    accepted = inspect.signature(cls).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values())
    for name, value in (("lr", training.learning_rate), ("weight_decay", training.weight_decay)):
        if name in accepted or takes_all:
            options.setdefault(name, value)
    if "weight_decay" not in options and any(group["weight_decay"] for group in groups):
        raise ModelError(f"training.weight_decay: {path} has no weight_decay; leave it out")
    try:
        optimizer: torch.optim.Optimizer = cls(groups, **options)
    except Exception as error:
        listed = ", ".join(training.optimizer.params)
        raise ModelError(
            f"{key}: {path} rejects its options ({listed}): {type(error).__name__}: {error}"
        ) from error
    return optimizer


class CustomOptimizerState:
    """The state of an optimizer that is no tensor of a parameter, as JSON and as more tensors.

    Besides the tensors of parameters, an optimizer may keep plain numbers, words and lists of these for each
    parameter, and such values and tensors in its groups, and plain data in attributes. Anything else is named
    by `unsaved`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Prepare to save and restore; `names` are those of the parameters by their ids."""
        self._optimizer = optimizer
        self._names = names
        fresh = vars(torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))]))
        apart = {*_TORCHS, *fresh} - {"defaults"}  # which a step of the user's may change
        kinds = OptimizerKinds(optimizer, apart, lambda: list(self._tensors().values()))
        self._attributes = ObjectState(optimizer, kinds, self._elsewhere)

    def values(self) -> Json:
        """Return what JSON holds: `state`, `groups`, and `on_host`: tensors that are not on the device."""
        state: Json = {}
        on_host = []
        for name, parameter, key, value in self._entries():
            if isinstance(value, Tensor):
                if value.device != parameter.device:
                    on_host.append(f"{name}.{key}")
            elif _is_plain(value):
                state.setdefault(name, {})[key] = _listed(value)
        groups = [
            {key: _listed(value) for key, value in group.items() if key not in _SET and _is_plain(value)}
            for group in self._optimizer.param_groups
        ]
        attributes, _ = self._attributes.files()
        return {"state": state, "groups": groups, "on_host": on_host, "attributes": attributes}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors in the groups, as `INDEX.KEY`."""
        return {
            f"{index}.{key}": value
            for index, group in enumerate(self._optimizer.param_groups)
            for key, value in group.items()
            if key not in _SET and isinstance(value, Tensor)
        }

    def attribute_tensors(self) -> dict[str, Tensor]:
        """Return the tensors in the optimizer's attributes, for a file of the checkpoint."""
        return self._attributes.files()[1]

    def restore(self, values: Json, tensors: Mapping[str, Tensor], attributes: Mapping[str, Tensor]) -> None:
        """Give the optimizer what `values`, `tensors` and `attribute_tensors` returned.

        Its own tensors are restored already.
        """
        parameters = {name: parameter for parameter, name in self._parameters()}
        for name, entries in values["state"].items():
            for key, value in entries.items():
                self._optimizer.state[parameters[name]][key] = _unlisted(value)
        for name in values["on_host"]:
            owner, _, key = name.rpartition(".")
            state = self._optimizer.state[parameters[owner]]
            state[key] = state[key].cpu()
        for group, entries in zip(self._optimizer.param_groups, values["groups"], strict=True):
            group.update({key: _unlisted(value) for key, value in entries.items()})
        for name, tensor in tensors.items():
            index, _, key = name.partition(".")
            group = self._optimizer.param_groups[int(index)]
            group[key] = tensor.to(group[key].device if isinstance(group.get(key), Tensor) else "cpu")
        self._attributes.load(values["attributes"], attributes)

    def unsaved(self) -> dict[str, Any]:
        """Return what neither a checkpoint holds nor torch gives to every optimizer, by name."""
        unsaved: dict[str, Any] = {}
        for name, _, key, value in self._entries(all_keys=True):
            if not isinstance(key, str) or "." in key or not (isinstance(value, Tensor) or _is_plain(value)):
                unsaved[f"state of {name}: {key}"] = value
        known = {id(parameter) for parameter, _ in self._parameters()}
        unsaved |= {
            f"state: {type(key).__name__}": value
            for key, value in self._optimizer.state.items()
            if id(key) not in known
        }
        for index, group in enumerate(self._optimizer.param_groups):
            for key, value in group.items():
                if key not in _SET and not (isinstance(value, Tensor) or _is_plain(value)):
                    unsaved[f"group {index}: {key}"] = value
        return {f"optimizer.{name}": value for name, value in unsaved.items()}

    def unsaved_attributes(self) -> dict[str, str]:
        """Return a hash of each attribute that no checkpoint holds, by name."""
        return {f"optimizer.{name}": sha256 for name, sha256 in self._attributes.unsaved().items()}

    def shared(self, saved: Sequence[Tensor]) -> list[str]:
        """Return the names of the tensors that share memory with another one, which a restore separates.

        Args:
            saved: The parameters and buffers.
        """
        state = {f"state of {name}: {key}": value for name, _, key, value in self._entries(all_keys=True)}
        groups = {
            f"group {index}: {key}": value
            for index, group in enumerate(self._optimizer.param_groups)
            for key, value in group.items()
            if key not in _SET
        }
        attributes = [value for name, value in vars(self._optimizer).items() if name not in _TORCHS]
        others = [part for value in attributes for part in _parts(value)]
        uses = Counter(_address(one) for one in [*state.values(), *groups.values(), *saved, *others])
        return [
            f"optimizer.{name} (which shares its memory)"
            for name, value in (state | groups).items()
            if (address := _address(value)) and uses[address] > 1
        ]

    def _tensors(self) -> dict[str, Tensor]:
        """Return the parameters and the tensors of their states, by name."""
        parameters = {f"parameter {name}": parameter for parameter, name in self._parameters()}
        state = {f"state of {name}: {key}": value for name, _, key, value in self._entries()}
        return parameters | {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def _elsewhere(self) -> dict[str, Any]:
        """Return what is saved elsewhere, by name, so that attributes may lead to it."""
        groups = {f"group {index}": group for index, group in enumerate(self._optimizer.param_groups)}
        own = {"groups": self._optimizer.param_groups, "state": self._optimizer.state}
        return {**shared_generators(), **self._tensors(), **groups, **own}

    def _parameters(self) -> Iterator[tuple[Any, str]]:
        for group in self._optimizer.param_groups:
            yield from ((parameter, self._names[id(parameter)]) for parameter in group["params"])

    def _entries(self, *, all_keys: bool = False) -> Iterator[tuple[str, Any, Any, Any]]:
        """Yield the name of each parameter, itself, and each key of its state with the value."""
        for parameter, name in self._parameters():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if all_keys or (isinstance(key, str) and "." not in key):
                    yield name, parameter, key, value


def _parts(value: Any) -> list[Any]:
    """Return the items of a container, or the value itself."""
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


def _address(value: Any) -> int:
    """Return the address of a tensor's memory; 0 if it has none."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return 0
    return address(value)


def _is_plain(value: Any) -> bool:
    """Return whether `_listed` and `_unlisted` give back the same value."""
    if type(value) in (list, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str)


def _listed(value: Any) -> Any:
    """Return a value for JSON, in which a tuple is `{"tuple": [...]}`."""
    if type(value) in (list, tuple):
        parts = [_listed(part) for part in value]
        return {"tuple": parts} if type(value) is tuple else parts
    return value


def _unlisted(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(_unlisted(part) for part in value["tuple"])
    return [_unlisted(part) for part in value] if isinstance(value, list) else value
