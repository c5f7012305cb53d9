"""The metric that a study compares its runs by, among those that they compute."""

from __future__ import annotations

from trainwright.config.metrics import metric_path
from trainwright.errors import TrainwrightError
from trainwright.evaluation.metrics import LOSS, default_metrics, tasks_with, without_prefix
from trainwright.studies.study import StudyRequest
from trainwright.studies.trials import StudyConfig


def with_metric(base: StudyConfig, metric: str, request: StudyRequest) -> StudyConfig:
    """Return the config with a metric among those that runs compute."""
    name, listed = without_prefix(metric), base.resolved.config.evaluation.metrics
    if name == LOSS or ":" in metric_path(base.resolved.config, metric):
        return base
    metrics = list(default_metrics(_task_with(name, base, request)) if listed is None else listed)
    return base if name in metrics else base.with_overrides({"evaluation.metrics": [*metrics, name]})


def _task_with(metric: str, base: StudyConfig, request: StudyRequest) -> str:
    """Return the task of the data, among those that have the metric; the data are read only if several do."""
    tasks, data = tasks_with(metric), base.resolved.config.data
    if len(tasks) > 1:
        try:
            task = data.task if data and data.task != "auto" else request.load(base.resolved).info.task
        except TrainwrightError:  # the runs will report why
            return tasks[0]
        return task if task in tasks else tasks[0]
    return tasks[0]
