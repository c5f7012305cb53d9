"""A user's own metrics that add up by themselves, as torchmetrics' do: `update` with each part, `compute`.

They are for outputs that are too large to keep, such as the logits of masks and texts, and for outputs that
the task does not know, such as those of a second head. A part is what a model predicts at once. Each part is
counted by a fresh object, and the counts are merged in the order of the parts: so the value does not depend
on how many processes predicted them.
"""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.errors import InputError, ModelError

# What a metric has counted: the attributes of the object, whose path is "", and of each metric within it.
State = Mapping[str, Mapping[str, Any]]
_TOLERANCE = 1e-4  # relative: sums of the same numbers in another order differ in the last digits


def is_accumulator(value: Any) -> bool:
    """Return whether a class or an object has the methods `update` and `compute`."""
    return all(callable(getattr(value, name, None)) for name in ("update", "compute"))


def parts_of(metric: Any) -> list[Any]:
    """Return a metric and the metrics that it consists of."""
    return [one for _, one in _objects(metric)]


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

        The first part is counted twice more, to see that its counts add up, and that they are the same again.

        Args:
            update: Calls the method `update` of an object with the part.

        Raises:
            ModelError: The metric fails, or its counts do not add up.
        """
        if self._is_checked:
            return self._state(self._updated(update, 1))
        shared = copy.deepcopy(_shared(self._fresh()))
        metric = self._updated(update, 1)
        state = self._state(metric)
        self._check_attributes(metric, shared)
        value, merged = self._computed(self._updated(update, 2)), self.value([state, state])
        if not _are_close(value, merged):
            self._refuse_random_numbers(merged, update)
            raise self._does_not_add_up(
                f"two updates of one object give {value:g}, and the counts of two objects {merged:g}"
            )
        # Counts that got lost, and maxima, may give 0 or NaN, too: then the next part is looked at.
        self._is_checked = value != 0 and not math.isnan(value)
        return state

    def value(self, states: Iterable[State]) -> float:
        """Return the metric of all parts, whose counts are merged in their order.

        Raises:
            ModelError: It fails, or does not return one number.
        """
        metric, parts = self._fresh(), list(states)
        for path, one in _objects(metric):
            _merge(one, [state[path] for state in parts if path in state], self.path)
        return self._computed(metric)

    def _fresh(self) -> Any:
        try:
            metric = self._metric() if isinstance(self._metric, type) else copy.deepcopy(self._metric)
        except TypeError as error:
            raise InputError(
                f"evaluation.metrics: {self.path} is constructed without arguments, but {error}; name an "
                "object of it, made in your module"
            ) from error
        for one in parts_of(metric):
            if hasattr(one, "distributed_available_fn"):
                # Metrics of torchmetrics would add up over all processes in `compute`, which one alone calls.
                one.distributed_available_fn = _alone
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
        """Return what metrics of torchmetrics declare, and what `update` has changed of others."""
        before = dict(_objects(self._fresh()))
        return {path: _counts(one, before.get(path)) for path, one in _objects(metric)}

    def _check_attributes(self, metric: Any, shared: Mapping[str, Any]) -> None:
        """Refuse counts that no state has: those in attributes of classes, and in objects of other kinds."""
        now = _shared(metric)
        if changed := [name for name, value in shared.items() if not _same(value, now.get(name))]:
            raise self._does_not_add_up(
                f"`update` changes {', '.join(changed)} of the class, which all objects share (set it in "
                "`__init__`)"
            )
        before = dict(_objects(self._fresh()))
        for path, one in _objects(metric):
            old = _attributes(before.get(path))
            for name, value in _attributes(one).items():
                counts_nothing = _can_add(value) or _holds_objects(name, value) or _is_device(value)
                if not counts_nothing and _differ(value, old.get(name)):
                    if _is_generator(value):
                        raise self._draws(f"`update` draws from {name}, which goes on from part to part")
                    raise self._does_not_add_up(
                        f"`update` changes {name}, which is of type {type(value).__name__}"
                    )

    def _refuse_random_numbers(self, merged: float, update: Callable[[Any], None]) -> None:
        """Refuse a metric that gives another value than before; `merged` is that of twice the part.

        Raises:
            ModelError: It does.
        """
        state = self._state(self._updated(update, 1))
        again = self.value([state, state])
        if not _are_close(merged, again):
            raise self._draws(f"the same rows give {merged:g}, and then {again:g}")

    def _draws(self, why: str) -> ModelError:
        return ModelError(
            f"evaluation.metrics: {self.path} draws random numbers: {why};\nan evaluation must give the same "
            "again: draw from a generator that each call makes from a fixed seed, such as "
            "numpy.random.default_rng(0)"
        )

    def _does_not_add_up(self, why: str) -> ModelError:
        return ModelError(
            f"evaluation.metrics: {self.path} does not add up: {why};\nlet `update` add to numbers, arrays "
            "and tensors that begin at 0, or append to lists, and let `compute` do the rest"
        )


def _are_close(one: float, other: float) -> bool:
    """Return whether two sums of the same numbers, maybe in another order, are equal."""
    both_nan = math.isnan(one) and math.isnan(other)
    return both_nan or math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _is_generator(value: Any) -> bool:
    """Return whether a value draws random numbers, and has a state: NumPy's, torch's or Python's."""
    return any(one.__name__ in ("Generator", "RandomState", "Random") for one in type(value).__mro__)


