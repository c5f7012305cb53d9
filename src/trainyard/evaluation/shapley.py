"""SHAP values: what each column adds to the output for a row, so that the parts sum to the output less its mean.

Lundberg and Lee, "A unified approach to interpreting model predictions" (2017), by the shap library. For trees the exact
values of "tree_path_dependent" TreeSHAP (Lundberg et al., 2020); for other models antithetic permutation sampling against a
background of rows, in which the features that were made of one column are switched together.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from trainyard.evaluation.subject import Floats, Json, Source, Subject, brief, briefs
from trainyard.order import stream_seed
from trainyard.types import Array, DataInfo

log = logging.getLogger("trainyard")

ROWS = 200  # that are explained
BACKGROUND = 100  # rows
MAX_SOURCES = 1000  # columns; beyond, only trees can be explained
# These bounds make the explained rows, and the background, fewer.
MAX_PREDICTED = 1_000_000  # rows that the model predicts for permutation sampling ...
MAX_READ = 500_000_000  # ... and the numbers in them
MAX_CELLS = 10_000_000  # numbers in one array
BLOCK = 2_000_000  # numbers in the features of one call of the model
MAX_TREE_WORK = 6e10  # rows * trees * leaves * depth^2 * outputs: about 10 seconds of one core
MIN_ROWS = 20
MAX_LISTED = 100  # columns
MAX_SWARMS, MAX_IN_SWARM = 4, 12  # outputs whose values are kept one by one, and columns of each
_SAMPLING = 2  # of the streams of an explanation


@dataclass(frozen=True)
class Shapley:
    """SHAP values of the first rows of the sample.

    `values`: (rows, sources, shown outputs) in `unit`: `probability`, `log-odds`, `value`, `log of the value`, or `score` (before
    softmax); `base`: (shown,) their mean; `gap`: how far base + sum is from the output at most, in the output's unit, as a share
    of its spread for values. `background`: rows that were averaged over; 0 where the trees' own counts stand for them.
    """

    explainer: str
    unit: str
    values: Floats
    base: Floats
    gap: float
    background: int


def shap_values(shap: ModuleType, subject: Subject, native: Any) -> Shapley | None:
    """SHAP values by the fastest way that is right for the model; None where there is none in bounds.

    The values of trees are checked against the model's own outputs, and not used where they do not sum to them.
    """
    exact = _of_trees(shap, subject, native)
    if exact is not None or len(subject.sources) > MAX_SOURCES:
        return exact
    return _sampled(shap, subject)


def _of_trees(shap: ModuleType, subject: Subject, native: Any) -> Shapley | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of changes between versions of shap, which do not matter here
            explainer = shap.TreeExplainer(native)
            rows = _tree_rows(explainer.model, subject)
            if rows < min(MIN_ROWS, len(subject.features)):
                return None
            values = np.asarray(
                explainer.shap_values(subject.features[:rows], check_additivity=False), np.float64
            )
            base = np.asarray(explainer.expected_value, np.float64).reshape(-1)
    except Exception as error:  # no trees, or of a kind that the library does not know
        log.debug("SHAP values by trees: %s: %s", type(error).__name__, error)
        return None
    return _checked(subject, values.reshape(rows, subject.features.shape[1], -1), base)


def _tree_rows(trees: Any, subject: Subject) -> int:
    """How many rows can be explained within the bounds."""
    outputs = subject.info.outputs
    rows = min(ROWS, len(subject.features), MAX_CELLS // (subject.features.shape[1] * outputs))
    if trees.model_type != "internal":
        return int(rows)  # the libraries' own implementations
    work = trees.values.shape[0] * trees.values.shape[1] / 2 * trees.max_depth**2 * trees.values.shape[2]
    return int(min(rows, MAX_TREE_WORK // max(1.0, work)))


def _checked(subject: Subject, values: Floats, base: Floats) -> Shapley | None:
    """The values, if with them the model's outputs come out under one of the usual links."""
    info, kept = subject.info, [output.place for output in subject.shown]
    outputs = subject.all_outputs(subject.features[: len(values)])
    spread = 1.0 if info.task == "classification" else float(outputs.std()) or 1.0
    margins = values.sum(axis=1) + base
    if binary := margins.shape[1] == 1 and info.task == "classification" and info.outputs == 2:
        outputs = outputs[:, 1:]
    if margins.shape != outputs.shape:
        return None
    for unit, link in _links(info, binary=binary).items():
        with np.errstate(over="ignore"):
            gap = float(np.abs(link(margins) - outputs).max()) / spread
        if gap < 1e-3:
            columns = [0] if binary else kept
            return Shapley("tree", unit, _by_source(values[:, :, columns], subject), base[columns], gap, 0)
    return None


def _links(info: DataInfo, *, binary: bool) -> dict[str, Callable[[Floats], Floats]]:
    if info.task == "regression":
        return {"value": lambda x: x, "log of the value": np.exp}
    return {"probability": lambda x: x} | (
        {"log-odds": lambda x: 1 / (1 + np.exp(-x))} if binary else {"score": _softmax}
    )


