"""Two models side by side, of runs or exported: their predictions for the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.evaluation.metrics import LOSS, evaluate_predictions, wanted_metrics
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.exporters.certificates.reader import latency
from trainwright.exporters.certificates.samples import real_rows
from trainwright.inference.bad_rows import count_of, take
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.records.artifact import ArtifactDir
from trainwright.runs.comparison import NumberPair
from trainwright.types import SPLITS, Array, Predictions, weights_of

Within = Callable[[Predictor], AbstractContextManager[object]]
_WORST = 5  # rows that are shown
_TIMED = (1, 64)


@dataclass(frozen=True)
class RowPair:
    """The predictions of two models for a row, and the largest difference between their outputs."""

    row: str
    first: Any
    second: Any
    difference: float


@dataclass(frozen=True)
class PredictionComparison:
    """The differences between the predictions of two models for the same rows.

    `models`: the runs' ids, or the paths of exported models; `rows`: their number, and `source`: where they
    come from; the differences are those of outputs, probabilities or values; `equal_labels`: the share of
    rows with the same label or mask, None where there are none; `worst`: those that differ most; `numbers`:
    metrics where targets are known, the seconds of a call, and the bytes of the weights or the files.
    """

    models: tuple[str, str]
    rows: int
    source: str
    largest_difference: float
    mean_difference: float
    equal_labels: float | None = None
    worst: Sequence[RowPair] = ()
    numbers: Sequence[NumberPair] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Measured:
    """The outputs of a model (rows, ...), its predictions in the user's words, and its numbers."""

    outputs: Array
    labels: Sequence[Any]
    numbers: Mapping[str, float]


def compare_on_file(models: Sequence[Predictor], file: str, within: Within) -> PredictionComparison:
    """Compare the predictions of two models for the rows of a file; each reads it as its own data.

    Args:
        models: The models.
        file: The file.
        within: Returns the context in which what a model's config names is imported.

    Raises:
        InputError: They have other tasks or outputs, or predict masks, which no column of a file has.
        DataError: The file cannot be read.
    """
    _check(models)
    if task_for(models[0].info).gives_masks:
        raise InputError("masks are compared on the test split of the models' run: leave --data out")
    found = []
    for model in models:
        rows = model.files.read(file)
        has_target = model.info.target in getattr(rows, "columns", rows)
        with within(model):
            metrics = model.evaluate("test", rows).metrics if has_target else {}
            found.append(_measured(model, rows, metrics))
    names = [f"row {i + 1}" for i in range(len(found[0].outputs))]
    return _compared(models, found, names, file)


def compare_on_split(models: Sequence[Predictor], owner: Predictor, within: Within) -> PredictionComparison:
    """Compare the predictions of two models for the first rows of a run's test split, up to 1,000.

    Args:
        models: The models.
        owner: The model of the run whose split it is; a run without one has its last other split compared.
        within: As in `compare_on_file`.

    Raises:
        InputError: They have other tasks or outputs, or the run keeps no raw rows.
    """
    _check(models)
    with within(owner):
        bundle = owner.load_data()
    sample = real_rows(bundle, owner, inputs_of(owner))
    if sample is None:
        raise InputError(
            f"run {owner.run.id} has no raw rows to compare on: give a file of rows, --data FILE"
        )
    name = next(one for one in reversed(SPLITS) if one in bundle.splits)
    batch = bundle.splits[name].take(np.arange(len(sample), dtype=np.int64))
    targets, weights = batch[task_for(owner.info).target], weights_of(batch, owner.info)
    found = []
    for model in models:
        outputs = model.outputs(sample.rows)
        metrics: Mapping[str, float] = {}
        if not task_for(model.info).sums:  # which only a model itself makes of its outputs
            ids = np.arange(len(outputs), dtype=np.int64)
            part = Predictions(ids, outputs, targets, loss=float("nan"), weights=weights)
            with within(model):
                wanted = wanted_metrics(model.config, model.info)
                metrics = evaluate_predictions([part], wanted, model.info, "test").metrics
        found.append(_measured(model, sample.rows, metrics))
    return _compared(models, found, sample.names, f"the {name} split of run {owner.run.id}")


def _check(models: Sequence[Predictor]) -> None:
    """Check that two models answer the same question.

    Raises:
        InputError: They do not.
    """
    one, other = (model.info for model in models)
    for what in ("task", "target", "classes", "target_names"):
        if (mine := getattr(one, what)) != (its := getattr(other, what)):
            raise InputError(f"predictions cannot be compared: {what} of the models: {mine}, and {its}")


def _measured(model: Predictor, rows: Any, metrics: Mapping[str, float]) -> _Measured:
    outputs = model.outputs(rows)
    columns = {key: one for key, one in model.table(outputs).items() if key.startswith("prediction")}
    labels = list(zip(*columns.values(), strict=True))
    seconds = {
        f"seconds of a call with {size} row{'s' * (size > 1)}": latency(
            model.outputs, take(rows, np.resize(np.arange(count_of(rows)), size))
        )
        for size in _TIMED
    }
    kept = {name: value for name, value in metrics.items() if name != f"test_{LOSS}"}
    return _Measured(outputs, labels, {**kept, **seconds, "bytes": float(_bytes(model))})


def _bytes(model: Predictor) -> int:
    if isinstance(model.run, ArtifactDir):
        return sum(one["bytes"] for one in model.run.certificate.files.values())
    return model.stored.bytes


def _compared(
    models: Sequence[Predictor], found: Sequence[_Measured], names: Sequence[str], source: str
) -> PredictionComparison:
    first, second = found
    if first.outputs.shape != second.outputs.shape:
        raise InputError(
            f"predictions cannot be compared: outputs of shape {first.outputs.shape}, and "
            f"{second.outputs.shape}"
        )
    apart = np.abs(first.outputs.astype(np.float64) - second.outputs).reshape(len(names), -1)
    by_row = apart.max(axis=1)
    same = [
        all(np.array_equal(one, other) for one, other in zip(*pair, strict=True))  # a mask is an array
        for pair in zip(first.labels, second.labels, strict=True)
    ]
    has_labels = task_for(models[0].info).gives_probabilities
    order = [i for i in np.argsort(-by_row, kind="stable")[:_WORST].tolist() if by_row[i] > 0]
    return PredictionComparison(
        (_name(models[0]), _name(models[1])),
        len(names),
        source,
        float(apart.max()),
        float(apart.mean()),
        float(np.mean(same)) if has_labels else None,
        [
            RowPair(names[i], first.outputs[i].tolist(), second.outputs[i].tolist(), float(by_row[i]))
            for i in order
        ],
        [
            NumberPair(name, first.numbers.get(name), second.numbers.get(name), _delta(name, first, second))
            for name in dict.fromkeys([*first.numbers, *second.numbers])
        ],
    )


def _delta(name: str, first: _Measured, second: _Measured) -> float | None:
    one, other = first.numbers.get(name), second.numbers.get(name)
    return None if one is None or other is None else other - one


def _name(model: Predictor) -> str:
    return str(model.run.path) if isinstance(model.run, ArtifactDir) else model.run.id
