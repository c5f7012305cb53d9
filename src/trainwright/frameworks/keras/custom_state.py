"""State of layers, losses, metrics and optimizers of the user's that is not among the model's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.frameworks.keras.backend import Backend
from trainwright.frameworks.keras.backend_trainer import others_of
from trainwright.frameworks.keras.network import Network
from trainwright.frameworks.support.custom_functions import custom_parts
from trainwright.frameworks.support.fingerprint import Fingerprint, is_users
from trainwright.frameworks.support.object_state import Captured, Kept, Kinds, NotPlainError, ObjectState
from trainwright.frameworks.support.stored import bytes_array, read_arrays
from trainwright.types import Array

CUSTOM_FILE = "custom.safetensors"
_STATE, _OTHERS = "state", "variables"


class KerasKinds(Kinds):
    """The kinds of Keras: layers, losses and generators of seeds, variables, and tensors of the backend.

    Args:
        keras: The module.
    """

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        bases = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer)
        self._internal = set(vars(keras.layers.Layer())) | set(vars(keras.metrics.Metric()))
        self._internal |= set(vars(keras.optimizers.SGD())) | set(vars(keras.Model()))
        self._holders = (*bases, keras.random.SeedGenerator)
        self.variables: dict[int, Any] = {}  # those that were there when the state was built, by their ids
        self.is_complete = False  # whether those are all that there may be

    def is_holder(self, value: Any) -> bool:
        """Return whether a value is an object of the user's, a metric, or a generator of seeds."""
        known = (self._keras.random.SeedGenerator, self._keras.metrics.Metric)
        return isinstance(value, known) or super().is_holder(value)

    def attributes(self, holder: Any) -> dict[str, Any]:
        """Return the attributes of a holder without those that Keras gives to all of its kind."""
        attributes = super().attributes(holder)
        if isinstance(holder, self._keras.random.SeedGenerator):
            return {"state": holder.state}
        if not isinstance(holder, self._holders):
            return attributes
        return {name: value for name, value in attributes.items() if name not in self._internal}

    def sequence(self, value: Any) -> str | None:
        """Return the kind of a sequence; Keras has lists of its own."""
        return "list" if type(value).__name__ == "TrackedList" else super().sequence(value)

    def mapping(self, value: Any) -> str | None:
        """Return the kind of a mapping; Keras has dictionaries of its own."""
        return "dict" if type(value).__name__ == "TrackedDict" else super().mapping(value)

    def leaf(self, value: Any) -> tuple[Any, Any] | None:
        """Return a variable or a tensor of the backend with its values."""
        if _is_variable(value):
            if self.is_complete and id(value) not in self.variables:
                raise NotPlainError  # made in training, so that no new process has it
            self.variables[id(value)] = value
            return "variable", np.asarray(value.numpy())
        if self._keras.ops.is_tensor(value):
            if getattr(value, "grad_fn", None) is not None:
                raise NotPlainError
            try:
                return "tensor", np.asarray(self._keras.ops.convert_to_numpy(value))
            except Exception as error:  # a symbol, of a graph that is being traced
                raise NotPlainError from error
        return None

    def made(self, how: Any, values: Any, live: Any) -> Any:
        """Return the variable or tensor with some values."""
        if how == "tensor":
            return self._keras.ops.convert_to_tensor(values)
        live.assign(values)
        return live

    def hasher(self, shared: frozenset[int]) -> Fingerprint:
        """Return what hashes variables and tensors, too."""
        return _Fingerprint(shared, self._keras)


class _Fingerprint(Fingerprint):
    """Hash a value with the tensors that it contains."""

    def __init__(self, shared: frozenset[int], keras: Any) -> None:
        super().__init__(shared)
        self._keras = keras

    def _parts(self, value: Any) -> list[Any]:
        if id(value) in self._shared:
            return []
        if _is_variable(value):
            return [np.asarray(value.numpy())]
        if self._keras.ops.is_tensor(value):
            return [np.asarray(self._keras.ops.convert_to_numpy(value))]
        return super()._parts(value)