def _softmax(margins: Floats) -> Floats:
    powers = np.exp(margins - margins.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _by_source(values: Floats, subject: Subject) -> Floats:
    """(rows, sources, outputs): the sums over the features that were made of each column."""
    return np.stack([values[:, list(source.columns)].sum(axis=1) for source in subject.sources], axis=1)


def _sampled(shap: ModuleType, subject: Subject) -> Shapley | None:
    pool = _Pool(subject)
    count = len(subject.sources)
    evaluations = 2 * count + 1  # of the background, for one permutation there and back
    background = max(1, min(BACKGROUND, len(subject.features), MAX_CELLS // (evaluations * count)))
    predicted = min(MAX_PREDICTED, MAX_READ // subject.features.shape[1])
    rows = max(1, min(ROWS, len(subject.features), predicted // (evaluations * background)))
    seed = stream_seed(subject.seed, _SAMPLING) % 2**32
    with _own_random_state():
        masker = shap.maskers.Independent(pool.numbers[-background:], max_samples=background)
        explainer = shap.PermutationExplainer(pool.outputs, masker, seed=seed)
        found = explainer(pool.numbers[:rows], max_evals=evaluations, silent=True)
    values = np.asarray(found.values, np.float64).reshape(rows, count, len(subject.shown))
    base = np.asarray(found.base_values, np.float64).reshape(rows, len(subject.shown))
    outputs = subject.outputs(subject.features[:rows])
    if not np.isfinite(values).all():
        return None
    classes = subject.info.task == "classification"
    gap = float(np.abs(values.sum(axis=1) + base - outputs).max()) / (
        1.0 if classes else float(outputs.std()) or 1.0
    )
    return Shapley("permutation", "probability" if classes else "value", values, base[0], gap, background)


class _Pool:
    """The sample as a table of numbers, one for each column of the data: equal numbers are equal values.

    That way the library switches columns of the data, not single features, and passes over what is equal in both rows.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        count = subject.features.shape[1]
        self._step = max(1, BLOCK // max(count, subject.info.outputs))
        found = [_numbered(subject.features, source) for source in subject.sources]
        self.numbers = np.stack([numbers for _, numbers in found], axis=1).astype(np.float64)
        width = max(len(rows) for rows, _ in found)
        self._values = np.zeros((count, width), subject.features.dtype)  # by feature and number
        self._source = np.empty(count, np.int64)  # by feature
        for place, (source, (rows, _)) in enumerate(zip(subject.sources, found, strict=True)):
            self._values[list(source.columns), : len(rows)] = subject.features[
                np.ix_(rows, np.array(source.columns))
            ].T
            self._source[list(source.columns)] = place
        self._starts = np.arange(count) * width

    def outputs(self, numbers: Floats) -> Floats:
        """(rows, shown): the model's outputs for rows of numbers."""
        parts = [
            self._subject.outputs(self._features(numbers[start : start + self._step]))
            for start in range(0, len(numbers), self._step)
        ]
        return np.concatenate(parts) if parts else np.empty((0, len(self._subject.shown)))

    def _features(self, numbers: Floats) -> Array:
        codes = numbers.astype(np.int64)
        codes = codes[:, self._source] if len(self._source) != codes.shape[1] else codes
        return self._values.reshape(-1).take(codes + self._starts)


def _numbered(features: Array, source: Source) -> tuple[Array, Array]:
    """For each number a row that has this value of the column, and the number of each row."""
    own = np.ascontiguousarray(features[:, source.columns])
    as_bytes = own.view(np.dtype((np.void, own.dtype.itemsize * own.shape[1])))[
        :, 0
    ]  # so that NaN equals NaN
    _, first, numbers = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, numbers


@contextmanager
def _own_random_state() -> Iterator[None]:
    """The library seeds NumPy's global generator, which belongs to the user's code."""
    before = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(before)


def described(found: Shapley, subject: Subject) -> Json:
    """The values as JSON.

    Keys: `explainer`, `unit`, `rows`, `background`, `gap`; `features`: [{`name`, `mean` (|SHAP| over rows and outputs),
    `by_output` (|SHAP| of each output; one for each of `outputs`)}], the greatest first; `outputs`; `swarms`: for some outputs
    {`output`, `features`: [{`name`, `shap` (rows,), `rank` (rows,) of the column's value, from 0 to 1, or None for categories,
    `correlation` of the two by rank}]}.
    """
    sizes = np.abs(found.values).mean(axis=0)
    means = sizes.mean(axis=1)
    names = [source.name for source in subject.sources]
    frequent = subject.frequent(MAX_SWARMS)
    chosen = [
        i
        for i, output in enumerate(subject.shown)
        if len(subject.shown) <= MAX_SWARMS or output.place in frequent
    ]
    return {
        "explainer": found.explainer,
        "unit": found.unit,
        "rows": len(found.values),
        "background": found.background,
        "gap": brief(found.gap),
        "outputs": [output.name for output in subject.shown],
        "features": [
            {"name": names[i], "mean": brief(float(means[i])), "by_output": briefs(sizes[i])}
            for i in np.argsort(-means, kind="stable")[:MAX_LISTED]
        ],
        "swarms": [
            {
                "output": subject.shown[output].name,
                "features": [
                    _swarm(found.values[:, i, output], subject, subject.sources[i])
                    for i in np.argsort(-sizes[:, output], kind="stable")[:MAX_IN_SWARM]
                ],
            }
            for output in chosen
        ],
    }


def _swarm(values: Floats, subject: Subject, source: Source) -> Json:
    made: Json = {
        "name": source.name,
        "shap": [float(f"{value:.3g}") for value in values],
        "rank": None,
        "correlation": None,
    }
    if source.categories:
        return made
    own = source.values(subject.features[: len(values)])
    known = np.isfinite(own)
    ranks = np.full(len(own), np.nan)
    ranks[known] = _ranks(own[known])
    made["rank"] = [None if np.isnan(rank) else round(float(rank), 2) for rank in ranks]
    if len(np.unique(own[known])) > 1 and len(np.unique(values[known])) > 1:
        made["correlation"] = brief(float(np.corrcoef(ranks[known], _ranks(values[known]))[0, 1]))
    return made


def _ranks(values: Floats) -> Floats:
    """(n,) ranks from 0 to 1; equals share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(middles[place] / max(1, len(values) - 1))
