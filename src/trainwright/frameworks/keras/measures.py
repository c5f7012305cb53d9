"""The metrics that a model was compiled with."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from trainwright.errors import ModelError
from trainwright.frameworks.keras.backend import Backend
from trainwright.frameworks.keras.building import Compiled
from trainwright.frameworks.keras.losses import Outputs, is_from_keras, takes_one_hot
from trainwright.types import Array, DataInfo

log = logging.getLogger("trainwright")

# The model's raw outputs (rows, outputs), and the targets as in `Batch`, of some rows.
Part = tuple[Array, Array]

_TRIAL_ROWS = 8
# Keras's metrics that depend on differences of outputs and targets alone.
_OF_DIFFERENCES = {
    *("MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError", "R2Score", "LogCoshError"),
    *("mean_squared_error", "mean_absolute_error", "huber", "log_cosh"),
}
# Those that single out the class whose output is 1.
_OF_ONE_CLASS = {
    *("AUC", "F1Score", "FBetaScore", "Precision", "Recall", "PrecisionAtRecall", "RecallAtPrecision"),
    *("SensitivityAtSpecificity", "SpecificityAtSensitivity"),
    *("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives"),
}
# Rows per update of a metric. It is a constant, so that a function that returns the mean over its rows gives
# the same result for every batch size of the evaluation.
_ROWS = 1024


class Measures(Mapping[str, float]):
    """Values by name, computed on first access.

    Predictions are also made without meaningful targets; then the values are never accessed.
    """

    def __init__(self, compute: Callable[[], Mapping[str, float]]) -> None:
        self._compute = compute

    @cached_property
    def _values(self) -> Mapping[str, float]:
        return self._compute()

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class CompiledMetrics:
    """The metrics of `compile(metrics=..., weighted_metrics=...)`.

    They are computed from scratch each time and leave no state behind, not even in the user's own metric
    objects.

    Metrics of a classifier receive the raw outputs; metrics of a regression receive values in the data's own
    unit. Keras computes its own in float32; so those of differences get values that are shifted where float32
    would round them by too much.

    Keras's metrics receive classes as one-hot rows unless they are sparse; a user's own metric receives
    what the compiled loss receives.
    """

    def __init__(self, backend: Backend, compiled: Compiled, outputs: Outputs, info: DataInfo) -> None:
        self._keras = backend.keras
        self._scope = replace(backend, device="cpu").scope  # on the CPU, metrics are deterministic
        self._meaning, self._info = outputs, info
        self._lock = threading.Lock()  # names and states of the metric objects change while they compute
        self._own_take_one_hot = _loss_takes_one_hot(backend.keras, compiled.loss, outputs)
        original = compiled.metrics
        given = [*(original._user_metrics or ()), *(original._user_weighted_metrics or ())]
        self.own = [one for one in given if not isinstance(one, str)]
        # A copy, since the model's own object may already have been built, with names and state.
        self._metrics = type(original)(original._user_metrics, original._user_weighted_metrics)
        with self._scope(), self._translated():
            self._metrics.build(*self._pair(self._trial()))

    def over(self, parts: Sequence[Part]) -> Measures:
        """Return the metrics over all rows; they are computed on first access, which may raise a ModelError.

        A metric that returns a dictionary gives one value per entry, named NAME_KEY. A metric that returns
        several values without names is left out.
        """
        return Measures(
            lambda: {
                name: float(value.item()) for name, value in self._values(parts).items() if value.size == 1
            }
        )

    def check(self) -> None:
        """Compute the metrics on trial rows, so that errors show before the first step; log those left out.

        Raises:
            ModelError: A metric cannot be computed.
        """
        for name, value in self._values([self._trial()]).items():
            if value.size != 1:
                log.warning(
                    "compiled metric %s is left out: it returns %d values instead of one",
                    name,
                    value.size,
                )

    def _values(self, parts: Sequence[Part]) -> dict[str, Array]:
        """Compute all metrics over the parts; a value may have any shape."""
        # A stateless scope discards assignments to variables on exit, so the metrics keep no state.
        with (
            self._lock,
            self._scope(),
            self._translated(),
            self._keras.StatelessScope(),
            _plain_names(self._metrics.metrics),
        ):
            ops, joined = self._keras.ops, [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            self._metrics.reset_state()
            for metric in self._metrics.metrics:
                pair = self._pair((joined[0], joined[1]), one_hot=self._takes_one_hot(metric))
                if self._info.positive == 0 and self._meaning.single and _name(metric) in _OF_ONE_CLASS:
                    true, given = pair
                    pair = 1 - true, -given if self._meaning.logits else 1 - given
                if self._info.target_offset and _name(metric) in _OF_DIFFERENCES:
                    true, given = (array - self._info.target_offset for array in pair)
                    pair = true.astype(np.float32), given.astype(np.float32)
                for start in range(0, len(pair[0]), _ROWS):
                    metric.update_state(
                        *(ops.convert_to_tensor(array[start : start + _ROWS]) for array in pair)
                    )
            values = {
                name: ops.convert_to_tensor(value) for name, value in _flattened(self._metrics.result())
            }
            return {name: np.asarray(ops.convert_to_numpy(value)) for name, value in values.items()}

    def _trial(self) -> Part:
        """Return outputs and targets of trial rows in the shapes and dtypes of real ones."""
        columns = 1 if self._meaning.single else self._info.outputs
        outputs = np.full((_TRIAL_ROWS, columns), 1 / columns, dtype=np.float32)
        return outputs, self._meaning.trial_targets(outputs, self._info)

    def _pair(self, part: Part, *, one_hot: bool = False) -> tuple[Array, Array]:
        """Return targets and outputs in the form that a metric receives."""
        return self._meaning.compared(*part, self._info, one_hot=one_hot)

    def _takes_one_hot(self, metric: Any) -> bool:
        """Return whether a metric receives classes as one-hot rows."""
        if not is_from_keras(metric):
            return self._own_take_one_hot
        sparse = getattr(metric, "sparse_y_true", None)  # metrics of the IoU family have this attribute
        return (
            takes_one_hot(metric, self._meaning) if sparse is None else not (sparse or self._meaning.single)
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of the metrics as ModelErrors that name them."""
        try:
            yield
        except Exception as error:
            names = ", ".join(_plain_name(metric) for metric in self._metrics.metrics)
            which = f"a metric that the model was compiled with{names and f' (one of {names})'}"
            reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
            raise ModelError(f"{which} cannot be computed: {reason}; remove it from compile") from error