class CustomState:
    """The state of objects of the user's: of the layers, the loss, the compiled metrics and the optimizer.

    Attributes of Python are read while a graph is made on TensorFlow and JAX, and not in each step: there
    they are no state that a restore could give back, and those that change are named.

    Args:
        backend: The backend.
        network: The model with its loss and metrics.
        optimizer: The optimizer.
    """

    def __init__(self, backend: Backend, network: Network, optimizer: Any) -> None:
        keras, model = backend.keras, network.model
        self._is_eager = backend.name == "torch"
        self._kinds = KerasKinds(keras)
        layers = list(dict.fromkeys(model._flatten_layers()))
        saved = [*model.variables, *optimizer.variables, *network.generators]
        elsewhere: dict[str, Any] = {f"variable {index}": one for index, one in enumerate(saved)}
        elsewhere |= {f"layer {index}": one for index, one in enumerate(layers) if not is_users(type(one))}
        roots = {f"layer {index}": one for index, one in enumerate(layers) if is_users(type(one))}
        roots |= {f"optimizer {index}": one for index, one in enumerate([optimizer]) if is_users(type(one))}
        named = {"metric": network.custom_metrics, "loss": [network.loss]}
        for name, values in named.items():
            parts = [part for value in values for part in custom_parts(value)]
            roots |= {f"{name} {index}" if index else name: one for index, one in enumerate(parts)}
        self._states: dict[str, ObjectState] = {}
        known = 0
        for name, root in roots.items():
            known = known if name.startswith("loss") else len(self._kinds.variables)
            self._states[name] = ObjectState(root, self._kinds, lambda: elsewhere)
        self._kinds.is_complete = True
        # The variables of the loss, which no model has.
        self.of_loss = list(self._kinds.variables.values())[known:]
        seeds = {id(one) for one in network.generators}
        self._others = [one for one in others_of(model) if id(one) not in seeds]  # of metrics in layers

    def arrays(self) -> dict[str, Array]:
        """Return what has changed since the objects were built, by name; empty if nothing has."""
        arrays = {f"{_OTHERS}/{index}": np.asarray(one.numpy()) for index, one in enumerate(self._others)}
        for name, state in self._states.items():
            saved, values = state.files(self._is_kept(name))
            if saved:
                arrays[f"{name}/{_STATE}"] = bytes_array(json.dumps(saved).encode())
                arrays |= {f"{name}/{at}": np.array(one) for at, one in values.items()}
        return arrays

    def load(self, folder: Path) -> None:
        """Restore what `arrays` returned; without a file in the folder, the objects are as built."""
        loaded = read_arrays(folder / CUSTOM_FILE) if (folder / CUSTOM_FILE).exists() else {}
        for index, one in enumerate(self._others if loaded else ()):
            one.assign(loaded[f"{_OTHERS}/{index}"])
        for name, state in self._states.items():
            own = {
                at.removeprefix(f"{name}/"): one for at, one in loaded.items() if at.startswith(f"{name}/")
            }
            saved = json.loads(own.pop(_STATE).tobytes()) if _STATE in own else ()
            state.load(saved, own, self._is_kept(name))

    def held(self) -> Mapping[str, Captured]:
        """Return a copy of the state, for `put_back`."""
        return {name: state.held() for name, state in self._states.items()}

    def put_back(self, held: Mapping[str, Captured]) -> None:
        """Give the objects the state that `held` returned."""
        for name, one in held.items():
            self._states[name].put_back(one)

    def unsaved(self) -> dict[str, str]:
        """Return a hash of each part of the state that no checkpoint holds, by name."""
        return {
            f"{name}.{at}": sha256
            for name, state in self._states.items()
            for at, sha256 in state.unsaved(saved=self._is_kept(name)).items()
        }

    def _is_kept(self, name: str) -> Kept:
        """Return the test of the nodes that are saved: all, or variables alone."""
        is_eager = self._is_eager or name.startswith("metric")
        return lambda node: is_eager or node == ["leaf", "variable"]


def _is_variable(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("assign", "numpy", "shape", "dtype"))
