"""A shadow model: it predicts what others have answered, and its differences are counted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator

from trainwright.errors import TrainwrightError
from trainwright.servers.service.batching import Batcher
from trainwright.servers.service.errors import RequestError
from trainwright.servers.service.forms.base import Rows
from trainwright.servers.service.metrics import Metrics
from trainwright.servers.service.models import Models
from trainwright.servers.service.served import Answer, Asked, ServedModel

_WAITING = 64  # requests that wait for the shadow model; more are dropped


class Shadow:
    """The shadow model of a service, if it has one.

    It comes second: rows are dropped, and counted, while others wait for the model.

    Args:
        models: The models of the service.
        batcher: Its queue.
        metrics: Gets the differences.
    """

    def __init__(self, models: Models, batcher: Batcher, metrics: Metrics) -> None:
        self._models = models
        self._batcher = batcher
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, read: Callable[[ServedModel], Rows], answer: Answer) -> None:
        """Predict the rows of a request that was answered, later."""
        if "shadow" not in self._models.by_role:
            return
        if len(self._tasks) >= _WAITING or self._batcher.waiting:
            self._metrics.shadow.labels("dropped").inc(len(next(iter(answer.columns.values()), [])))
            return
        task = asyncio.get_running_loop().create_task(self._compare(read, answer))
        self._tasks.add(task)  # or else nobody holds it
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, read: Callable[[ServedModel], Rows], answer: Answer) -> None:
        model, rows = self._models.by_role["shadow"], len(next(iter(answer.columns.values()), []))
        try:
            given = await asyncio.to_thread(read, model)
            asked = Asked(model, given, is_lenient=True)
            found: Answer = await self._batcher.ask(asked, given.number, asked.key)
        except (RequestError, TrainwrightError):
            self._metrics.shadow.labels("failed").inc(rows)
            return
        for is_equal, difference in _differences(answer, found):
            self._metrics.shadow.labels("equal" if is_equal else "different").inc()
            if difference is not None:
                self._metrics.difference.observe(difference)


def _differences(main: Answer, shadow: Answer) -> Iterator[tuple[bool, float | None]]:
    """Yield for each row whether all cells are equal, and the largest difference of two numbers."""
    names = [name for name in main.columns if name in shadow.columns]
    for row in range(len(next(iter(main.columns.values()), []))):
        pairs = [(main.columns[name][row], shadow.columns[name][row]) for name in names]
        numbers = [
            abs(one - other)
            for one, other in pairs
            if isinstance(one, int | float) and isinstance(other, int | float)
        ]
        largest = max(numbers, default=None)
        is_equal = names == list(shadow.columns) and all(one == other for one, other in pairs)
        yield is_equal, None if largest is None or math.isnan(largest) else largest
