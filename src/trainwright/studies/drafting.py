"""Drafts of configs for data files: checked by training, with models compared on a sample."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.config import Resolved
from trainwright.config import load as load_config
from trainwright.config.file_types import folder_type
from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.folder_draft import draft_of_folder
from trainwright.datasets.tables.draft import Draft, columns_of, draft_config
from trainwright.datasets.tables.proposals import candidates, metric_of
from trainwright.datasets.tables.table import Table
from trainwright.datasets.tables.tabular import build
from trainwright.errors import DataError, InputError, TrainwrightError
from trainwright.evaluation.metrics import mode_of
from trainwright.records.run_dir import RunDir
from trainwright.runs.attempt import run_attempt
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.request import Request
from trainwright.types import FeatureForm

log = logging.getLogger("trainwright")
AUTO = "auto"
_SAMPLE = 5000  # rows to compare models on
_FEW = 1500  # with fewer rows, models are compared on folds: one split says little
_FOLDS = 3
_SECONDS = 90.0  # for all models together; no model may take more than a third of it
_MARGIN = 0.002  # a smaller difference is no reason to propose another model than the default one


class Score(NamedTuple):
    """The metric of a model on unseen rows: the mean over the folds, and the seconds it took."""

    model: str
    value: float
    seconds: float


def draft(
    path: Path | str,
    target: str | Sequence[str] | None,
    *,
    options: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> str:
    """Return a commented config that trains on a file or folder; see `trainwright.init`."""
    options = {key: value for key, value in (options or {}).items() if value is not None}
    if Path(path).expanduser().is_dir() and folder_type(str(path)) is None:
        given = {
            "--target": target,
            **{f"--{key}": value for key, value in options.items()},
            "--model": model,
        }
        if useless := [name for name, value in given.items() if value is not None]:
            raise InputError(
                f"{path} is a folder, whose files say what they need; leave {' and '.join(useless)} out"
            )
        return _checked_folder(draft_of_folder(str(path)))
    if target is None:
        names = columns_of(path, options)
        raise InputError(f"{path} is a table: say which column to predict, with --target COLUMN: {names}")
    proposal = draft_config(path, target, options)
    log.info("%s", proposal.summary())
    config, bundle = _checked(proposal, None if model == AUTO else model)
    if model != AUTO:
        return config
    scores = list(_compare(proposal, _seen(proposal.table, bundle)))
    best = _best(scores, metric_of(proposal.shape))
    proposal.comparison = _table(scores, best, metric_of(proposal.shape))
    return proposal.text(best)


def _checked_folder(text: str) -> str:
    _resolved(text)
    return text


def _checked(proposal: Draft, model: str | None) -> tuple[str, DataBundle]:
    """Return the config and its data, split at random where its time or group does not split them.

    Raises:
        InputError: The data cannot be trained on, or there is no such model.
    """
    try:
        bundle = _bundle(proposal.table, _resolved(proposal.text(model)))
        proposal.keep_categories(bundle.rows["train"])
        return proposal.text(model), bundle
    except DataError as error:
        if not proposal.split:
            raise
        log.info("the rows cannot be split by %s: %s", " or ".join(proposal.split), error)
        proposal.drop_split()
        return _checked(proposal, model)


def _resolved(text: str, overrides: Mapping[str, Any] | None = None) -> Resolved:
    with tempfile.TemporaryDirectory(prefix="trainwright-init-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        return load_config(file, overrides or {}, Catalog())


def _bundle(table: Table, resolved: Resolved) -> DataBundle:
    assert resolved.config.data is not None, "a draft has data"
    return build({"train": table}, resolved.config.data, FeatureForm())


def _seen(table: Table, bundle: DataBundle) -> Table:
    """Return a sample of the rows that the config does not test on: the test must not choose the model."""
    rows = np.sort(np.concatenate([ids for name, ids in bundle.rows.items() if name != "test"]))
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(0).choice(rows, _SAMPLE, replace=False))
    return table.take(rows)


def _compare(proposal: Draft, sample: Table) -> Iterator[Score]:
    """Yield the scores of the models, until the time is up; a model that fails is named and left out."""
    metric, started = metric_of(proposal.shape), time.monotonic()
    last = None
    for model in candidates(proposal.shape):
        left = _SECONDS - (time.monotonic() - started)
        if last is not None and left < 1:
            log.info("%s is not compared: %g s are over", model, _SECONDS)
            continue
        begun = time.monotonic()
        try:
            seconds = min(max(left, 1.0), _SECONDS / 3)
            values = list(_values(proposal.text(model), sample, metric, seconds))
        except TrainwrightError as error:
            log.info("%s is not compared: %s", model, error)
            continue
        last = Score(model, float(np.mean(values)), time.monotonic() - begun)
        log.info("%s: %s %.4f in %.1f s", model, metric, last.value, last.seconds)
        yield last
    if last is None:
        raise InputError("no model could be compared; give one with --model")


def _values(text: str, sample: Table, metric: str, seconds: float) -> Iterator[float]:
    """Yield the metric of a model on each part of the sample that it is not trained on."""
    folds = range(_FOLDS if len(sample) <= _FEW else 1)
    # On a sample, more threads take longer to wait for each other than to compute.
    common: dict[str, Any] = {"training.threads": 1, "evaluation.metrics": [metric]}
    common["training.max_minutes"] = seconds / len(folds) / 60
    for fold in folds:
        split: dict[str, Any] = {"data.split.test": 0.25, "data.split.val": 0.15}
        if len(folds) > 1:
            split |= {"data.split.test": None, "data.split.folds": len(folds), "data.split.fold": fold}
        resolved = _resolved(text, common | split)
        with tempfile.TemporaryDirectory(prefix="trainwright-init-") as folder:
            run = RunDir.create(Path(folder), "init", resolved.dump())
            result = run_attempt(Request(resolved, run, Objects(data=_bundle(sample, resolved))))
        yield result.metrics[f"test_{metric}"]


def _best(scores: list[Score], metric: str) -> str:
    sign = 1 if mode_of(metric) == "max" else -1
    finite = [score for score in scores if np.isfinite(score.value)] or scores
    best = max(finite, key=lambda score: sign * score.value)
    first = finite[0]
    return first.model if sign * (best.value - first.value) <= _MARGIN else best.model


def _table(scores: list[Score], best: str, metric: str) -> list[str]:
    """Return the comparison as lines of a comment."""
    width = max(len(score.model) for score in scores)
    return [
        f"compared on rows that are not tested ({metric}):",
        *(
            f"  {score.model:{width}}  {score.value:.4f}  {score.seconds:6.1f} s"
            f"{'  <- proposed' if score.model == best else ''}"
            for score in scores
        ),
    ]
