"""The state of a model and its optimizer as named arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.errors import ModelError
from trainyard.frameworks.base import WEIGHTS_FILE
from trainyard.frameworks.support.stored import read_arrays
from trainyard.types import Array

OPTIMIZER_FILE = "optimizer.safetensors"
_COUNTER = re.compile(
    r"_\d+(?=[_/.]|$)"
)  # by which Keras tells apart the layers that this process has made so far


class TrainingState:
    """The variables that a resume needs, by file and name. Seeds of random numbers are none: a step sets them itself."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._files = {WEIGHTS_FILE: _named([(_path(variable), variable) for variable in model.weights])}
        if optimizer is not None:
            self._files[OPTIMIZER_FILE] = _named(
                [(variable.name, variable) for variable in optimizer.variables]
            )

    def arrays(self, *, weights_only: bool) -> dict[str, dict[str, Array]]:
        """Copies of the values, by file and by name."""
        return {
            file: {name: np.asarray(variable.numpy()) for name, variable in variables.items()}
            for file, variables in self._files.items()
            if file == WEIGHTS_FILE or not weights_only
        }

    def load(self, folder: Path, *, weights_only: bool) -> None:
        """Takes up what a snapshot wrote."""
        for file, variables in self._files.items():
            if file == WEIGHTS_FILE or not weights_only:
                _assign(variables, read_arrays(folder / file))


def _path(variable: Any) -> str:
    """The names of the layers around a variable without the model's own, which holds for all."""
    return ".".join(str(variable.path).split("/")[-2:])


def _named(variables: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """By position and name, without what depends on the models that this process made before: `003.dense.kernel`."""
    return {
        f"{i:03}.{_COUNTER.sub('', name).replace('/', '.')}": variable
        for i, (name, variable) in enumerate(variables)
    }


def _assign(variables: dict[str, Any], arrays: dict[str, Array]) -> None:
    expected = {name: tuple(variable.shape) for name, variable in variables.items()}
    found = {name: array.shape for name, array in arrays.items()}
    if expected != found:
        differing = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )[:3]
        told = "; ".join(
            f"{name} is {expected.get(name, 'absent')} here, {found.get(name, 'absent')} there"
            for name in differing
        )
        raise ModelError(f"the weights do not fit the model: {told}")
    for name, variable in variables.items():
        variable.assign(arrays[name])
