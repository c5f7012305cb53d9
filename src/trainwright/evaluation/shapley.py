"""SHAP values: the contribution of each column to an output; for a row they sum to the output minus its mean.

Method: Lundberg and Lee, "A unified approach to interpreting model predictions" (2017), as implemented in the
shap library. Tree models get exact values by path-dependent TreeSHAP (Lundberg et al., 2020). Other models
get antithetic permutation sampling against a background of rows; the features made from one column are
switched together.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from trainwright.evaluation.explained import Column, ExplainedModel, Floats, Json, rounded, rounded_all
from trainwright.order import stream_seed
from trainwright.types import Array

log = logging.getLogger("trainwright")

ROWS = 200  # explained rows
BACKGROUND = 100  # background rows
MAX_COLUMNS = 1000  # with more columns, only tree models can be explained
# The limits below reduce the number of explained rows and of background rows.
MAX_PREDICTED = 1_000_000  # rows that the model predicts for permutation sampling
MAX_READ = 500_000_000  # numbers in those rows
MAX_CELLS = 10_000_000  # numbers in one array
BLOCK = 2_000_000  # numbers in the features (or outputs) of one call of the model
MAX_TREE_WORK = 6e10  # rows * trees * leaves * depth^2 * outputs: about 10 seconds of one core
MIN_ROWS = 20
MAX_LISTED = 100  # columns in the result
MAX_BEESWARMS = 4  # outputs for which the values of single rows are kept
MAX_IN_BEESWARM = 12  # columns in each beeswarm
_SAMPLING_STREAM = 2  # number of this random stream within an explanation


@dataclass(frozen=True)
class ShapValues:
    """SHAP values of the first rows of a sample.

    Attributes:
        explainer: `tree` or `permutation`.
        unit: `probability`, `log-odds`, `value`, `log of the value`, or `score` (before softmax).
        values: (rows, columns, shown outputs) float64 contributions, in `unit`.
        base: (shown outputs,) float64, the mean output that the contributions are relative to, in `unit`.
        gap: The largest absolute difference between base + sum of contributions and the model's output; for
            regression as a share of the outputs' standard deviation.
        background: Number of background rows; 0 if the trees' own sample counts are used instead.
    """

    explainer: str
    unit: str
    values: Floats
    base: Floats
    gap: float
    background: int


def shap_values(shap: ModuleType, explained: ExplainedModel, native: Any) -> ShapValues | None:
    """Compute SHAP values: exact ones if the model consists of trees, sampled ones otherwise.

    Values of trees are used only if they sum to the model's outputs.

    Args:
        shap: The imported shap library.
        explained: The model and the sample.
        native: The model as its library's own object.

    Returns:
        The SHAP values; None if they cannot be computed within the limits of this module.
    """
    exact = _of_trees(shap, explained, native)
    if exact is not None or len(explained.columns) > MAX_COLUMNS:
        return exact
    return _sampled(shap, explained)


def _of_trees(shap: ModuleType, explained: ExplainedModel, native: Any) -> ShapValues | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shap warns of changes between its versions
            explainer = shap.TreeExplainer(native)
            rows = _tree_rows(explainer.model, explained)
            if rows < min(MIN_ROWS, len(explained.features)):
                return None
            values = np.asarray(
                explainer.shap_values(explained.features[:rows], check_additivity=False), np.float64
            )
            base = np.asarray(explainer.expected_value, np.float64).reshape(-1)
    except Exception as error:  # not a tree model, or one that shap does not support
        log.debug("TreeSHAP does not apply: %s: %s", type(error).__name__, error)
        return None
    return _verified(explained, values.reshape(rows, explained.features.shape[1], -1), base)


def _tree_rows(trees: Any, explained: ExplainedModel) -> int:
    """Return the number of rows that can be explained within the limits."""
    outputs = explained.info.outputs
    rows = min(ROWS, len(explained.features), MAX_CELLS // (explained.features.shape[1] * outputs))
    if trees.model_type != "internal":
        return int(rows)  # the boosting library computes the values itself, which is fast
    work = trees.values.shape[0] * trees.values.shape[1] / 2 * trees.max_depth**2 * trees.values.shape[2]
    return int(min(rows, MAX_TREE_WORK // max(1.0, work)))


def _verified(explained: ExplainedModel, values: Floats, base: Floats) -> ShapValues | None:
    """Return the values if a usual link function maps their sums to the model's outputs, else None.

    Args:
        explained: The model and the sample.
        values: (rows, features, margins) SHAP values.
        base: (margins,) base values.
    """
    kept = [output.position for output in explained.shown_outputs]
    outputs = explained.all_outputs(explained.features[: len(values)])
    spread = explained.spread(outputs)
    if offset := explained.info.target_offset:  # which the trees do not know
        base = base + np.array(offset)
    margins = values.sum(axis=1) + base  # (rows, margins)
    if binary := margins.shape[1] == 1 and outputs.shape[1] == 2 and len(kept) == 1:
        outputs = outputs[:, 1:]  # one margin stands for the second class
    if margins.shape != outputs.shape:
        return None
    for unit, link in explained.task.links(binary=binary).items():
        with np.errstate(over="ignore"):
            gap = float(np.abs(link(margins) - outputs).max()) / spread
        if gap < 1e-3:
            if binary and kept == [0]:  # the complement of the second class
                values, base = -values, 1 - base if unit == "probability" else -base
            columns = [0] if binary else kept
            return ShapValues(
                "tree", unit, _by_column(values[:, :, columns], explained), base[columns], gap, 0
            )
    return None


def _by_column(values: Floats, explained: ExplainedModel) -> Floats:
    """Sum (rows, features, outputs) over the features of each column, giving (rows, columns, outputs)."""
    return np.stack([values[:, list(column.features)].sum(axis=1) for column in explained.columns], axis=1)


def _sampled(shap: ModuleType, explained: ExplainedModel) -> ShapValues | None:
    coded = _CodedSample(explained)
    count = len(explained.columns)
    evaluations = 2 * count + 1  # of the background: one permutation forwards and backwards
    background = max(1, min(BACKGROUND, len(explained.features), MAX_CELLS // (evaluations * count)))
    predicted = min(MAX_PREDICTED, MAX_READ // explained.features.shape[1])
    rows = max(1, min(ROWS, len(explained.features), predicted // (evaluations * background)))
    seed = stream_seed(explained.seed, _SAMPLING_STREAM) % 2**32
    with _numpy_random_state_kept():
        masker = shap.maskers.Independent(coded.codes[-background:], max_samples=background)
        explainer = shap.PermutationExplainer(coded.outputs, masker, seed=seed)
        explanation = explainer(coded.codes[:rows], max_evals=evaluations, silent=True)
    values = np.asarray(explanation.values, np.float64).reshape(rows, count, len(explained.shown_outputs))
    base = np.asarray(explanation.base_values, np.float64).reshape(rows, len(explained.shown_outputs))
    outputs = explained.outputs(explained.features[:rows])
    if not np.isfinite(values).all():
        return None
    gap = float(np.abs(values.sum(axis=1) + base - outputs).max()) / explained.spread(outputs)
    unit = "probability" if explained.task.gives_probabilities else "value"
    return ShapValues("permutation", unit, values, base[0], gap, background)


class _CodedSample:
    """The sample with one code per data column: (rows, columns), where equal codes mean equal values.

    With codes, shap switches whole data columns instead of single features, and skips columns that are equal
    in both rows.
    """

    def __init__(self, explained: ExplainedModel) -> None:
        self._explained = explained
        count = explained.features.shape[1]
        self._block_rows = max(1, BLOCK // max(count, explained.info.outputs))
        coded = [_coded(explained.features, column) for column in explained.columns]
        self.codes = np.stack([codes for _, codes in coded], axis=1).astype(np.float64)  # (rows, columns)
        width = max(len(rows) for rows, _ in coded)
        self._values = np.zeros((count, width), explained.features.dtype)  # [feature, code] -> value
        self._column_of = np.empty(count, np.int64)  # [feature] -> index of its column
        for index, (column, (rows, _)) in enumerate(zip(explained.columns, coded, strict=True)):
            features = np.array(column.features)
            self._values[features, : len(rows)] = explained.features[np.ix_(rows, features)].T
            self._column_of[features] = index
        self._starts = np.arange(count) * width  # where each feature begins in the flattened `_values`

    def outputs(self, codes: Floats) -> Floats:
        """Return (rows, shown outputs): the model's outputs for rows of codes (rows, columns)."""
        parts = [
            self._explained.outputs(self._features(codes[start : start + self._block_rows]))
            for start in range(0, len(codes), self._block_rows)
        ]
        return np.concatenate(parts) if parts else np.empty((0, len(self._explained.shown_outputs)))

    def _features(self, codes: Floats) -> Array:
        """Return the features (rows, n) that rows of codes (rows, columns) stand for."""
        indices = codes.astype(np.int64)
        if len(self._column_of) != indices.shape[1]:
            indices = indices[:, self._column_of]  # (rows, n): the code of each feature's column
        return self._values.reshape(-1).take(indices + self._starts)


