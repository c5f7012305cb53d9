"""The state of a model and its optimizer as named arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.errors import ModelError
from trainwright.frameworks.base import WEIGHTS_FILE
from trainwright.frameworks.support.stored import read_arrays
from trainwright.types import Array

OPTIMIZER_FILE = "optimizer.safetensors"
_COUNTER = re.compile(r"_\d+(?=[_/.]|$)")  # the number of a layer, which Keras counts up within a process


class TrainingState:
    """The variables that a resume needs, by file and name.

    Seed variables are not among them, since every step sets them.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._files = {WEIGHTS_FILE: _named([(_path(variable), variable) for variable in model.weights])}
        if optimizer is not None:
            self._files[OPTIMIZER_FILE] = _named(
                [(variable.name, variable) for variable in optimizer.variables]
            )

    def arrays(self, *, weights_only: bool) -> dict[str, dict[str, Array]]:
        """Return copies of the values, by file and name."""
        return {
            file: {name: np.asarray(variable.numpy()) for name, variable in variables.items()}
            for file, variables in self._files.items()
            if file == WEIGHTS_FILE or not weights_only
        }

    def load(self, folder: Path, *, weights_only: bool) -> None:
        """Load the files that a snapshot wrote.

        Raises:
            ModelError: Names or shapes differ from the model's.
        """
        for file, variables in self._files.items():
            if file == WEIGHTS_FILE or not weights_only:
                _assign(variables, read_arrays(folder / file))


def _path(variable: Any) -> str:
    """Return the last two parts of a variable's path: its layer's name and its own."""
    return ".".join(str(variable.path).split("/")[-2:])


def _named(variables: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Name variables by position and name, such as `003.dense.kernel`.

    Layer numbers are removed, since they depend on the models that this process created before.
    """
    return {
        f"{i:03}.{_COUNTER.sub('', name).replace('/', '.')}": variable
        for i, (name, variable) in enumerate(variables)
    }


def _assign(variables: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Assign arrays to the variables of the same names.

    Raises:
        ModelError: Names or shapes differ; the message shows the first three differences.
    """
    expected = {name: tuple(variable.shape) for name, variable in variables.items()}
    actual = {name: array.shape for name, array in arrays.items()}
    if expected != actual:
        differing = sorted(
            name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name)
        )[:3]
        differences = "; ".join(
            f"{name} is {expected.get(name, 'absent')} in the model, {actual.get(name, 'absent')} in the file"
            for name in differing
        )
        raise ModelError(f"the weights do not fit the model: {differences}")
    for name, variable in variables.items():
        variable.assign(arrays[name])
