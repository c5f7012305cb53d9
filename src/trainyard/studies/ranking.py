"""From trained models to a ranked table: the metric, whether the differences are more than chance, and what each costs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainyard.core.build import wanted_metrics, weights_file
from trainyard.core.journal import finite, number
from trainyard.core.run import RunDir
from trainyard.errors import InputError, ModelError
from trainyard.evaluation.metrics import bare, mode_of
from trainyard.evaluation.significance import Significance, holm, over_folds, same_rows
from trainyard.studies.cost import Latency, latency
from trainyard.studies.predictions import Predicted, other_rows
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
        found = [run.read("result.json")["metrics"] for run in self.runs]
        if metric not in found[0]:
            raise InputError(
                f"metric {metric}: the runs of {self.model} have none; they have {', '.join(found[0]) or 'no metrics'}"
            )
        return [number(metrics[metric]) for metrics in found]

    def test_per_train(self, split: SplitName) -> float:
        rows = [run.read("manifest.json")["data"]["splits"] for run in self.runs]
        return float(np.mean([one[split]["rows"] / one["train"]["rows"] for one in rows]))


def split_of(metric: str | None) -> SplitName:
    """The split that a metric speaks of; the test where it does not say."""
    return next((split for split in SPLITS if metric is not None and metric.startswith(f"{split}_")), "test")


def ranked(entries: Sequence[Entry], metric: str | None, errors: Mapping[str, str]) -> list[Json]:
    """The rows of the table, the best model first, those that failed last.

    `p_value` is of the test against the best; `p_adjusted` is that after Holm's correction for all the tests of the table.
    Where there is none, `untested` says why.
    """
    if not entries:
        return [_failed(model, error) for model, error in errors.items()]
    name = _metric(entries[0], metric)
    sign = -1.0 if mode_of(name) == "max" else 1.0
    values = {entry.model: entry.values(name) for entry in entries}

    def place(entry: Entry) -> tuple[bool, float, float]:
        mean = float(np.mean(values[entry.model]))
        return math.isnan(mean), sign * mean, _train_seconds(entry)

    order = sorted(entries, key=place)
    tests = [_tested(order[0], entry, name, values) for entry in order[1:]]
    adjusted = holm([test.p_value if isinstance(test, Significance) else math.nan for test in tests])
    rows = [_row(rank, entry, name, values[entry.model]) for rank, entry in enumerate(order, 1)]
    compared = [row | _told(test, p) for row, test, p in zip(rows[1:], tests, adjusted, strict=True)]
    return [rows[0], *compared, *(_failed(model, error) for model, error in errors.items())]


def _metric(entry: Entry, metric: str | None) -> str:
    """The full name of the metric to rank by."""
    name = metric or wanted_metrics(entry.first.config, entry.first.info)[0]
    return f"{split_of(metric)}_{bare(name)}"


def _tested(best: Entry, entry: Entry, metric: str, values: Mapping[str, Sequence[float]]) -> Significance | str:
    """The test of a model against the best, or why there is none."""
    if len(entry.runs) > 1:
        return over_folds(metric, values[best.model], values[entry.model], entry.test_per_train(split_of(metric)))
    manifests = [one.runs[0].read("manifest.json") for one in (best, entry)]
    if (why := other_rows(manifests[0], manifests[1], split_of(metric))) is not None:
        return why
    try:
        return same_rows(metric, best.first.scores, entry.first.scores)
    except ModelError as error:
        return str(error)


def _told(test: Significance | str, p_adjusted: float) -> Json:
    if isinstance(test, str):
        return {"untested": test}
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
        "model_bytes": round(float(np.mean([weights_file(run).stat().st_size for run in entry.runs]))),
        "one_row_ms": entry.cost.one_ms,
        "rows_per_second": entry.cost.rows_per_second,
        "runs": [run.id for run in entry.runs],
    }


def _train_seconds(entry: Entry) -> float:
    """Of one run, on average."""
    return float(np.mean([run.read("result.json")["train_seconds"] for run in entry.runs]))


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