def _coded(features: Array, column: Column) -> tuple[Array, Array]:
    """Return (codes,) the first row of each distinct value of a column, and (rows,) the code of each row."""
    own = np.ascontiguousarray(features[:, column.features])
    # (rows,) compared as bytes, so that NaN equals NaN
    as_bytes = own.view(np.dtype((np.void, own.dtype.itemsize * own.shape[1])))[:, 0]
    _, first, codes = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, codes


@contextmanager
def _numpy_random_state_kept() -> Iterator[None]:
    """Restore NumPy's global random state on exit, since shap seeds it."""
    before = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(before)


def to_json(shap: ShapValues, explained: ExplainedModel) -> Json:
    """Return SHAP values as JSON.

    Keys:
    - `explainer`, `unit`, `background`, `gap`: as in `ShapValues`; `rows`: number of explained rows;
    - `outputs`: names of the shown outputs;
    - `features`: [{`name`, `mean` (mean |SHAP| over rows and outputs), `by_output` (mean |SHAP| for each of
      `outputs`)}], largest mean first;
    - `swarms`: data for beeswarm plots of some outputs, [{`output`, `features`: [{`name`, `shap` (rows,),
      `rank` (rows,) of the column's value, from 0 to 1, or None for categories, `correlation` (rank
      correlation of the two)}]}].
    """
    sizes = np.abs(shap.values).mean(axis=0)  # (columns, shown outputs)
    means = sizes.mean(axis=1)
    names = [column.name for column in explained.columns]
    frequent = explained.most_frequent(MAX_BEESWARMS)
    chosen = [
        i
        for i, output in enumerate(explained.shown_outputs)
        if len(explained.shown_outputs) <= MAX_BEESWARMS or output.position in frequent
    ]
    return {
        "explainer": shap.explainer,
        "unit": shap.unit,
        "rows": len(shap.values),
        "background": shap.background,
        "gap": rounded(shap.gap),
        "outputs": [output.name for output in explained.shown_outputs],
        "features": [
            {"name": names[i], "mean": rounded(float(means[i])), "by_output": rounded_all(sizes[i])}
            for i in np.argsort(-means, kind="stable")[:MAX_LISTED]
        ],
        "swarms": [
            {
                "output": explained.shown_outputs[output].name,
                "features": [
                    _beeswarm(shap.values[:, i, output], explained, explained.columns[i])
                    for i in np.argsort(-sizes[:, output], kind="stable")[:MAX_IN_BEESWARM]
                ],
            }
            for output in chosen
        ],
    }


def _beeswarm(values: Floats, explained: ExplainedModel, column: Column) -> Json:
    """Return one column of a beeswarm plot as JSON; `values` are its SHAP values (rows,)."""
    swarm: Json = {
        "name": column.name,
        "shap": [float(f"{value:.3g}") for value in values],
        "rank": None,
        "correlation": None,
    }
    if column.categories:
        return swarm
    own = column.values(explained.features[: len(values)])
    known = np.isfinite(own)
    ranks = np.full(len(own), np.nan)
    ranks[known] = _ranks(own[known])
    swarm["rank"] = [None if np.isnan(rank) else round(float(rank), 2) for rank in ranks]
    if len(np.unique(own[known])) > 1 and len(np.unique(values[known])) > 1:
        swarm["correlation"] = rounded(float(np.corrcoef(ranks[known], _ranks(values[known]))[0, 1]))
    return swarm


def _ranks(values: Floats) -> Floats:
    """Return the ranks (n,) of values (n,), scaled to 0 .. 1; ties share their mean rank."""
    _, distinct, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(mean_ranks[distinct] / max(1, len(values) - 1))
