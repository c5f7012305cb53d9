"""What a model looks at: importance, permutation importance, SHAP values and partial dependence, as JSON.

It stands in `evaluation/explanation.json` of the run directory. It speaks of the columns of the data: the features that were
made of one column (one-hot) are taken together. Everything is a function of model, rows and seed.

Costs, where n columns are explained (up to 1000; of more only the 200 most important ones are shuffled):

| part | predictions of rows |
| --- | --- |
| permutation importance | 1000 rows * (1 + 5 n), with more than 200 columns fewer rows: 1 million at most |
| SHAP values of trees | none but 200 rows: the trees themselves are walked through |
| SHAP values of other models | 200 rows * 100 of the background * (2 n + 1), 1 million with 500 million numbers at most |
| partial dependence | 500 rows * 20 values * 6 columns: 60,000 |

Arrays in memory have at most 10 million numbers each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainyard.datasets.base import DataBundle, Split
from trainyard.errors import MissingExtraError, TrainyardError
from trainyard.evaluation.dependence import partial_dependence
from trainyard.evaluation.metrics import LOSS, check
from trainyard.evaluation.permutation import permutation_importance
from trainyard.evaluation.shapley import MAX_LISTED, described, shap_values
from trainyard.evaluation.subject import Json, Source, Subject, brief, sources
from trainyard.order import EXPLAIN, permutation, stream_seed
from trainyard.require import require
from trainyard.types import Array, DataInfo, Predictions, SplitName

log = logging.getLogger("trainyard")

VERSION = 1
SAMPLE = 1000  # rows
MAX_SHUFFLED = 1000  # columns; of more, those that another measure puts first
WIDE_SHUFFLED = 200
MAX_CURVES = 6
_SAMPLING = 0


@dataclass(frozen=True)
class Model:
    """What is explained: how it predicts, the library's own object, and what the library says of the features itself."""

    predict: Callable[[Split], Iterable[Predictions]]
    native: Any = None
    importance: Mapping[str, Array] = field(default_factory=dict)


def explain(model: Model, bundle: DataBundle, metric: str, seed: int, *, in_full: bool = True) -> Json:
    """Explains a model on a sample of the test split (else the validation, else the training split).

    Keys: `version`, `split`, `rows` (of the sample), `columns` (their number), `task`, `target`, `notes` (what is left out, and
    why), `importance`: [{`kind`, `features`: [{`name`, `value`}]}]; `permutation`: see `permutation_importance`, or None; `shap`:
    see `shapley.described`, or None; `dependence`: a list, see `partial_dependence`. Numbers that are not finite are as the
    journal writes them.

    Args:
        model: predicts in this thread only; signals and errors of Trainyard that it raises pass through.
        bundle: with the split and what is known of its columns.
        metric: the one by which columns are judged, bare or behind a split's name; the loss where it is NaN.
        seed: of the sample, the shuffling and the sampled SHAP values.
        in_full: else there is only what the library says itself, which costs nothing.

    Raises:
        InputError: there is no such metric, or it is not for this task.
    """
    metric = check(metric, bundle.info.task)
    split, rows = _split(bundle)
    made: Json = {
        "version": VERSION,
        "split": split,
        "rows": 0,
        "columns": 0,
        "task": bundle.info.task,
        "target": bundle.info.target,
    }
    made |= {"notes": [], "importance": [], "permutation": None, "shap": None, "dependence": []}
    if reason := _unfit(bundle.info, rows):
        return made | {"notes": [reason]}
    subject = _subject(model, bundle, rows, stream_seed(seed, EXPLAIN))
    made |= {"rows": len(subject.features), "columns": len(subject.sources)}
    if not in_full:
        return made | {"importance": _by_library(subject, model.importance, made["notes"])}
    if split == "train":
        made["notes"].append(
            "there is no test and no validation split: these are rows that the model has learned from"
        )
    if not np.isfinite(subject.all_outputs(subject.features)).all():
        return made | {"notes": [*made["notes"], "the model gives outputs that are not finite"]}
    return made | _parts(subject, model, metric, made["notes"])


def _split(bundle: DataBundle) -> tuple[SplitName, Split]:
    order: tuple[SplitName, ...] = ("test", "val", "train")
    name = next(name for name in order if name in bundle.splits and len(bundle.splits[name]))
    return name, bundle.splits[name]


