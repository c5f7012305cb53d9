"""The values that a trial is judged by besides its first metric: other metrics, measures of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainwright.datasets.base import DataBundle
from trainwright.errors import InputError, TrainwrightError
from trainwright.records.journal import evaluations, number, read
from trainwright.records.run_dir import RunDir
from trainwright.runs.predictor import open_predictor
from trainwright.runs.weights import stored_model
from trainwright.studies.cost import latency


def measured(
    run: RunDir, names: Sequence[str], step: int, bundle: DataBundle | None = None
) -> dict[str, float]:
    """Return metrics at a step of a run, and measures of its best model, by name.

    Args:
        run: The run; its best model is that of the step.
        names: `val_METRIC`, or names of `goals.MEASURES`.
        step: The step of the evaluation.
        bundle: The data, where they were given as objects.

    Raises:
        TrainwrightError: A value cannot be measured for this model.
    """
    rows = [values for at, values in evaluations(read(run.journal)) if at == step]  # of each split
    at = {name: value for values in rows for name, value in values.items()}
    return {name: _measure(run, name, at, bundle) for name in names}


def _measure(run: RunDir, name: str, at: Mapping[str, Any], bundle: DataBundle | None) -> float:
    if name in _MEASURES:
        return _MEASURES[name](run, bundle)
    if name not in at:
        raise InputError(f"{name} is not among the metrics of run {run.id}: {', '.join(sorted(at))}")
    return number(at[name])


def _latency_ms(run: RunDir, bundle: DataBundle | None) -> float:
    predictor = open_predictor(run, pinned=True)
    split = (bundle or predictor.load_data()).splits["val"]
    return latency(predictor.model, split).one_ms


def _parameters(run: RunDir, bundle: DataBundle | None) -> float:  # noqa: ARG001 - as the others
    predictor = open_predictor(run, pinned=True)
    count = predictor.model.parameter_count
    if count is None:
        kind = type(predictor.native).__name__
        raise TrainwrightError(f"a {kind} has no count of parameters; give model_bytes or latency_ms instead")
    return float(count)


def _model_bytes(run: RunDir, bundle: DataBundle | None) -> float:  # noqa: ARG001
    return float(stored_model(run).bytes)


def _train_seconds(run: RunDir, bundle: DataBundle | None) -> float:  # noqa: ARG001
    return run.require_result().train_seconds


_MEASURES: Mapping[str, Callable[[RunDir, DataBundle | None], float]] = {
    "latency_ms": _latency_ms,
    "model_bytes": _model_bytes,
    "parameters": _parameters,
    "train_seconds": _train_seconds,
}
