"""What happens in a run goes to the journal first, then to the callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from trainyard.callbacks.base import Callback, RunView
from trainyard.engine.journal import Journal
from trainyard.types import Metrics

log = logging.getLogger("trainyard")


class Recorder:
    """Writes the journal and tells the callbacks; a callback that raises is left out from then on."""

    def __init__(self, journal: Journal, callbacks: Sequence[Callback]) -> None:
        self.journal = journal
        self._callbacks = list(callbacks)

    def add(self, callback: Callback) -> None:
        self._callbacks.append(callback)

    def started(self, run: RunView) -> None:
        self._tell(lambda callback: callback.on_start(run))

    def losses(self, first: int, values: Sequence[float]) -> None:
        self.journal.losses(first, values)

    def logged(self, step: int, metrics: Metrics) -> None:
        self.journal.values("metrics", step, metrics)
        self._tell(lambda callback: callback.on_log(step, metrics))

    def evaluated(self, step: int, metrics: Metrics) -> None:
        self.journal.values("evaluation", step, metrics)
        self._tell(lambda callback: callback.on_evaluation(step, metrics))

    def final(self, step: int, metrics: Metrics) -> None:
        """The metrics of the evaluation at the end; only those of the test split are new to the journal."""
        self.journal.values(
            "evaluation", step, {name: value for name, value in metrics.items() if name.startswith("test_")}
        )

    def histograms(self, step: int, values: dict[str, Any]) -> None:
        self.journal.values("histograms", step, values)

    def resources(self, step: int, values: dict[str, Any]) -> None:
        self.journal.values("metrics", step, {f"system_{name}": value for name, value in values.items()})

    def event(self, step: int, name: str, **detail: Any) -> None:
        self.journal.event(step, name, **detail)
        self._tell(lambda callback: callback.on_event(step, name, detail))

    def saving(self, step: int) -> None:
        self._tell(lambda callback: callback.on_checkpoint(step))

    def ended(self, step: int, status: str, metrics: Metrics) -> None:
        self.journal.end(step, status)
        self._tell(lambda callback: callback.on_end(status, metrics))

    def _tell(self, hook: Callable[[Callback], None]) -> None:
        for callback in list(self._callbacks):
            try:
                hook(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                log.warning(
                    "callback %s failed and is left out from here on: %s", type(callback).__name__, error
                )
