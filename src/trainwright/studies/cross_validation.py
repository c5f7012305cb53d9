"""Cross-validation: each fold of the rows tests the model that was trained on the others."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config import Config, Overrides
from trainwright.errors import InputError
from trainwright.evaluation.metrics import EvaluationResult, bounds_of, evaluate_predictions
from trainwright.evaluation.significance import fold_interval
from trainwright.evaluation.tables import tables
from trainwright.numerals import number
from trainwright.plugins import task_for
from trainwright.records.run_dir import RunDir
from trainwright.records.study_results import CrossValidationResult, FoldResult, MetricSpread
from trainwright.reports.studies import cross_validation_table
from trainwright.runs.data.shared import sharing_data
from trainwright.runs.run import Run
from trainwright.runs.split_predictions import Predicted, predicted
from trainwright.runs.trust import of_own_config
from trainwright.safe_files import write_atomically
from trainwright.studies.changed_inputs import CurrentData, warn_of_changes
from trainwright.studies.configs import MOST_FOLDS, StudyConfig
from trainwright.studies.driver import drive
from trainwright.studies.study import Json, Study, StudyRequest, StudyView, Trial, open_study
from trainwright.studies.trial_runs import TrialRuns
from trainwright.tasks.base import UNBOUNDED, Bounds, Columns
from trainwright.types import Array, Ids, Predictions

KIND = "cv"
OUT_OF_FOLD = "out_of_fold.csv"


class CrossValidation(StudyView):
    """A read-only view of a cross-validation's folder."""

    @property
    def runs(self) -> list[Run]:
        """The runs, in the order of the folds; runs not yet begun, or deleted, are left out."""
        folders = [RunDir(self.path.parent / run.run_id) for run in self._study.record.runs]
        return [Run(folder) for folder in folders if folder.config_file.exists()]

    @property
    def folds(self) -> list[dict[str, float]]:
        """The test metrics of each fold."""
        return [dict(fold.metrics) for fold in self.typed_result.folds]

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each test metric over the folds."""
        return {name: spread.mean for name, spread in self.typed_result.metrics.items()}

    @property
    def std(self) -> dict[str, float]:
        """The standard deviation of each test metric over the folds (divided by folds - 1)."""
        return {name: spread.std for name, spread in self.typed_result.metrics.items()}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """The 95% interval of each mean, by Student's t, corrected for the training rows that folds share."""
        return {name: (spread.low, spread.high) for name, spread in self.typed_result.metrics.items()}

    @property
    def typed_result(self) -> CrossValidationResult:
        """The content of `result.json` as a record; before the end, every field has its default."""
        return CrossValidationResult.of(self.result)

    @property
    def out_of_fold(self) -> Any:
        """The prediction of each tested row by the model that was not trained on it, as a data frame.

        It is the content of `out_of_fold.csv`: columns `row` (the position in the source), `fold`, `target`,
        `prediction` and, for classes, one `probability_<class>` each.

        Raises:
            InputError: The study is not completed.
        """
        import pandas as pd

        if not (self.path / OUT_OF_FOLD).exists():
            raise InputError(
                f"study {self.id} is {self.status}: it has predictions only once it is completed"
            )
        return pd.read_csv(self.path / OUT_OF_FOLD)

    def __repr__(self) -> str:
        std = self.std
        metrics = ", ".join(
            f"{name}={number(value, zeros=False)}±{number(std[name], zeros=False)}"
            for name, value in self.mean.items()
        )
        study = f"{self.path.parent.name}/{self.id}"
        return f"<CrossValidation {study} {self.status}{': ' if metrics else ''}{metrics}>"

    def _repr_html_(self) -> str:
        return cross_validation_table(self.path)


@sharing_data()
def cross_validate(
    config: Config, overrides: Overrides, request: StudyRequest, folds: int | None = None
) -> CrossValidation:
    """Train a run for each fold; see `trainwright.cross_validate`."""
    base = StudyConfig.read(config, overrides, request.runs_dir, objects=request.data is not None)
    count = base.folds(folds)
    if not 2 <= count <= MOST_FOLDS:
        raise InputError(f"folds: {count} given; allowed: 2 to {MOST_FOLDS}, as each fold is a run")
    base.resolved.log_notes()
    base.warn_of_replaced_splits()
    trials = [Trial({"fold": fold}, base.with_fold(count, fold).resolved) for fold in range(count)]
    question = base.question() | request.question() | {"folds": count}
    study = open_study(request, base.resolved.config.experiment.name, KIND, question)
    drive(TrialRuns(study, trials, request, lambda _: _conclude(study, trials, request)))
    return CrossValidation(study.path)


