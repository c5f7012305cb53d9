"""Quality by labels that come later: predictions wait, by request, until their targets are known."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.evaluation.intervals import intervals
from trainwright.evaluation.metrics import (
    LOSS,
    EvaluationResult,
    adds_up,
    find_metric,
    mode_of,
    without_prefix,
)
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.types import Array, DataInfo

ROWS = 100_000


class Feedback:
    """The predictions of the last requests, and the targets that came for them; safe from many threads.

    It holds the outputs of at most `rows` rows that wait for their targets, and of `rows` rows that have
    them: the oldest are forgotten first.

    Args:
        info: The description of the run's data.
        metrics: The names of metrics, such as `evaluation.metrics.wanted_metrics` returns.
        expected: The metrics of the run's own evaluation by name (`f1`), to compare with.
        rows: The number of rows of each kind.
    """

    def __init__(
        self,
        info: DataInfo,
        metrics: Sequence[str],
        expected: Mapping[str, float] | None = None,
        rows: int = ROWS,
    ) -> None:
        self._info, self._task = info, task_for(info)
        bare = [without_prefix(name) if ":" not in name else name for name in metrics]
        self._metrics = [name for name in bare if name != LOSS and not adds_up(name)]
        self._expected = dict(expected or {})
        self._most = rows
        self._waiting: OrderedDict[str, Array] = OrderedDict()
        self._known: deque[tuple[Array, Array]] = deque()
        self._rows = {"waiting": 0, "known": 0}
        self._lock = threading.Lock()

    def predicted(self, request: str, outputs: Array) -> None:
        """Keep the outputs of a request, (rows, ...) as `Predictor.outputs` returns them.

        Those of an earlier request of the same id are replaced.
        """
        with self._lock:
            if (old := self._waiting.pop(request, None)) is not None:
                self._rows["waiting"] -= len(old)
            self._waiting[request] = outputs
            self._rows["waiting"] += len(outputs)
            while self._rows["waiting"] > self._most and len(self._waiting) > 1:
                self._rows["waiting"] -= len(self._waiting.popitem(last=False)[1])

    def labeled(self, request: str, targets: Array) -> int:
        """Take the targets of a request, and return the number of its rows.

        Args:
            request: The id of the request.
            targets: Its targets as batches hold them, (rows, ...); see `Predictor.encoded_targets`.

        Raises:
            InputError: No such request waits, or it has another number of rows.
        """
        with self._lock:
            if (outputs := self._waiting.get(request)) is None:
                raise InputError(
                    f"no prediction of request {request[:80]!r} waits for its targets: there was none, they "
                    f"came already, or it is older than the last {self._most:,} rows"
                )
            if len(outputs) != len(targets):
                raise InputError(
                    f"{len(targets)} targets given for request {request[:80]!r}, which has {len(outputs)} "
                    "rows"
                )
            del self._waiting[request]
            self._rows["waiting"] -= len(outputs)
            self._known.append((outputs, targets))
            self._rows["known"] += len(outputs)
            while self._rows["known"] > self._most and len(self._known) > 1:
                self._rows["known"] -= len(self._known.popleft()[0])
        return len(outputs)

    def quality(self) -> dict[str, Any]:
        """Return the metrics of the rows whose targets are known, with 95% intervals.

        `metrics` has for each `value`, `low`, `high` and `method` (None where there is no interval), the
        `expected` value of the run's own evaluation, and whether it is `worse` than that by more than the
        noise of the rows: the whole interval is.
        """
        with self._lock:
            parts, counts = list(self._known), dict(self._rows)
        found: dict[str, Any] = {**counts, "metrics": {}}
        if not parts:
            return found
        outputs, targets = (np.concatenate(side) for side in zip(*parts, strict=True))
        usable = np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1)
        result = EvaluationResult("test", {}, outputs[usable], targets[usable], np.flatnonzero(usable))
        if not len(result.ids):
            return found
        scores = result.scores(self._task)
        known = intervals(result, self._info, self._metrics)
        for name in self._metrics:
            value = float(find_metric(name, type(self._task)).function(scores))
            interval = known.get(name, {"low": None, "high": None, "method": None})
            found["metrics"][without_prefix(name)] = {
                "value": finite(value), **interval, **self._compared(name, interval)
            }  # fmt: skip
        return found

    def _compared(self, name: str, interval: Mapping[str, Any]) -> dict[str, Any]:
        expected = self._expected.get(without_prefix(name))
        if expected is None or interval["low"] is None:
            return {"expected": expected, "worse": None}
        is_loss = mode_of(name) == "min"
        worse = float(interval["low"]) > expected if is_loss else float(interval["high"]) < expected
        return {"expected": expected, "worse": worse}
