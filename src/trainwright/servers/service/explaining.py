"""Explanations of the predictions for rows of tables: what each column adds to them.

The rows to predict for one explanation wait in the queue in small pieces, one piece at a time of all
requests: predictions wait for one at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError, InputError
from trainwright.evaluation.contributions import MOST_COLUMNS, Mixtures
from trainwright.inference.bad_rows import in_short
from trainwright.monitoring.background import Background
from trainwright.runs.watching import background_of
from trainwright.servers.service.errors import RequestError, invalid, late
from trainwright.servers.service.forms.base import Rows
from trainwright.servers.service.served import Answer, Asked, ServedModel
from trainwright.types import Array

MOST_ROWS = 100  # of a request
MOST_PREDICTED = 500_000  # rows that are predicted for a request
_PIECE = 2048  # rows that are predicted while others wait
_MOST_WAITING = 16  # requests
_PROBABILITY = "probability_"
Ask = Callable[[Any, int], Awaitable[Any]]


class _Prepared(NamedTuple):
    """The background rows of a model, and their predictions.

    Attributes:
        background: The background rows, as many as are used.
        mixtures: The rows that are predicted.
        bases: The predictions for the background rows, (background,) by name.
    """

    background: Background
    mixtures: Mixtures
    bases: Mapping[str, Array]


class Explaining:
    """The answers to `POST /explain`.

    Args:
        ask: Calls a function in the thread of the model; gets the rows that this counts for.
        predict: Returns the predictions for rows, as `POST /predict` does.
        timeout: How long a request may take, in seconds.
    """

    def __init__(self, ask: Ask, predict: Callable[[Asked], Awaitable[Answer]], timeout: float) -> None:
        self._ask = ask
        self._predict = predict
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._prepared: WeakKeyDictionary[ServedModel, _Prepared] = WeakKeyDictionary()

    async def explain(self, model: ServedModel, rows: Rows, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the explanations of the predictions for rows.

        Raises:
            RequestError: The rows cannot be predicted or are too many, the model is not known well enough, or
                others wait.
        """
        if unknown := query.keys() - {"output"}:
            raise RequestError(422, "unknown_option", f"option {min(unknown)[:40]!r} given; there is: output")
        if self._waiting >= _MOST_WAITING:
            raise RequestError(
                429,
                "queue_full",
                f"{self._waiting} requests wait for explanations: try again in a second",
                headers={"Retry-After": "1"},
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                return await self._explained(model, rows, query.get("output"))
        except TimeoutError:
            raise late(self._timeout) from None
        finally:
            self._waiting -= 1

    async def _explained(self, model: ServedModel, rows: Rows, output: str | None) -> dict[str, Any]:
        prepared = await self._preparation(model)
        mixtures = prepared.mixtures
        most = max(1, min(MOST_ROWS, MOST_PREDICTED // max(1, len(mixtures))))
        if rows.number > most:
            raise invalid(
                f"{rows.number:,} rows given; this model explains {most} in a request, as {len(mixtures):,} "
                "rows are predicted for each"
            )
        answer = await self._predict(Asked(model, rows))
        names = [_explained_output(answer, prepared.bases, row, output) for row in range(rows.number)]
        cells = await self._in_turn(partial(_cells, model, rows, prepared.background))
        explanations = []
        for row, name in enumerate(names):
            values = [
                await self._in_turn(partial(_values, model, prepared, cells, row, name, start))
                for start in range(0, len(mixtures), _PIECE)
            ]
            explanations.append(_explanation(answer, prepared, row, name, values))
        return {
            "explanations": explanations,
            "method": "exact" if mixtures.is_exact else "permutations",
            "background": {"rows": mixtures.background, "of": prepared.background.origin},
            "predicted_rows": len(mixtures) * rows.number,
        }

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        """Call a function in the thread of the model, one of all requests at a time."""
        async with self._turn:
            return await self._ask(work, 1)

    async def _preparation(self, model: ServedModel) -> _Prepared:
        if (known := self._prepared.get(model)) is not None:
            return known
        background = await asyncio.to_thread(background_of, model.predictor.run, model.predictor)
        if background is None:
            raise RequestError(
                503,
                "no_background",
                "there are no training rows to compare with: they are being read (the log says if they "
                "cannot be read)",
                headers={"Retry-After": "5"},
            )
        if len(background.columns) > MOST_COLUMNS:
            raise RequestError(
                422,
                "too_many_columns",
                f"the model has {len(background.columns):,} columns; {MOST_COLUMNS:,} can be explained",
            )
        seed = model.predictor.config.experiment.seed
        mixtures = Mixtures(len(background.columns), len(background), seed)
        bases = await self._in_turn(partial(_predicted, model, background.columns))
        self._prepared[model] = made = _Prepared(background, mixtures, bases)
        return made


def _values(
    model: ServedModel, prepared: _Prepared, cells: Mapping[str, Array], row: int, name: str, start: int
) -> Array:
    """Return the predictions for the next mixtures of a row, (mixtures,)."""
    taken, ids = prepared.mixtures.at(start, start + _PIECE)
    mixed = {
        column: _mixed(taken[:, i], cells[column][row : row + 1], values[ids])
        for i, (column, values) in enumerate(prepared.background.columns.items())
    }
    return _predicted(model, mixed)[name]


def _mixed(is_own: Array, own: Array, others: Array) -> Array:
    """Return the own cell (1,) where `is_own` (rows,), and those of others (rows,) elsewhere."""
    if "O" in (own.dtype.kind, others.dtype.kind):
        own, others = own.astype(object), others.astype(object)
    return np.where(is_own, own, others)


def _predicted(model: ServedModel, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the numbers that are predicted for rows, (rows,) float64 by name."""
    table = Table(columns, is_typed=True, is_derived=True)
    found = model.predictor.table(model.predictor.outputs(table))
    numbers = {name: np.asarray(values) for name, values in found.items() if name.startswith(_PROBABILITY)}
    numbers = numbers or {name: np.asarray(values) for name, values in found.items()}
    return {name: values.astype(np.float64) for name, values in numbers.items()}


def _cells(model: ServedModel, rows: Rows, background: Background) -> dict[str, Array]:
    """Return the columns of the rows of a request, (rows,) each, read as their kinds."""
    content = model.form.joined([rows.content]) if rows.is_joinable else rows.content
    try:
        found = model.predictor.watched(content)
    except (DataError, InputError) as error:
        raise invalid(in_short(str(error))) from None
    return {name: found[name] for name in background.columns}


def _explained_output(answer: Answer, bases: Mapping[str, Array], row: int, output: str | None) -> str:
    """Return the name of the number that is explained for a row."""
    if output is not None and output in bases:
        return output
    predicted = answer.columns.get("prediction")
    own = "prediction" if "prediction" in bases else f"{_PROBABILITY}{predicted[row]}" if predicted else ""
    if output is None and own in bases:
        return own
    listed = ", ".join([*bases][:20])
    raise RequestError(422, "invalid_option", f"name one number of a row as ?output=; there are: {listed}")


def _explanation(
    answer: Answer, prepared: _Prepared, row: int, name: str, values: Sequence[Array]
) -> dict[str, Any]:
    """Return the explanation of one row as JSON holds it."""
    value = float(answer.columns[name][row])
    every = np.concatenate(values) if values else np.empty(0)
    found = prepared.mixtures.contributions(value, prepared.bases[name], every)
    columns = [*prepared.background.columns]
    own = {one: cells[row] for one, cells in answer.columns.items() if one in ("prediction", name)}
    return {
        **own,
        "explained": name,
        "base": found.base,
        "contributions": dict(zip(columns, found.values.tolist(), strict=True)),
        "standard_error": None
        if found.errors is None
        else dict(zip(columns, found.errors.tolist(), strict=True)),
    }
