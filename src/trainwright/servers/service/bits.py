"""The statement of a service about its batches: whether a row gets the same bits in each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trainwright.datasets.tables.table import Table
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.exporters.certificates.samples import edge_rows
from trainwright.inference.bad_rows import count_of, take
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.records.artifact import ArtifactDir
from trainwright.servers.service.served import ServedModel
from trainwright.types import Array, Ids

ROWS = 14  # example rows that are predicted one by one
SIZES = (2, 7, 64)  # rows of the batches that they are compared with
_PATIENCE = 2.0  # seconds that `/version` waits


class Batching:
    """The statements about the batches of models: measured when one is asked for, in the thread of the model.

    Args:
        ask: Calls a function in that thread; gets the rows that this counts for.
    """

    def __init__(self, ask: Callable[[Any, int], Awaitable[Any]]) -> None:
        self._ask = ask
        self._found: WeakKeyDictionary[ServedModel, asyncio.Task[str]] = WeakKeyDictionary()

    async def statement(self, model: ServedModel) -> str | None:
        """Return `bitwise`, the largest difference, or that it is being measured; None: not of this task."""
        task = task_for(model.predictor.info)
        if task.generates_text or task.sums:
            return None
        measuring = self._found.get(model)
        if measuring is None or (measuring.done() and measuring.exception() is not None):
            self._found[model] = measuring = asyncio.create_task(self._measured(model))
        try:
            return await asyncio.wait_for(asyncio.shield(measuring), _PATIENCE)
        except TimeoutError:
            return "being measured"
        except Exception as error:  # the service answers all the same
            return f"not measured ({type(error).__name__})"

    async def _measured(self, model: ServedModel) -> str:
        rows = _examples(model.predictor)
        count = min(ROWS, count_of(rows))
        alone = [await self._outputs(model, rows, np.array([row])) for row in range(count)]
        expected, difference = np.concatenate(alone), 0.0
        for ids in _batches(count):
            found = await self._outputs(model, rows, ids)
            difference = max(difference, _largest(found, expected[ids]))
        return _in_words(model, difference, count)

    async def _outputs(self, model: ServedModel, rows: Any, ids: Ids) -> Array:
        found: Array = await self._ask(partial(model.predictor.outputs, take(rows, ids)), 1)
        return found


def _examples(predictor: Predictor) -> Any:
    """Return rows to predict: synthetic ones, of arrays of numbers random ones."""
    inputs = inputs_of(predictor)
    if predictor.preparation is None and all(one.dtype.startswith("float") for one in inputs):
        draw = np.random.default_rng(0)
        return {one.name: draw.normal(size=(ROWS, *one.shape)).astype(one.dtype) for one in inputs}
    rows = edge_rows(predictor, inputs, within=True).rows
    return replace(rows, is_derived=True) if isinstance(rows, Table) else rows


def _batches(count: int) -> Iterator[Ids]:
    """Yield the positions of rows in batches: all of `count` rows in batches of each size."""
    for size in SIZES:
        for start in range(0, count, size):
            yield np.arange(start, start + size) % count


def _largest(found: Array, expected: Array) -> float:
    """Return the largest difference of two arrays of numbers; 0 where the bits are equal."""
    if found.dtype == expected.dtype and found.tobytes() == expected.tobytes():
        return 0.0
    differences = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return float(np.nanmax(differences, initial=0.0)) or float(np.finfo(found.dtype).smallest_subnormal)


def _in_words(model: ServedModel, difference: float, rows: int) -> str:
    if difference:
        return f"differs up to {difference:.1g} on {rows} example rows"
    # A model that is called with all rows, each by itself; what an exported model does is not known.
    is_by_row = model.predictor.model.rows_together == 1 and not isinstance(model.predictor.run, ArtifactDir)
    return "bitwise" if is_by_row else f"bitwise on {rows} example rows"
