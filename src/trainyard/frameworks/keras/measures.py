"""The metrics that a model was compiled with."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from trainyard.errors import ModelError
from trainyard.frameworks.base import FrameworkInputs
from trainyard.frameworks.keras.backend import Backend
from trainyard.frameworks.keras.losses import Outputs, in_keras, takes_one_hot
from trainyard.frameworks.keras.models import Compiled
from trainyard.types import Array, DataInfo

log = logging.getLogger("trainyard")

# The model's outputs as they are, and the targets as in `Batch`, of some rows.
Part = tuple[Array, Array]

_TRIED_ROWS = 8
_ROWS = 1024  # that a metric is given at once, however many the model is: a function may return the mean over them


class Measures(Mapping[str, float]):
    """Values that are computed when one is asked for: who wants predictions alone need not wait for them, and may have no
    targets that mean anything.
    """

    def __init__(self, compute: Callable[[], Mapping[str, float]]) -> None:
        self._compute = compute

    @cached_property
    def _found(self) -> Mapping[str, float]:
        return self._compute()

    def __getitem__(self, name: str) -> float:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def of_model(
    backend: Backend, compiled: Compiled, outputs: Outputs, inputs: FrameworkInputs
) -> CompiledMetrics | None:
    """The metrics that a model was compiled with, if any.

    Raises:
        ModelError: one cannot be computed.
    """
    if compiled.metrics is None:
        return None
    found = CompiledMetrics(backend, compiled, outputs, inputs.info)
    if inputs.order is not None:
        found.try_out()
    return found


class CompiledMetrics:
    """`compile(metrics=..., weighted_metrics=...)`: computed from the beginning each time, and no values are left, not even in
    the user's own objects.

    They are given the outputs as they are, but values in the data's unit. A metric of Keras's that is not sparse is given classes
    as one-hot rows, and a function or a class of the user's gets what the compiled loss takes.
    """

    def __init__(self, backend: Backend, compiled: Compiled, outputs: Outputs, info: DataInfo) -> None:
        self._keras = backend.keras
        self._scope = replace(backend, device="cpu").scope  # where every operation of theirs is deterministic
        self._form, self._info = outputs, info
        self._own_take_one_hot = _loss_takes_one_hot(backend.keras, compiled.loss, outputs)
        given = compiled.metrics
        # One of our own, as that of the model may have been built, with the names and the state of then.
        self._metrics = type(given)(given._user_metrics, given._user_weighted_metrics)
        with self._scope(), self._translated():
            self._metrics.build(*self._pair(self._trial()))

    def over(self, parts: Sequence[Part]) -> Measures:
        """Their values over all rows; of one that gives a dictionary, each entry as NAME_KEY. One that gives several values
        without names is left out. That one cannot be computed is a ModelError where a value is asked for.
        """
        return Measures(
            lambda: {
                name: float(value.item()) for name, value in self._values(parts).items() if value.size == 1
            }
        )

    def try_out(self) -> None:
        """Feeds them some rows, so that a misfit is found before the first step, and says which are left out.

        Raises:
            ModelError: one fails.
        """
        for name, value in self._values([self._trial()]).items():
            if value.size != 1:
                log.warning(
                    "metric %s, which the model was compiled with, gives %d values, not one: left out",
                    name,
                    value.size,
                )

    def _values(self, parts: Sequence[Part]) -> dict[str, Array]:
        # In a stateless scope no variable changes: what is assigned to one lives as long as the scope.
        with (
            self._scope(),
            self._translated(),
            self._keras.StatelessScope(),
            _plain_names(self._metrics.metrics),
        ):
            ops, joined = self._keras.ops, [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            self._metrics.reset_state()
            for metric in self._metrics.metrics:
                pair = self._pair((joined[0], joined[1]), one_hot=self._takes_one_hot(metric))
                for start in range(0, len(pair[0]), _ROWS):
                    metric.update_state(
                        *(ops.convert_to_tensor(array[start : start + _ROWS]) for array in pair)
                    )
            found = {name: ops.convert_to_tensor(value) for name, value in _flat(self._metrics.result())}
            return {name: np.asarray(ops.convert_to_numpy(value)) for name, value in found.items()}

    def _trial(self) -> Part:
        columns = 1 if self._form.single else self._info.outputs
        outputs = np.full((_TRIED_ROWS, columns), 1 / columns, dtype=np.float32)
        return outputs, np.arange(
            _TRIED_ROWS
        ) % self._info.outputs if self._info.task == "classification" else outputs

    def _pair(self, part: Part, *, one_hot: bool = False) -> tuple[Array, Array]:
        """Targets and outputs, as a metric is given them."""
        outputs, targets = part
        if self._info.task == "regression":
            values = self._form.to_predictions(outputs, self._info)
            return targets.reshape(len(targets), -1), values.reshape(len(values), -1)
        if self._form.single:
            return targets.reshape(-1, 1).astype(outputs.dtype), outputs.reshape(-1, 1)
        return np.eye(self._info.outputs, dtype=outputs.dtype)[targets] if one_hot else targets, outputs

    def _takes_one_hot(self, metric: Any) -> bool:
        if not in_keras(metric):
            return self._own_take_one_hot
        sparse = getattr(metric, "sparse_y_true", None)  # of those of the IoU family
        return takes_one_hot(metric, self._form) if sparse is None else not (sparse or self._form.single)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            names = ", ".join(_plain_name(metric) for metric in self._metrics.metrics)
            raise ModelError(
                f"a metric that the model was compiled with{names and f' (one of {names})'} cannot be computed: "
                f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}; leave it out of compile"
            ) from error


def _loss_takes_one_hot(keras: Any, loss: Any, form: Outputs) -> bool:
    if loss is None or str(loss).lower() in ("crossentropy", "ce"):
        return False
    try:
        return takes_one_hot(keras.losses.get(loss), form)
    except (ValueError, TypeError):  # of no consequence: the config may name another
        return False


@contextmanager
def _plain_names(metrics: Sequence[Any]) -> Iterator[None]:
    """Without the numbers by which Keras tells apart what a process has made so far: they would differ in the next one."""
    before = [metric.name for metric in metrics]
    try:
        for metric in metrics:
            metric.name = _plain_name(metric)
        yield
    finally:
        for metric, name in zip(metrics, before, strict=True):
            metric.name = name


def _plain_name(metric: Any) -> str:
    plain = re.sub(r"_\d+$", "", str(metric.name))
    kinds = (type(metric).__name__, type(getattr(metric, "_fn", metric)).__name__)
    given = plain.replace("_", "") not in [kind.replace("_", "").lower() for kind in kinds]
    return str(metric.name) if given else plain


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}_{key}", entry) for key, entry in value.items())
        else:
            yield name, value