def _name(metric: Any) -> str:
    """Return the class of a metric of Keras's, or the function that it wraps; empty for the user's own."""
    if not is_from_keras(metric):
        return ""
    inner = getattr(metric, "_fn", None)
    return type(metric).__name__ if inner is None else getattr(inner, "__name__", type(inner).__name__)


def _loss_takes_one_hot(keras: Any, loss: Any, meaning: Outputs) -> bool:
    """Return whether the compiled loss receives classes as one-hot rows."""
    if loss is None or str(loss).lower() in ("crossentropy", "ce"):
        return False
    try:
        return takes_one_hot(keras.losses.get(loss), meaning)
    except (ValueError, TypeError):  # the run may use another loss; `build_loss` raises otherwise
        return False


@contextmanager
def _plain_names(metrics: Sequence[Any]) -> Iterator[None]:
    """Remove the numbers that Keras appends to metrics' names, since they differ between processes."""
    before = [metric.name for metric in metrics]
    try:
        for metric in metrics:
            metric.name = _plain_name(metric)
        yield
    finally:
        for metric, name in zip(metrics, before, strict=True):
            metric.name = name


def _plain_name(metric: Any) -> str:
    """Return a metric's name, without the number if Keras derived the name from the class."""
    plain = re.sub(r"_\d+$", "", str(metric.name))
    kinds = (type(metric).__name__, type(getattr(metric, "_fn", metric)).__name__)
    chosen_by_user = plain.replace("_", "") not in [kind.replace("_", "").lower() for kind in kinds]
    return str(metric.name) if chosen_by_user else plain


def _flattened(results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the results of metrics by name; entries of dictionaries are named NAME_KEY."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}_{key}", entry) for key, entry in value.items())
        else:
            yield name, value