def _alone() -> bool:
    return False


def _objects(metric: Any) -> Iterator[tuple[str, Any]]:
    """Yield a metric and the metrics that it consists of, each once, with its path."""
    waiting, seen = [("", metric)], {id(metric)}
    while waiting:
        path, one = waiting.pop()
        yield path, one
        for name, value in _attributes(one).items():
            inner = {key: inside for key, inside in _nested(value).items() if id(inside) not in seen}
            seen |= {id(inside) for inside in inner.values()}
            waiting += [(f"{path}.{name}{key}", inside) for key, inside in inner.items()]


def _nested(value: Any) -> dict[str, Any]:
    """Return the metrics that an attribute holds: itself, or those in a list, mapping or module."""
    if isinstance(value, type):
        return {}
    if is_accumulator(value):
        return {"": value}
    if isinstance(value, list):  # of one kind: values may be many
        items = list(enumerate(value)) if value and _nested(value[0]) else []
    else:
        items = list((value if isinstance(value, dict) else getattr(value, "_modules", {})).items())
    return {f".{name}{key}": one for name, held in items for key, one in _nested(held).items()}


def _holds_objects(name: str, value: Any) -> bool:
    """Return whether an attribute holds metrics, or the modules of a module of torch."""
    return name == "_modules" or bool(_nested(value))


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, including those in slots."""
    slots = (getattr(one, "__slots__", ()) for one in type(value).__mro__)
    names = [name for one in slots for name in ([one] if isinstance(one, str) else one)]
    held = {name: getattr(value, name) for name in names if name != "__dict__" and hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    return {name: one for name, one in held.items() if not inspect.isroutine(one)}


def _shared(metric: Any) -> dict[str, Any]:
    """Return attributes of the class of a metric that could hold counts."""
    found: dict[str, Any] = {}
    for one in reversed(type(metric).__mro__):
        found |= {name: value for name, value in vars(one).items() if _can_add(value) and name[:2] != "__"}
    return found


def _is_device(value: Any) -> bool:
    """Return whether a value is a device of torch: the one on which torchmetrics holds its counts."""
    return type(value).__name__ == "device"


def _differ(value: Any, before: Any) -> bool:
    """Return whether an object of a kind that cannot be added holds other values than before."""
    if type(value) is not type(before) or value is before:
        return False
    try:
        if hasattr(value, "clone_state"):  # a generator of torch's, whose state has bytes that mean nothing
            return _next_draws(value) != _next_draws(before)
        return pickle.dumps(value) != pickle.dumps(before)
    except Exception:  # whatever holds a lock, a file or a function
        return False


def _next_draws(generator: Any) -> list[float]:
    copied = generator.clone_state()
    draws: list[float] = sys.modules["torch"].rand(8, generator=copied, device=copied.device).tolist()
    return draws


def _counts(metric: Any, before: Any) -> dict[str, Any]:
    declared = getattr(metric, "metric_state", None)
    if isinstance(declared, Mapping):
        return {name: _portable(value) for name, value in declared.items()}
    old = _attributes(before)
    return {
        name: _portable(value)
        for name, value in _attributes(metric).items()
        if _can_add(value) and not _holds_objects(name, value) and not _same(value, old.get(name))
    }


def _merge(metric: Any, parts: Sequence[Mapping[str, Any]], path: str) -> None:
    """Give a fresh metric the counts of all parts, in their order."""
    reductions = getattr(metric, "_reductions", None)
    if isinstance(reductions, Mapping) and parts:
        for name, reduction in reductions.items():
            setattr(metric, name, _gathered([part[name] for part in parts], reduction))
        return
    for part in parts:
        for name, value in part.items():
            own = getattr(metric, name, None)
            try:
                setattr(metric, name, value if own is None else _sum(own, value))
            except Exception as error:
                raise ModelError(
                    f"evaluation.metrics: {path}: the counts {name!r} of two parts cannot be added: {error}"
                ) from error


def _gathered(values: Sequence[Any], reduction: Callable[[Any], Any] | None) -> Any:
    """Return a state of torchmetrics from those of all parts, as it makes it from those of all processes."""
    if isinstance(values[0], list):
        joined: Any = [one for value in values for one in value]
        return joined if reduction is None or not joined else [reduction(joined)]
    stacked = sys.modules["torch"].stack(list(values))  # (parts, ...); torchmetrics has imported it
    return stacked if reduction is None else reduction(stacked)


def _can_add(value: Any) -> bool:
    return isinstance(value, int | float | complex | list | deque | set | dict | np.ndarray | np.generic) or (
        hasattr(value, "__add__") and hasattr(value, "shape")
    )


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, bool):
        return one or other
    if isinstance(one, set):
        return one | other
    if isinstance(one, dict):
        joined = copy.copy(one)  # of its own kind, such as a Counter
        for key, value in other.items():
            joined[key] = _sum(one[key], value) if key in one else value
        return joined
    return one + other


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or getattr(one, "shape", None) != getattr(other, "shape", None):
        return False
    if isinstance(one, list | deque):
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