def _conclude(study: Study, trials: Sequence[Trial], request: StudyRequest) -> Json:
    """Pool the predictions of all folds, write them, and return the study's result."""
    done = [(trial, run) for trial in trials if (run := study.run(trial.label)) is not None]
    data = CurrentData(study, request)
    parts = []
    for trial, run in done:
        with of_own_config(run, trial.resolved):
            parts.append(predicted(run, "test", data.load(trial, run), request.model))
    warn_of_changes([run.require_manifest() for _, run in done])
    pooled = _pooled(parts)
    _write_rows(study.path / OUT_OF_FOLD, parts)
    study.write("out_of_fold.json", tables(pooled, parts[0].info))
    folds = [_fold(trial, run) for trial, run in done]
    ratio = float(np.mean([(fold.rows["test"] or 0) / (fold.rows["train"] or 1) for fold in folds]))
    names = [name for name in folds[0].metrics if all(name in fold.metrics for fold in folds)]
    task = task_for(parts[0].info)
    return CrossValidationResult(
        status="completed",
        study_id=study.id,
        experiment=study.path.parent.name,
        metrics={
            name: spread([fold.metrics[name] for fold in folds], ratio, bounds_of(name, task))
            for name in names
        },
        rows=len(pooled.targets),
        train_seconds=sum(fold.train_seconds for fold in folds),
        folds=folds,
    ).to_json()


def _fold(trial: Trial, run: RunDir) -> FoldResult:
    result, splits = run.require_result(), run.require_manifest().data.splits
    return FoldResult(
        **trial.label,
        run_id=run.id,
        rows={name: split.rows for name, split in splits.items()},
        metrics=dict(result.test_metrics),
        train_seconds=result.train_seconds,
        digest=result.digest,
    )


def spread(values: Sequence[float], test_per_train: float, bounds: Bounds = UNBOUNDED) -> MetricSpread:
    """Return the mean, standard deviation and 95% interval of a metric's values on the folds."""
    low, high = fold_interval(np.asarray(values), test_per_train, bounds)
    std = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return MetricSpread(mean=float(np.mean(values)), std=std, low=low, high=high)


def _pooled(parts: Sequence[Predicted]) -> EvaluationResult:
    """Return all folds as one evaluation, whose ids are positions in the source."""
    info = parts[0].info
    each = [
        Predictions(_positions(part), one.outputs, one.targets, 0.0, weights=one.weights)
        for part in parts
        for one in [part.result]
    ]
    return replace(evaluate_predictions(each, [], info, "test"), metrics={})


def _positions(part: Predicted) -> Ids:
    assert part.positions is not None, "a fold is cut from one source"
    return part.positions


def _write_rows(path: Path, parts: Sequence[Predicted]) -> None:
    """Write the predictions as CSV, in the order of the source."""
    rows: list[list[Any]] = [row for fold, part in enumerate(parts) for row in _rows(fold, part)]
    rows.sort(key=lambda row: int(row[0]))
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["row", "fold", *_columns(parts[0])], *rows])
    write_atomically(path, text.getvalue().encode())


def _columns(part: Predicted) -> Columns:
    """Return what was to be predicted and what was, as the columns of a table."""
    task = task_for(part.info)
    return {**task.target_columns(part.result.targets), **task.columns(part.result.outputs)}


def _rows(fold: int, part: Predicted) -> Iterator[list[Any]]:
    columns = [_texts(values) for values in _columns(part).values()]
    for position, *values in zip(_positions(part), *columns, strict=True):
        yield [int(position), fold, *values]


def _texts(values: Sequence[Any] | Array) -> Sequence[Any]:
    """Return a column as texts; nine digits hold a float32."""
    return [format(float(value), ".9g") for value in values] if isinstance(values, np.ndarray) else values
