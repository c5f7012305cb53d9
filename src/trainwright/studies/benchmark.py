"""Benchmarks: several models on the same rows, in one ranked table with significance and cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.config import Config, Overrides
from trainwright.config.metrics import metric_path
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import ArraySplit
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import ConfigError, InputError, Problem, TrainwrightError
from trainwright.evaluation.metrics import (
    LOSS,
    check_metric,
    mode_in,
    without_prefix,
)
from trainwright.numerals import number
from trainwright.records.run_dir import RunDir
from trainwright.records.study_results import BenchmarkResult
from trainwright.redact import printable
from trainwright.reports.studies import benchmark_table, markdown_table
from trainwright.runs.data.shared import sharing_data
from trainwright.runs.run import Run
from trainwright.runs.split_predictions import predicted
from trainwright.runs.trust import of_own_config
from trainwright.safe_files import write_atomically
from trainwright.studies.changed_inputs import CurrentData, warn_of_changes
from trainwright.studies.configs import MOST_FOLDS, StudyConfig, with_metric
from trainwright.studies.driver import drive
from trainwright.studies.ranking import COLUMNS, Entry, as_csv, ranked, split_of
from trainwright.studies.study import Json, Study, StudyRequest, StudyView, Trial, open_study
from trainwright.studies.trial_runs import TrialRuns
from trainwright.types import FEATURES

log = logging.getLogger("trainwright")

KIND = "benchmark"


class Benchmark(StudyView):
    """A read-only view of a benchmark's folder; its table also lists the models that failed."""

    @property
    def rows(self) -> list[Json]:
        """The table: one row per model, the best first, failed ones last."""
        return list(self.result.get("models", []))

    @property
    def best(self) -> str | None:
        """The first model of the table; None if all failed."""
        return next((row.model for row in self.typed_result.models if row.rank == 1), None)

    @property
    def failed(self) -> dict[str, str]:
        """The errors of the models that could not be trained, by model."""
        return {row.model: row.error for row in self.typed_result.models if row.error}

    @property
    def typed_result(self) -> BenchmarkResult:
        """The content of `result.json` as a record; before the end, every field has its default."""
        return BenchmarkResult.of(self.result)

    @property
    def table(self) -> Any:
        """The table as a data frame: the columns of `table.csv`."""
        import pandas as pd

        return pd.DataFrame([[row[name] for name in COLUMNS] for row in self.rows], columns=list(COLUMNS))

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The runs of each model, in the order of the folds; runs not yet begun, or deleted, are left out."""
        by_model: dict[str, list[Run]] = {}
        for run in self._study.record.runs:
            if (folder := RunDir(self.path.parent / run.run_id)).config_file.exists():
                by_model.setdefault(run.label["model"], []).append(Run(folder))
        return by_model

    def __repr__(self) -> str:
        models = self.typed_result.models
        ranked = ", ".join(
            f"{row.model}={number(row.mean, zeros=False)}" for row in models if row.mean is not None
        )
        return f"<Benchmark {self.path.parent.name}/{self.id} {self.status}{': ' if ranked else ''}{ranked}>"

    def _repr_html_(self) -> str:
        return benchmark_table(self.path)


@dataclass(frozen=True)
class ModelSelection:
    """The models that a benchmark compares, with their options, the number of folds and the metric.

    Without `folds`, each model is trained once, on the splits of the config. Without `metric`, the models are
    ranked by the first one that the runs compute, on the test split.
    """

    models: Sequence[str]
    params: Mapping[str, Mapping[str, Any]]
    folds: int | None = None
    metric: str | None = None


@sharing_data()
def benchmark(
    config: Config, overrides: Overrides, request: StudyRequest, selection: ModelSelection
) -> Benchmark:
    """Train each model on the same rows; see `trainwright.benchmark`."""
    _check_selection(selection)
    base = StudyConfig.read(config, overrides, request.runs_dir, objects=request.data is not None)
    if selection.metric is not None:
        _check_ranking(selection.metric, base)
        base = with_metric(base, selection.metric, request)
    base.resolved.log_notes()
    if selection.folds is not None:
        base.warn_of_replaced_splits()
    elif base.excludes(split_of(selection.metric)):
        raise InputError(
            f"there are no {split_of(selection.metric)} rows to rank by; ask for --folds, "
            "or give data.split.test or data.test_path"
        )
    trials = _trials(base, selection, request)
    if selection.metric is not None:
        _refuse_other_task(selection.metric, base, trials, request)
    question = base.question() | {
        "models": list(selection.models),
        "folds": selection.folds,
        "metric": selection.metric,
        "params": {model: dict(params) for model, params in selection.params.items()},
    }
    study = open_study(request, base.resolved.config.experiment.name, KIND, question)
    drive(
        TrialRuns(
            study,
            trials,
            request,
            lambda failures: _conclude(study, trials, request, selection, failures),
            by="model",
        )
    )
    return Benchmark(study.path)


def _check_selection(selection: ModelSelection) -> None:
    if not selection.models:
        raise InputError("models: none given; name at least one, as in --models mlp,random_forest")
    if len(set(selection.models)) < len(selection.models):
        raise InputError(f"models: one is named twice: {', '.join(selection.models)}")
    if unknown := [model for model in selection.params if model not in selection.models]:
        raise InputError(
            f"params: {', '.join(unknown)} is not among the models: {', '.join(selection.models)}"
        )
    if selection.folds is not None and not 2 <= selection.folds <= MOST_FOLDS:
        allowed = f"allowed: 2 to {MOST_FOLDS}, or none for a single split"
        raise InputError(f"folds: {selection.folds} given; {allowed}")


def _check_ranking(metric: str, base: StudyConfig) -> None:
    """Refuse a metric that cannot rank models.

    Raises:
        InputError: There is no such metric, it is of training rows, or it does not say what is better.
    """
    mode_in(base.resolved.config, metric)
    if metric.startswith("train_"):
        raise InputError(f"metric: {metric} is measured on the training rows; give {without_prefix(metric)}")


def _refuse_other_task(
    metric: str, base: StudyConfig, trials: Sequence[Trial], request: StudyRequest
) -> None:
    """Refuse a metric of another task before anything is trained.

    If the config leaves the task open, the data are read for it. If reading fails, the runs will report why.
    """
    data = base.resolved.config.data
    metric = metric_path(base.resolved.config, metric)
    if without_prefix(metric) == LOSS:
        return
    if data is not None and data.task != "auto":
        check_metric(metric, data.task)
        return
    try:
        task = request.load(trials[0].resolved).info.task
    except TrainwrightError:
        return
    check_metric(metric, task)


def _trials(base: StudyConfig, selection: ModelSelection, request: StudyRequest) -> list[Trial]:
    """Return the trials, model by model.

    Raises:
        ConfigError: Models or options are unknown; the error lists all of them.
    """
    configs: dict[str, StudyConfig] = {}
    problems: list[Problem] = []
    for model in selection.models:
        try:
            configs[model] = base.with_model(model, selection.params.get(model, {}))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    trials: list[Trial] = []
    for model, filled in _without_gaps(base, configs, request).items():
        if selection.folds is None:
            trials.append(Trial({"model": model}, filled.resolved))
        else:
            folds = range(selection.folds)
            trials += [
                Trial({"model": model, "fold": fold}, filled.with_fold(selection.folds, fold).resolved)
                for fold in folds
            ]
    return trials


def _without_gaps(
    base: StudyConfig, configs: Mapping[str, StudyConfig], request: StudyRequest
) -> dict[str, StudyConfig]:
    """Return the configs of the models, with missing values filled for those that take none.

    What `data.impute` says holds for all models. Rows without missing values are left as they are, so that
    completed runs can be reused.
    """
    needy = [model for model, config in configs.items() if _takes_no_gaps(config)]
    if not needy or not _have_gaps(base, request):
        return dict(configs)
    log.info("missing values are filled with the median or the commonest category for %s", ", ".join(needy))
    filled = {model: configs[model].with_overrides({"data.impute": "median"}) for model in needy}
    return {**configs, **filled}


def _takes_no_gaps(config: StudyConfig) -> bool:
    return config.resolved.config.data is not None and config.resolved.config.data.impute is None


def _have_gaps(base: StudyConfig, request: StudyRequest) -> bool:
    """Return whether rows of a table lack values. If reading fails, the runs will report why."""
    try:
        # With codes, a missing category is a missing number.
        kept = base.with_overrides({"data.impute": "keep", "data.encode": "category"})
        bundle = request.load(kept.resolved)
    except TrainwrightError:
        return False
    if not isinstance(bundle.preparation, TabularPreparation):
        return False  # of arrays, nothing can be filled
    splits = [split for split in bundle.splits.values() if isinstance(split, ArraySplit)]
    return any(bool(np.isnan(split.arrays[FEATURES]).any()) for split in splits)


def _conclude(
    study: Study,
    trials: Sequence[Trial],
    request: StudyRequest,
    selection: ModelSelection,
    failures: Mapping[str, str],
) -> Json:
    """Rank the models; write the table as CSV and Markdown, and return the study's result."""
    split, data = split_of(selection.metric), CurrentData(study, request)
    entries = []
    for model in selection.models:
        done = [
            (trial, run)
            for trial in trials
            if trial.label["model"] == model and (run := study.run(trial.label)) is not None
        ]
        if model not in failures:
            with of_own_config(done[0][1], done[0][0].resolved):
                first = predicted(done[0][1], split, data.load(*done[0]))
            for trial, run in done[1:]:
                data.check(trial, run)
            warn_of_changes([run.require_manifest() for _, run in done])
            entries.append(Entry.of(model, [run for _, run in done], first))
    prepared = {trial.label["model"]: _preparation(trial.resolved.config.data) for trial in trials}
    ranking = ranked(entries, selection.metric, failures)
    rows = [row.model_copy(update={"preparation": prepared[row.model]}) for row in ranking]
    write_atomically(study.path / "table.csv", printable(as_csv(rows)).encode())
    write_atomically(study.path / "table.md", printable(markdown_table(rows)).encode())
    return BenchmarkResult(
        status="failed" if failures else "completed",
        study_id=study.id,
        experiment=study.path.parent.name,
        folds=selection.folds,
        models=rows,
    ).to_json()


def _preparation(data: DataConfig | None) -> str:
    """Return how features were prepared for a model: `impute median, encode onehot, standardize`."""
    if data is None:
        return ""
    parts = [f"impute {data.impute or 'nothing'}", f"encode {data.encode}"]
    return ", ".join([*parts, *(["standardize"] if data.standardize else [])])
