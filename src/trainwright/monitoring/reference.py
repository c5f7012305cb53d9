"""The training rows and predictions of a run, as windows of served rows are compared with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainwright.errors import CheckpointError
from trainwright.monitoring.calibration import REPLICATES, Block, Thresholds, calibrate
from trainwright.monitoring.columns import Column, Role, column_from_json, fit
from trainwright.types import Array

FILE = "monitoring/reference.json"  # of a run
CONFIDENCE = "confidence"  # the largest probability of a row
_FORMAT = 1
_PROBABILITY = "probability_"
_MOST_OUTPUTS = 50
_FEWEST = 50  # rows that predictions are compared with


@dataclass(frozen=True)
class Reference:
    """The training rows of a run, column by column, its predictions for rows that it was not trained on.

    Attributes:
        run: The id of the run.
        columns: The columns of the training rows, and of the outputs.
        rows: The number of training rows.
        held_out: The number of rows whose predictions are known; 0: no output is compared.
        thresholds: The scores that windows without drift reach.
    """

    run: str
    columns: Sequence[Column]
    rows: int
    held_out: int
    thresholds: Thresholds

    @cached_property
    def id(self) -> str:
        """A hash of the columns: windows with one id add up."""
        plain = [column.to_json() for column in self.columns]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def of(
        cls,
        run: str,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Any],
        targets: Sequence[str] = (),
        seed: int = 0,
        rows: int | None = None,
        replicates: int = REPLICATES,
    ) -> Reference:
        """Return the reference of training rows.

        Args:
            run: The id of the run.
            inputs: The columns of the training rows, (rows,) each, targets among them.
            outputs: The predictions for other rows than these, as `Predictor.table` gives them.
            targets: The names of the targets.
            seed: The seed of the resampling.
            rows: The number of training rows, which may have no columns.
            replicates: The number of windows that are drawn to calibrate the thresholds.
        """
        found = max((len(values) for values in inputs.values()), default=0)
        watched = watched_outputs(outputs)
        held_out = max((len(values) for values in watched.values()), default=0)
        if held_out < _FEWEST:
            held_out, watched = 0, {}
        roles: dict[str, Role] = {name: "target" if name in targets else "input" for name in inputs}
        named = {name: values for name, values in inputs.items() if name not in watched}
        first = _fitted({name: (values, roles[name]) for name, values in named.items()})
        second = _fitted({name: (values, "output") for name, values in watched.items()})
        blocks = [_block(one) for one in (first, second)]
        thresholds = calibrate([block for block in blocks if block.columns], seed, replicates)
        return cls(run, [column for column, _ in (*first, *second)], rows or found, held_out, thresholds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "format": _FORMAT,
            "run": self.run,
            "rows": self.rows,
            "held_out": self.held_out,
            "columns": [column.to_json() for column in self.columns],
            "thresholds": self.thresholds.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reference:
        """Restore the reference that `to_json` was called on.

        Raises:
            CheckpointError: It makes no sense, or another version of Trainwright wrote it.
        """
        if data.get("format") != _FORMAT:
            raise CheckpointError(
                f"the reference of the training rows has format {data.get('format')!r}, not {_FORMAT}; "
                f"delete {FILE} in the run's folder, and it is made again from the run's data"
            )
        try:
            columns = [column_from_json(one) for one in data["columns"]]
            thresholds = Thresholds.from_json(data["thresholds"])
            return cls(data["run"], columns, data["rows"], data["held_out"], thresholds)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the reference of the training rows is damaged ({type(error).__name__}: {error}); delete "
                f"{FILE} in the run's folder, and it is made again from the run's data"
            ) from error


def _fitted(columns: Mapping[str, tuple[Array, Role]]) -> list[tuple[Column, Array]]:
    found = (fit(name, np.asarray(values), role) for name, (values, role) in columns.items())
    return [one for one in found if one is not None]


def _block(fitted: Sequence[tuple[Column, Array]]) -> Block:
    deciding = [(column, cells) for column, cells in fitted if column.decides]
    cells = np.stack([cells for _, cells in deciding], axis=1) if deciding else np.empty((0, 0), np.int64)
    return Block([column for column, _ in deciding], cells)


def watched_outputs(table: Mapping[str, Any]) -> dict[str, Array]:
    """Return what is watched of the columns of predictions: the predictions, and the confidence of each row.

    Args:
        table: The columns, as `Predictor.table` gives them; masks are left out.
    """
    arrays = {name: np.asarray(values) for name, values in table.items()}
    probabilities = [values for name, values in arrays.items() if name.startswith(_PROBABILITY)]
    watched = {name: values for name, values in arrays.items() if not name.startswith(_PROBABILITY)}
    chosen = {name: values for name, values in list(watched.items())[:_MOST_OUTPUTS] if values.ndim == 1}
    if probabilities and all(values.ndim == 1 and values.dtype.kind == "f" for values in probabilities):
        chosen[CONFIDENCE] = np.max(probabilities, axis=0)
    return chosen