def _unfit(info: DataInfo, split: Split) -> str:
    """Why there is nothing to explain, if so."""
    if len(info.input_shape) != 1:
        return f"samples of shape {tuple(info.input_shape)} have no columns to explain: images and sequences need other means"
    one = split.take(np.zeros(1, dtype=np.int64)).features
    if one.dtype.kind not in "fiub":
        return f"samples of {one.dtype} have no columns to explain"
    return ""


def _subject(model: Model, bundle: DataBundle, split: Split, seed: int) -> Subject:
    ids = permutation(stream_seed(seed, _SAMPLING), len(split))[:SAMPLE]
    batch = split.take(ids)
    return Subject(
        model.predict,
        bundle.info,
        sources(bundle.info, bundle.preparation),
        batch.features,
        batch.targets,
        seed,
    )


def _parts(subject: Subject, model: Model, metric: str, notes: list[str]) -> Json:
    importance = _by_library(subject, model.importance, notes)
    with _timed("SHAP values"):
        shap = _shap(subject, model.native, notes)
    first = [entry["name"] for entry in (shap or next(iter(importance), {})).get("features", [])]
    shuffled = _shuffled(subject, first, notes)
    with _timed("permutation importance"):
        found = permutation_importance(subject, metric, shuffled) if shuffled else None
        if found is None and shuffled and metric != LOSS:
            notes.append(f"{metric} is not defined for these rows: columns are judged by the loss")
            found = permutation_importance(subject, LOSS, shuffled)
    with _timed("partial dependence"):
        curves = _curves(
            subject,
            first if shap else [entry["name"] for entry in (found or {}).get("features", [])] or first,
        )
    return {"importance": importance, "permutation": found, "shap": shap, "dependence": curves}


@contextmanager
def _timed(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    log.debug("%s took %.1f s", what, time.perf_counter() - start)


def _by_library(subject: Subject, measures: Mapping[str, Array], notes: list[str]) -> list[Json]:
    """The library's own measures; those of features that were made of one column are summed."""
    made = []
    for kind, measure in measures.items():
        values = np.asarray(measure, np.float64)
        if values.shape != subject.features.shape[1:]:
            notes.append(
                f"{kind}: the library gave shape {values.shape} for {subject.features.shape[1]} features"
            )
            continue
        sums = [_summed(values[list(source.columns)]) for source in subject.sources]
        order = np.argsort(-np.abs(np.nan_to_num(sums)), kind="stable")[:MAX_LISTED]
        features = [{"name": subject.sources[i].name, "value": brief(sums[i])} for i in order]
        made.append({"kind": str(kind), "features": features})
    return made


def _summed(values: Array) -> float:
    return float(values[0] if len(values) == 1 else np.abs(values).sum())


def _shap(subject: Subject, native: Any, notes: list[str]) -> Json | None:
    try:
        found = shap_values(require("shap", "explain"), subject, native)
    except MissingExtraError as error:
        notes.append(f"SHAP values are left out: {error}")
        return None
    except TrainyardError:
        raise
    except Exception as error:
        notes.append(f"SHAP values are left out: the library failed ({type(error).__name__}: {error})")
        return None
    if found is None:
        notes.append(
            f"SHAP values are left out: for {len(subject.sources)} columns of such a model they would take too long"
        )
    return described(found, subject) if found else None


def _shuffled(subject: Subject, first: Sequence[str], notes: list[str]) -> list[Source]:
    """The columns to shuffle; of very many those that another measure puts first."""
    if len(subject.sources) <= MAX_SHUFFLED:
        return list(subject.sources)
    by_name = {source.name: source for source in subject.sources}
    chosen = [by_name[name] for name in first[:WIDE_SHUFFLED]]
    notes.append(
        f"of the {len(by_name)} columns only {len(chosen)} were shuffled, those with the greatest other importance"
        if chosen
        else f"{len(by_name)} columns are too many to shuffle each, and no other measure says which matter"
    )
    return chosen


def _curves(subject: Subject, names: Sequence[str]) -> list[Json]:
    by_name = {source.name: source for source in subject.sources}
    made: list[Json] = []
    for name in names:
        if len(made) < MAX_CURVES and (curve := partial_dependence(subject, by_name[name])) is not None:
            made.append(curve)
    return made
