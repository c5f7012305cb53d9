"""The ranked table of a benchmark: metric, significance of the differences, and cost of each model."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.config.metrics import metric_path
from trainwright.errors import InputError, ModelError
from trainwright.evaluation.metrics import LOSS, mode_of, names, wanted_metrics, without_prefix
from trainwright.evaluation.significance import Significance, all_pairs, holm, over_folds
from trainwright.records.run_dir import RunDir
from trainwright.records.study_results import ModelRow
from trainwright.runs.split_predictions import Predicted, other_rows
from trainwright.runs.weights import stored_model
from trainwright.studies.cost import Latency, latency
from trainwright.studies.study import Json
from trainwright.types import SPLITS, SplitName

COLUMNS = (
    "rank",
    "model",
    "metric",
    "mean",
    "std",
    "p_value",
    "p_adjusted",
    "train_seconds",
    "model_bytes",
    "one_row_ms",
    "rows_per_second",
    "preparation",
    "error",
)


@dataclass(frozen=True, eq=False)
class Entry:
    """A trained model: its runs by fold, and the predictions and latency of the first run."""

    model: str
    runs: Sequence[RunDir]
    first: Predicted
    cost: Latency

    @staticmethod
    def of(model: str, runs: Sequence[RunDir], first: Predicted) -> Entry:
        """Make an entry, and measure its latency."""
        return Entry(model, runs, first, latency(first.model, first.split))

    def values(self, metric: str) -> list[float]:
        """Return the metric on each fold.

        Raises:
            InputError: The runs have no such metric.
        """
        by_fold = [run.require_result().metrics for run in self.runs]
        if metric not in by_fold[0]:
            names = ", ".join(by_fold[0]) or "no metrics"
            raise InputError(f"metric {metric}: the runs of {self.model} have none; they have {names}")
        return [metrics[metric] for metrics in by_fold]

    def test_per_train(self, split: SplitName) -> float:
        """Return the mean ratio of a split's rows to the training rows."""
        rows = [run.require_manifest().data.splits for run in self.runs]
        return float(np.mean([(one[split].rows or 0) / (one["train"].rows or 1) for one in rows]))


def split_of(metric: str | None) -> SplitName:
    """Return the split in a metric's name; `test` if it names none."""
    return next((split for split in SPLITS if metric is not None and metric.startswith(f"{split}_")), "test")


def ranked(entries: Sequence[Entry], metric: str | None, errors: Mapping[str, str]) -> list[ModelRow]:
    """Return the rows of the table, the best model first, failed ones last.

    Models with equal means have the same rank, in the order of the request. The p-values are adjusted because
    the best model was chosen by its result.
    """
    if not entries:
        return [ModelRow(model=model, error=error) for model, error in errors.items()]
    name = _metric(entries, metric)
    sign = -1.0 if mode_of(_path(entries[0], name)) == "max" else 1.0
    values = {entry.model: entry.values(name) for entry in entries}

    def sort_key(entry: Entry) -> tuple[bool, float]:
        mean = float(np.mean(values[entry.model]))
        return math.isnan(mean), 0.0 if math.isnan(mean) else sign * mean

    order = sorted(entries, key=sort_key)
    ranks = [1 + sum(sort_key(other) < sort_key(entry) for other in order) for entry in order]
    tests = _tests(order, name, values)
    rows = [
        _row(rank, entry, name, values[entry.model]).model_copy(update=tests[entry.model])
        for rank, entry in zip(ranks, order, strict=True)
    ]
    return [*rows, *(ModelRow(model=model, error=error) for model, error in errors.items())]


def _metric(entries: Sequence[Entry], metric: str | None) -> str:
    """Return the full name of the metric to rank by: the first that all models have, if none is asked for.

    Models of a quantile have its pinball loss, which no other model has unless it is asked for.
    """
    if metric is not None:
        return f"{split_of(metric)}_{without_prefix(metric)}"
    first, *others = [wanted_metrics(entry.first.config, entry.first.info) for entry in entries]
    shared = [name for name in first if all(name in other for other in others)]
    return f"{split_of(None)}_{without_prefix((shared or first)[0])}"


def _path(entry: Entry, metric: str) -> str:
    """Return the import path of a user's own metric; a metric of ours as it is."""
    return metric if without_prefix(metric) in (LOSS, *names()) else metric_path(entry.first.config, metric)


def _tests(order: Sequence[Entry], metric: str, values: Mapping[str, Sequence[float]]) -> dict[str, Json]:
    """Return the columns of each model's test against the first model, which has none itself."""
    if len(order[0].runs) > 1:
        split, compared, untested = split_of(metric), list(order), {}
        tests = {
            (i, j): over_folds(
                metric, values[order[i].model], values[order[j].model], order[j].test_per_train(split)
            )
            for i, j in itertools.combinations(range(len(order)), 2)
        }
    else:
        untested = {
            entry.model: reason
            for entry in order[1:]
            if (reason := _why_untestable(order[0], entry, metric)) is not None
        }
        compared = [entry for entry in order if entry.model not in untested]
        path = _path(order[0], metric)
        tests = all_pairs(path, [entry.first.scores for entry in compared]) if len(compared) > 1 else {}
    adjusted = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    columns: dict[str, Json] = {model: {"untested": reason} for model, reason in untested.items()}
    for i, entry in enumerate(compared):
        columns[entry.model] = _test_columns(tests[0, i], adjusted[0, i]) if i else {}
    return columns


def _why_untestable(best: Entry, entry: Entry, metric: str) -> str | None:
    """Return why two models cannot be compared row by row; None if they can."""
    manifests = [one.runs[0].require_manifest() for one in (best, entry)]
    if (reason := other_rows(manifests[0], manifests[1], split_of(metric))) is not None:
        return reason
    try:
        _ = best.first.scores, entry.first.scores
    except ModelError as error:
        return str(error)
    return None


def _test_columns(test: Significance, p_adjusted: float) -> Json:
    return {
        "test": test.test,
        "effect": test.effect,
        "effect_low": test.low,
        "effect_high": test.high,
        "p_value": test.p_value,
        "p_adjusted": p_adjusted,
    }


def _row(rank: int, entry: Entry, metric: str, values: Sequence[float]) -> ModelRow:
    sizes = [stored_model(run).bytes for run in entry.runs]
    return ModelRow(
        rank=rank,
        model=entry.model,
        metric=metric,
        mean=float(np.mean(values)),
        std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        train_seconds=_train_seconds(entry),
        model_bytes=round(float(np.mean(sizes))),
        one_row_ms=entry.cost.one_ms,
        rows_per_second=entry.cost.rows_per_second,
        values=list(values),
        runs=[run.id for run in entry.runs],
    )


def _train_seconds(entry: Entry) -> float:
    """Return the mean training time of a run."""
    return float(np.mean([run.require_result().train_seconds for run in entry.runs]))


def as_csv(rows: Sequence[ModelRow]) -> str:
    """Return the table as CSV, with the columns of `COLUMNS`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    cells = [row.to_json() for row in rows]
    writer.writerows([["" if row[name] is None else row[name] for name in COLUMNS] for row in cells])
    return text.getvalue()
