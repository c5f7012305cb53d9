"""A user's own metrics that add up by themselves, as torchmetrics' do: `update` with each part, `compute`.

They are for outputs that are too large to keep, such as the logits of masks and texts, and for outputs that
the task does not know, such as those of a second head. A part is what a model predicts at once. Each part is
counted by a fresh object, and the counts are merged in the order of the parts: so the value does not depend
on how many processes predicted them.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from trainyard.errors import InputError, ModelError

State = Mapping[str, Any]  # what a metric has counted, by the names of its attributes
_TOLERANCE = 1e-4  # relative: sums of the same numbers in another order differ in the last digits


def is_accumulator(value: Any) -> bool:
    """Return whether a class or an object has the methods `update` and `compute`."""
    return all(callable(getattr(value, name, None)) for name in ("update", "compute"))


class Accumulator:
    """A metric that adds up by itself; `path` is what the config calls it, `name` its name in evaluations.

    Raises:
        InputError: The class cannot be constructed without arguments.
    """

    def __init__(self, path: str, name: str, metric: Any) -> None:
        self.path, self.name = path, name
        self._metric = metric
        self._is_checked = False
        self._fresh()

    def counted(self, update: Callable[[Any], None]) -> State:
        """Return what a fresh object counts on a part.

        The first part is counted twice more, to see that its counts add up.

        Args:
            update: Calls the method `update` of an object with the part.

        Raises:
            ModelError: The metric fails, or its counts do not add up.
        """
        state = self._state(self._updated(update, 1))
        if not self._is_checked:
            value, merged = self._computed(self._updated(update, 2)), self.value([state, state])
            if not math.isclose(value, merged, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) and not (
                math.isnan(value) and math.isnan(merged)
            ):
                raise ModelError(
                    f"evaluation.metrics: {self.path} does not add up: two updates of one object give "
                    f"{value:g}, and the counts of two objects {merged:g};\nlet `update` add to numbers, "
                    "arrays and tensors that begin at 0, or append to lists, and let `compute` do the rest"
                )
            self._is_checked = True
        return state

    def value(self, states: Iterable[State]) -> float:
        """Return the metric of all parts, whose counts are merged in their order.

        Raises:
            ModelError: It fails, or does not return one number.
        """
        metric = self._fresh()
        for state in states:
            _merge(metric, state, self.path)
        return self._computed(metric)

    def _fresh(self) -> Any:
        try:
            metric = self._metric() if isinstance(self._metric, type) else copy.deepcopy(self._metric)
        except TypeError as error:
            raise InputError(
                f"evaluation.metrics: {self.path} is constructed without arguments, but {error}; name an "
                "object of it, made in your module"
            ) from error
        if hasattr(metric, "distributed_available_fn"):
            # Metrics of torchmetrics would add up over all processes in `compute`, which one alone calls.
            metric.distributed_available_fn = _alone
        return metric

    def _updated(self, update: Callable[[Any], None], times: int) -> Any:
        metric = self._fresh()
        for _ in range(times):
            try:
                update(metric)
            except Exception as error:
                raise ModelError(
                    f"evaluation.metrics: {self.path}.update failed: {type(error).__name__}: {error}; it "
                    "gets the model's output and the targets as tensors, or with `update(self, outputs, "
                    "batch)` all outputs and the batch"
                ) from error
        return metric

    def _computed(self, metric: Any) -> float:
        try:
            with warnings.catch_warnings():  # torchmetrics warns that merged counts were not updated
                warnings.simplefilter("ignore")
                return float(metric.compute())
        except Exception as error:
            raise ModelError(
                f"evaluation.metrics: {self.path}.compute failed: {type(error).__name__}: {error}; it must "
                "return one number"
            ) from error

    def _state(self, metric: Any) -> State:
        """Return what a metric of torchmetrics declares, or the attributes that `update` has changed."""
        declared = getattr(metric, "metric_state", None)
        if isinstance(declared, Mapping):
            return {name: _portable(value) for name, value in declared.items()}
        before = getattr(self._fresh(), "__dict__", {})
        return {
            name: _portable(value)
            for name, value in getattr(metric, "__dict__", {}).items()
            if _can_add(value) and not _same(value, before.get(name))
        }


def _alone() -> bool:
    return False


def _merge(metric: Any, state: State, path: str) -> None:
    """Add the counts of a part to those of the parts before."""
    if callable(merge := getattr(metric, "merge_state", None)):
        try:
            merge(dict(state))
            return
        except RuntimeError:
            pass  # torchmetrics refuses to merge some: they may add up all the same
    for name, value in state.items():
        own = getattr(metric, name, None)
        try:
            setattr(metric, name, value if own is None else _sum(own, value))
        except Exception as error:
            raise ModelError(
                f"evaluation.metrics: {path}: the counts {name!r} of two parts cannot be added: {error}"
            ) from error


def _can_add(value: Any) -> bool:
    return isinstance(value, int | float | complex | list | set | dict | np.ndarray | np.generic) or (
        hasattr(value, "__add__") and hasattr(value, "shape")
    )


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, bool):
        return one or other
    if isinstance(one, set):
        return one | other
    if isinstance(one, dict):
        return one | {key: _sum(one[key], value) if key in one else value for key, value in other.items()}
    return one + other


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or getattr(one, "shape", None) != getattr(other, "shape", None):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    equal = one == other
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _portable(value: Any) -> Any:
    """Return counts that other processes can read: tensors on the host."""
    if isinstance(value, list):
        return [_portable(one) for one in value]
    if isinstance(value, dict):
        return {key: _portable(one) for key, one in value.items()}
    return value.detach().cpu() if hasattr(value, "detach") else value
