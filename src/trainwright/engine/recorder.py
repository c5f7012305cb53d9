"""Record what happens in a run: in the journal first, then through the callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from trainwright.callbacks.base import Callback, RunView
from trainwright.engine.journal import Journal
from trainwright.process.observation.unobserved import unobserved
from trainwright.records.decision import Decision
from trainwright.records.status import Ended
from trainwright.types import Metrics

log = logging.getLogger("trainwright")


class Recorder:
    """Write the journal and call the callbacks; a callback that raises is removed."""

    def __init__(self, journal: Journal, callbacks: Sequence[Callback]) -> None:
        self.journal = journal
        self._callbacks = list(callbacks)

    def add(self, callback: Callback) -> None:
        """Add a callback, to be called after those that are there."""
        self._callbacks.append(callback)

    def started(self, run: RunView) -> None:
        """Tell the callbacks that the attempt starts."""
        self._call(lambda callback: callback.on_start(run))

    def losses(self, first: int, values: Sequence[float]) -> None:
        """Record the losses of the steps `first`, `first` + 1, ..."""
        self.journal.losses(first, values)

    def logged(self, step: int, metrics: Metrics) -> None:
        """Record the training metrics of a step."""
        self.journal.values("metrics", step, metrics)
        self._call(lambda callback: callback.on_log(step, metrics))

    def evaluated(self, step: int, metrics: Metrics) -> None:
        """Record an evaluation of the validation split."""
        self.journal.values("evaluation", step, metrics)
        self._call(lambda callback: callback.on_evaluation(step, metrics))

    def final(self, step: int, metrics: Metrics) -> None:
        """Record the evaluation at the end; only the metrics of the test split are new to the journal."""
        self.journal.values(
            "evaluation", step, {name: value for name, value in metrics.items() if name.startswith("test_")}
        )

    def histograms(self, step: int, values: dict[str, Any]) -> None:
        """Record weight histograms, by the names of the tensors."""
        self.journal.values("histograms", step, values)

    def resources(self, step: int, values: dict[str, Any]) -> None:
        """Record how much of the machine the process uses."""
        self.journal.values("metrics", step, {f"system_{name}": value for name, value in values.items()})

    def event(self, step: int, name: str, **detail: Any) -> None:
        """Record an event, such as `best` or `checkpoint_failed`."""
        self.journal.event(step, name, **detail)
        self._call(lambda callback: callback.on_event(step, name, detail))

    def decided(self, decision: Decision) -> None:
        """Record a decision; when this returns, it is on the disk."""
        self.journal.decision(decision)
        if decision.kind != "keep":  # which changes nothing
            self._call(lambda callback: callback.on_event(decision.step, decision.kind, decision.detail))

    def saving(self, step: int) -> None:
        """Tell the callbacks that a checkpoint of a step is being saved."""
        self._call(lambda callback: callback.on_checkpoint(step))

    def ended(self, step: int, status: Ended, metrics: Metrics) -> None:
        """Record the end of the attempt, and tell the callbacks."""
        self.journal.end(step, status)

        def tell(callback: Callback) -> None:
            callback.last_step = step
            callback.on_end(status, metrics)

        self._call(tell)

    def _call(self, hook: Callable[[Callback], None]) -> None:
        for callback in list(self._callbacks):
            try:
                with unobserved():  # what it reads is no input of the run: it observes
                    hook(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                log.warning(
                    "callback %s failed and is not called any more: %s", type(callback).__name__, error
                )
