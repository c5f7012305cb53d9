"""From trained models to a ranked table: the metric, whether the differences are more than chance, and what each costs."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainyard.errors import InputError, ModelError
from trainyard.evaluation.metrics import bare, mode_of
from trainyard.evaluation.significance import Significance, all_pairs, holm, over_folds
from trainyard.records.journal import finite
from trainyard.records.run_dir import RunDir
from trainyard.runs.predictions import Predicted, other_rows
from trainyard.runs.weights import stored_model
from trainyard.runs.wiring import wanted_metrics
from trainyard.studies.cost import Latency, latency
from trainyard.studies.study import Json
from trainyard.types import SPLITS, SplitName

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
    "error",
)


@dataclass(frozen=True, eq=False)
class Entry:
    """A model that was trained: its runs, by fold; what the first of them predicts; and what that one costs."""

    model: str
    runs: Sequence[RunDir]
    first: Predicted
    cost: Latency

    @staticmethod
    def of(model: str, runs: Sequence[RunDir], first: Predicted) -> Entry:
        return Entry(model, runs, first, latency(first.framework, first.split))

    def values(self, metric: str) -> list[float]:
        """The metric on each fold.

        Raises:
            InputError: the runs have no such metric.
        """
        found = [run.known_result().metrics for run in self.runs]
        if metric not in found[0]:
            raise InputError(
                f"metric {metric}: the runs of {self.model} have none; they have {', '.join(found[0]) or 'no metrics'}"
            )
        return [metrics[metric] for metrics in found]

    def test_per_train(self, split: SplitName) -> float:
        rows = [run.known_manifest().data.splits for run in self.runs]
        return float(np.mean([(one[split].rows or 0) / (one["train"].rows or 1) for one in rows]))


def split_of(metric: str | None) -> SplitName:
    """The split that a metric speaks of; the test where it does not say."""
    return next((split for split in SPLITS if metric is not None and metric.startswith(f"{split}_")), "test")


def ranked(entries: Sequence[Entry], metric: str | None, errors: Mapping[str, str]) -> list[Json]:
    """The rows of the table, the best model first, those that failed last.

    Models whose means are equal have the same rank, and stand in the order in which they were request. `p_value` is of the test
    against the first; `p_adjusted` is that after Holm's correction for the tests of all pairs of models that can be compared,
    as the first is the best by luck, too. Where there is none, `untested` says why.
    """
    if not entries:
        return [_failed(model, error) for model, error in errors.items()]
    name = _metric(entries[0], metric)
    sign = -1.0 if mode_of(name) == "max" else 1.0
    values = {entry.model: entry.values(name) for entry in entries}

    def place(entry: Entry) -> tuple[bool, float]:
        mean = float(np.mean(values[entry.model]))
        return math.isnan(mean), 0.0 if math.isnan(mean) else sign * mean

    order = sorted(entries, key=place)
    ranks = [1 + sum(place(other) < place(entry) for other in order) for entry in order]
    told = _tested(order, name, values)
    rows = [
        _row(rank, entry, name, values[entry.model]) | told[entry.model]
        for rank, entry in zip(ranks, order, strict=True)
    ]
    return [*rows, *(_failed(model, error) for model, error in errors.items())]


def _metric(entry: Entry, metric: str | None) -> str:
    """The full name of the metric to rank by."""
    name = metric or wanted_metrics(entry.first.config, entry.first.info)[0]
    return f"{split_of(metric)}_{bare(name)}"


def _tested(order: Sequence[Entry], metric: str, values: Mapping[str, Sequence[float]]) -> dict[str, Json]:
    """What is told of each model's test against the first; of the first, nothing."""
    if len(order[0].runs) > 1:
        split, compared, untested = split_of(metric), list(order), {}
        found = {
            (i, j): over_folds(
                metric, values[order[i].model], values[order[j].model], order[j].test_per_train(split)
            )
            for i, j in itertools.combinations(range(len(order)), 2)
        }
    else:
        untested = {
            entry.model: why
            for entry in order[1:]
            if (why := _untestable(order[0], entry, metric)) is not None
        }
        compared = [entry for entry in order if entry.model not in untested]
        found = all_pairs(metric, [entry.first.scores for entry in compared]) if len(compared) > 1 else {}
    adjusted = dict(zip(found, holm([test.p_value for test in found.values()]), strict=True))
    told: dict[str, Json] = {model: {"untested": why} for model, why in untested.items()}
    for place, entry in enumerate(compared):
        told[entry.model] = _told(found[0, place], adjusted[0, place]) if place else {}
    return told


def _untestable(best: Entry, entry: Entry, metric: str) -> str | None:
    """Why two models cannot be compared row by row, where they cannot."""
    manifests = [one.runs[0].known_manifest() for one in (best, entry)]
    if (why := other_rows(manifests[0], manifests[1], split_of(metric))) is not None:
        return why
    try:
        _ = best.first.scores, entry.first.scores
    except ModelError as error:
        return str(error)
    return None


def _told(test: Significance, p_adjusted: float) -> Json:
    return {
        "test": test.test,
        "effect": finite(test.effect),
        "effect_low": finite(test.low),
        "effect_high": finite(test.high),
        "p_value": finite(test.p_value),
        "p_adjusted": finite(p_adjusted),
    }


def _row(rank: int, entry: Entry, metric: str, values: Sequence[float]) -> Json:
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
    return _empty(entry.model) | {
        "rank": rank,
        "metric": metric,
        "values": [finite(value) for value in values],
        "mean": finite(mean),
        "std": None if std is None else finite(std),
        "train_seconds": _train_seconds(entry),
        "model_bytes": round(
            float(np.mean([stored_model(run).weights.stat().st_size for run in entry.runs]))
        ),
        "one_row_ms": entry.cost.one_ms,
        "rows_per_second": entry.cost.rows_per_second,
        "runs": [run.id for run in entry.runs],
    }


def _train_seconds(entry: Entry) -> float:
    """Of one run, on average."""
    return float(np.mean([run.known_result().train_seconds for run in entry.runs]))


def _failed(model: str, error: str) -> Json:
    return _empty(model) | {"error": error}


def _empty(model: str) -> Json:
    nothing = dict.fromkeys([*COLUMNS, "test", "effect", "effect_low", "effect_high", "untested"])
    return {**nothing, "model": model, "values": [], "runs": []}


def as_csv(rows: Sequence[Json]) -> str:
    """The table as CSV, with the columns of `COLUMNS`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([["" if row[name] is None else row[name] for name in COLUMNS] for row in rows])
    return text.getvalue()
