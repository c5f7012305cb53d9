"""Several models on the same rows: one ranked table, with significance and cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.config import Config, Overrides
from trainyard.digest import write_atomically
from trainyard.errors import ConfigError, InputError, Problem, TrainyardError
from trainyard.evaluation.metrics import LOSS, METRICS, bare, check, default_metrics
from trainyard.records.journal import number
from trainyard.records.run_dir import RunDir
from trainyard.reports.studies import benchmark_table, markdown_table, write_report
from trainyard.runs.predictions import predicted
from trainyard.runs.run import Run
from trainyard.runs.trust import of_own_config
from trainyard.studies.ranking import COLUMNS, Entry, as_csv, ranked, split_of
from trainyard.studies.running import conduct
from trainyard.studies.study import Json, Study, StudyPlan, StudyRequest, StudyView, Trial, begin
from trainyard.studies.trials import Source
from trainyard.studies.unchanged import DataNow, warn_of_changes

log = logging.getLogger("trainyard")
KIND = "benchmark"


class Benchmark(StudyView):
    """A look at the folder of a benchmark; it is completed also where a model failed."""

    @property
    def rows(self) -> list[Json]:
        """The table: a row for each model, the best first, those that failed last."""
        return list(self.result.get("models", []))

    @property
    def best(self) -> str | None:
        """The first model of the table, if any was trained."""
        return next((str(row["model"]) for row in self.rows if row["rank"] == 1), None)

    @property
    def failed(self) -> dict[str, str]:
        """The models that could not be trained, and why."""
        return {row["model"]: row["error"] for row in self.rows if row["error"]}

    @property
    def table(self) -> Any:
        """The table as a data frame: the columns of `table.csv`."""
        import pandas as pd

        return pd.DataFrame([[row[name] for name in COLUMNS] for row in self.rows], columns=list(COLUMNS))

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The runs of each model, by fold, as far as they are there."""
        found: dict[str, list[Run]] = {}
        for run in self._study.record.runs:
            if (folder := RunDir(self.path.parent / run.run_id)).config_file.exists():
                found.setdefault(run.place["model"], []).append(Run(folder))
        return found

    def __repr__(self) -> str:
        ranked = ", ".join(f"{row['model']}={number(row['mean']):.4g}" for row in self.rows if row["rank"])
        return f"<Benchmark {self.path.parent.name}/{self.id} {self.status}{': ' if ranked else ''}{ranked}>"

    def _repr_html_(self) -> str:
        return benchmark_table(self.path)


@dataclass(frozen=True)
class ModelSelection:
    """What is compared: the models with options of their own, on how many folds (None: one split), by which metric.

    `metric` None is the first of those that are computed, on the test split.
    """

    models: Sequence[str]
    params: Mapping[str, Mapping[str, Any]]
    folds: int | None = None
    metric: str | None = None


def benchmark(
    config: Config, overrides: Overrides, request: StudyRequest, selection: ModelSelection
) -> Benchmark:
    """Trains each model on the same rows; see `trainyard.benchmark`."""
    _check_selection(selection)
    source = Source.read(config, overrides, request.runs_dir, objects=request.data is not None)
    if selection.metric is not None:
        source = _computing(source, selection.metric)
    for note in source.resolved.notes:
        log.info("config: %s", note)
    if selection.folds is not None:
        source.say_what_folds_replace()
    elif source.is_without(split_of(selection.metric)):
        raise InputError(
            f"there are no {split_of(selection.metric)} rows to rank by; ask for --folds, "
            "or give data.split.test or data.test_path"
        )
    trials = _trials(source, selection)
    if selection.metric is not None:
        _refuse_other_task(selection.metric, source, trials, request)
    asked = source.asked() | {
        "models": list(selection.models),
        "folds": selection.folds,
        "metric": selection.metric,
        "params": {model: dict(params) for model, params in selection.params.items()},
    }
    study = begin(request, source.resolved.config.experiment.name, KIND, asked)
    work = StudyPlan(
        lambda failures: _conclude(study, trials, request, selection, failures), write_report, by="model"
    )
    conduct(study, trials, request, work)
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
    if selection.folds is not None and selection.folds < 2:
        raise InputError(f"folds: {selection.folds} given; allowed: 2 or more, or none for a single split")
    if selection.metric is not None:
        check(selection.metric)
        if selection.metric.startswith("train_"):
            raise InputError(
                f"metric: {selection.metric} is of rows that were learned; give {bare(selection.metric)}"
            )


def _refuse_other_task(metric: str, source: Source, trials: Sequence[Trial], request: StudyRequest) -> None:
    """Refuses a metric of another task before anything is trained.

    Where the config leaves the task open, the data are read for it. If they cannot be, the runs tell why.
    """
    data = source.resolved.config.data
    if bare(metric) == LOSS:
        return
    if data is not None and data.task != "auto":
        check(metric, data.task)
        return
    try:
        task = request.load(trials[0].resolved).info.task
    except TrainyardError:
        return
    check(metric, task)


def _computing(source: Source, metric: str) -> Source:
    """With a metric among those that runs compute."""
    name, listed = bare(metric), source.resolved.config.evaluation.metrics
    if name == LOSS:
        return source
    metrics = list(default_metrics(METRICS[name].task)) if listed is None else list(listed)
    return source if name in metrics else source.with_overrides({"evaluation.metrics": [*metrics, name]})


def _trials(source: Source, selection: ModelSelection) -> list[Trial]:
    """The runs, model by model.

    Raises:
        ConfigError: with every model and option that is unknown; nothing was trained yet.
    """
    trials: list[Trial] = []
    problems: list[Problem] = []
    for model in selection.models:
        try:
            own = source.with_model(model, selection.params.get(model, {}))
        except ConfigError as error:
            problems += error.problems
            continue
        if selection.folds is None:
            trials.append(Trial({"model": model}, own.resolved))
        else:
            folds = range(selection.folds)
            trials += [
                Trial({"model": model, "fold": fold}, own.with_fold(selection.folds, fold).resolved)
                for fold in folds
            ]
    if problems:
        raise ConfigError(problems)
    return trials


def _conclude(
    study: Study,
    trials: Sequence[Trial],
    request: StudyRequest,
    selection: ModelSelection,
    failures: Mapping[str, str],
) -> Json:
    """The ranked table, as JSON, CSV and Markdown."""
    split, data = split_of(selection.metric), DataNow(study, request)
    entries = []
    for model in selection.models:
        own = [
            (trial, run)
            for trial in trials
            if trial.place["model"] == model and (run := study.run(trial.place)) is not None
        ]
        if model not in failures:
            with of_own_config(own[0][1], own[0][0].resolved):
                first = predicted(own[0][1], split, data.load(*own[0]))
            for trial, run in own[1:]:
                data.check(trial, run)
            warn_of_changes([run.known_manifest() for _, run in own])
            entries.append(Entry.of(model, [run for _, run in own], first))
    rows = ranked(entries, selection.metric, failures)
    write_atomically(study.path / "table.csv", as_csv(rows).encode())
    write_atomically(study.path / "table.md", markdown_table(rows).encode())
    return {
        "status": "failed" if failures else "completed",
        "study_id": study.id,
        "experiment": study.path.parent.name,
        "folds": selection.folds,
        "models": rows,
    }
