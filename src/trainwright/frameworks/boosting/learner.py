"""The parts of a booster's learner that no library has to itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic

from trainwright.frameworks.base import Learner, LearnerInputs, Snapshot
from trainwright.frameworks.boosting.estimators import ModelSpec, Options, check_estimator
from trainwright.frameworks.support.custom_functions import CustomFunctions
from trainwright.frameworks.support.definition import of_estimator
from trainwright.frameworks.support.stored import Files, StoredSnapshot, buffers
from trainwright.types import NamedBuffer


class BoosterLearner(Learner, Generic[Options]):
    """A booster in training.

    Args:
        library: The library's module.
        inputs: The inputs of the learner.
        spec: The definition of the model.
        device: The device, as the library names it.
    """

    def __init__(self, library: Any, inputs: LearnerInputs, spec: ModelSpec[Options], device: str) -> None:
        check_estimator(inputs, spec.task)
        self._library = library
        self._inputs = inputs
        self._spec = spec
        self._device = device
        self._custom = CustomFunctions({"objective": spec.objective, "metric": spec.metric})

    def describe(self) -> Mapping[str, str]:
        """Return the library's version and the device."""
        return {self._library.__name__: self._library.__version__, "device": self._device}

    def why_inexact(self) -> str:
        """Return what the user's objective or metric is seen to keep from call to call."""
        return self._custom.why_inexact(*self._custom_calls())

    def unsaved_state(self) -> Mapping[str, str]:
        """Return a hash of each part of the state of the user's objective and metric."""
        return self._custom.unsaved()

    def definition(self) -> Mapping[str, str]:
        """Return the class and options of an estimator that was passed in Python, else nothing."""
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the model, or with `step` its first rounds."""
        return StoredSnapshot(self._files(weights_only, step))

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the serialized model, and the progress of the training."""
        return buffers(self._files(weights_only))

    @abstractmethod
    def _custom_calls(self) -> Sequence[Callable[[], Any]]:
        """Return calls of the user's objective and metric, as the first round makes them."""

    @abstractmethod
    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        """Return the arrays of the state by file and name; with `step`, those of the first rounds."""
