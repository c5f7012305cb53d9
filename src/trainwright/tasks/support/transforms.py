"""Transformations of targets: models train on log1p(price), say, and predictions are prices again.

They are fitted on the training rows, monotone, and stored as JSON (`DataInfo.target_transform`). All
arithmetic is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from trainwright.errors import DataError
from trainwright.types import Array, DataInfo

MAX_KNOTS = 1000  # of a quantile transformation


@dataclass(frozen=True)
class _Formula:
    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    takes: Callable[[Array], Array]
    wants: str


_FORMULAS: Mapping[str, _Formula] = {
    "log1p": _Formula(np.log1p, np.expm1, lambda values: values >= 0, "at least 0"),
    "log": _Formula(np.log, np.exp, lambda values: values > 0, "above 0"),
    "sqrt": _Formula(
        np.sqrt,
        lambda roots: np.square(np.maximum(roots, 0)),  # so that it is monotone
        lambda values: values >= 0,
        "at least 0",
    ),
}


@dataclass(frozen=True)
class TargetTransform:
    """A fitted transformation.

    `kind` is its name in a config. `columns` are the knots of each target's piecewise linear function, by
    `values` in the original units and `scores` on the transformed scale, both ascending; of `standardize` its
    `mean` and `scale`; empty for a formula.
    """

    kind: str
    columns: Sequence[Mapping[str, Any]] = ()

    def forward(self, targets: Array) -> Array:
        """Return targets, (rows,) or (rows, outputs), on the transformed scale, float64.

        Values beyond the training rows' get the score of the nearest (`quantile`); what no formula takes
        becomes 0: check targets before.
        """
        with np.errstate(all="ignore"):
            scores = self._mapped(targets, inverse=False)
        return np.where(np.isfinite(scores), scores, 0)

    def inverse(self, outputs: Array) -> Array:
        """Return outputs of a model, (rows,) or (rows, outputs), in the targets' original units, float64."""
        with np.errstate(over="ignore"):
            return self._mapped(outputs, inverse=True)

    def check(self, targets: Array, where: str) -> None:
        """Check that targets, (rows,) or (rows, outputs), can be transformed.

        Raises:
            DataError: The transform is not defined for one of them.
        """
        formula = _FORMULAS.get(self.kind)
        if formula is None:
            return
        bad = ~formula.takes(targets).reshape(len(targets), -1).all(axis=1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"data.target_transform: {self.kind} takes values {formula.wants}, but {int(bad.sum())} of "
                f"{len(targets)} {where} are not, the first {np.ravel(targets[row]).tolist()}; use quantile "
                "or standardize, which take all"
            )

    def _mapped(self, values: Array, *, inverse: bool) -> Array:
        wide = values.astype(np.float64)
        if self.kind in _FORMULAS:
            formula = _FORMULAS[self.kind]
            return formula.inverse(wide) if inverse else formula.forward(wide)
        columns = wide.reshape(len(wide), -1)  # (rows, outputs)
        mapped = [
            _mapped_column(column, knots, inverse)
            for column, knots in zip(columns.T, self.columns, strict=True)
        ]
        return np.stack(mapped, axis=1).reshape(wide.shape)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `transform_of` reads."""
        return {"kind": self.kind, "columns": [dict(column) for column in self.columns]}


def _mapped_column(column: Array, fitted: Mapping[str, Any], inverse: bool) -> Array:
    if "scale" in fitted:
        mean, scale = fitted["mean"], fitted["scale"]
        return np.asarray(column * scale + mean if inverse else (column - mean) / scale)
    values, scores = fitted["values"], fitted["scores"]
    return np.asarray(np.interp(column, scores, values) if inverse else np.interp(column, values, scores))


def fit(kind: str, targets: Array) -> TargetTransform:
    """Fit a transformation on the training rows' targets, (rows,) or (rows, outputs).

    Raises:
        DataError: They cannot be transformed.
    """
    transform = TargetTransform(kind)
    transform.check(targets, "training targets")
    if kind in _FORMULAS:
        return transform
    fitted = _knots if kind == "quantile" else _moments
    columns = targets.astype(np.float64).reshape(len(targets), -1)
    return TargetTransform(kind, [fitted(column) for column in columns.T])


def transform_of(info: DataInfo) -> TargetTransform | None:
    """Return the transformation of the target, if there is one."""
    stored = info.target_transform
    return None if stored is None else TargetTransform(stored["kind"], stored["columns"])


def _knots(values: Array) -> dict[str, list[float]]:
    """Return values and the normal scores of their ranks; equal values share the middle of theirs."""
    ordered, rows = np.sort(values), len(values)
    at = np.unique(np.linspace(0, rows - 1, min(rows, MAX_KNOTS)).astype(np.int64))
    knots = np.unique(ordered[at])
    before = np.searchsorted(ordered, knots, side="left")
    until = np.searchsorted(ordered, knots, side="right")
    shares = (before + until) / (2 * rows)  # strictly between 0 and 1
    normal = NormalDist()
    return {"values": knots.tolist(), "scores": [normal.inv_cdf(share) for share in shares.tolist()]}


def _moments(values: Array) -> dict[str, float]:
    # From the first value to the last, as the order of numpy.sum depends on the processor.
    mean = float(np.cumsum(values)[-1] / len(values))
    scale = float(np.sqrt(np.cumsum((values - mean) ** 2)[-1] / len(values)))
    return {"mean": mean, "scale": scale if np.isfinite(scale) and scale > 0 else 1.0}
