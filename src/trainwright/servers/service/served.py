"""A loaded model that answers requests in batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError, InputError
from trainwright.inference.predictor import Predictor
from trainwright.servers.service.batching import Job
from trainwright.servers.service.errors import Place, RequestError
from trainwright.servers.service.forms import form_of
from trainwright.servers.service.forms.base import Rows
from trainwright.types import Array

_COLUMN = re.compile(r"column '((?:[^'\\]|\\.)*)'")


class Asked(NamedTuple):
    """Rows of a request, and what it wants to know of them.

    Attributes:
        model: The model that it is answered by.
        rows: The rows.
        threshold: As in `Predictor.predict`.
        is_lenient: Whether a row that cannot be predicted gets an error, and the others predictions.
    """

    model: ServedModel
    rows: Rows
    threshold: float | None = None
    is_lenient: bool = False

    @property
    def key(self) -> object:
        """The key of requests that are answered together: those to one model, whose rows can be joined."""
        return self.model if self.rows.is_joinable and not self.is_lenient else None


class Answer(NamedTuple):
    """The predictions of a request.

    Attributes:
        columns: Lists of cells by name, as `Predictor.predict` names them.
        errors: What is wrong with rows that cannot be predicted, by position.
        outputs: What the predictions were made of, (rows, ...).
    """

    columns: dict[str, list[Any]]
    errors: dict[int, str]
    outputs: Array


class ServedModel:
    """A predictor behind a queue.

    Args:
        predictor: The predictor.
        name: What the user called it.
        identity: What tells it from another model of this name.
        is_shadow: Whether its predictions are compared only.
    """

    def __init__(self, predictor: Predictor, name: str, identity: str, *, is_shadow: bool = False) -> None:
        self.predictor = predictor
        self.name = name
        self.identity = identity
        self.is_shadow = is_shadow
        self.form = form_of(predictor)

    def answer(self, jobs: Sequence[Job]) -> Sequence[Answer | Exception]:
        """Return the answers of requests whose rows are predicted together.

        Where that fails, each is predicted by itself, so that a mistake is said to the one who made it.
        """
        asked: list[Asked] = [job.work for job in jobs]
        if asked[0].key is not None:
            try:
                return self._together(asked)
            except (DataError, InputError, RequestError):
                pass
        return [self._alone(one) for one in asked]

    def _together(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        rows = self.form.quick([one.rows.content for one in asked])
        outputs = self.predictor.outputs(rows)
        bounds = np.cumsum([0, *(one.rows.number for one in asked)])
        if len({one.threshold for one in asked}) == 1:
            columns = plain(self.predictor.table_of(rows, outputs, asked[0].threshold))
            return [
                Answer({name: cells[start:stop] for name, cells in columns.items()}, {}, outputs[start:stop])
                for start, stop in pairwise(bounds)
            ]
        parts = [outputs[start:stop] for start, stop in pairwise(bounds)]
        return [
            Answer(plain(self.predictor.table_of(one.rows.content, part, one.threshold)), {}, part)
            for one, part in zip(asked, parts, strict=True)
        ]

    def _alone(self, asked: Asked) -> Answer | Exception:
        content = asked.rows.content
        try:
            rows = self.form.joined([content]) if asked.rows.is_joinable else content
            outputs, errors = self.predictor.outputs_or_errors(rows)
            if errors and not asked.is_lenient:
                return _refused(errors)
            outputs = self.predictor.placeholders(asked.rows.number) if outputs is None else outputs
            columns = plain(self.predictor.table_of(rows, outputs, asked.threshold))
        except (DataError, InputError) as error:
            said = _short(str(error))
            return RequestError(422, "invalid_rows", said, [Place(None, _column(said), said)])
        except RequestError as error:
            return error
        for cells in columns.values():
            for row in errors:
                cells[row] = None
        return Answer(columns, errors, outputs)


def _refused(errors: dict[int, str]) -> RequestError:
    """Return the error of a request with rows that cannot be predicted."""
    places = [Place(row + 1, _column(text), text) for row, text in errors.items()]
    first = places[0]
    more = f" (and {len(places) - 1} more rows)" if len(places) > 1 else ""
    return RequestError(422, "invalid_rows", f"row {first.row}: {first.message}{more}", places[:20])


def _column(message: str) -> str | None:
    found = _COLUMN.search(message)
    return found[1] if found else None


def _short(message: str) -> str:
    """Return the first lines of a message."""
    return "\n".join(message.splitlines()[:4]).replace(f"{Table.source}", "the request")


def plain(columns: dict[str, Any]) -> dict[str, list[Any]]:
    """Return columns as lists of cells that JSON can hold."""
    return {
        name: values.tolist() if isinstance(values, np.ndarray) else [_cell(one) for one in values]
        for name, values in columns.items()
    }


def _cell(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
