"""One process life of a run that another trainer makes: journal, trackers, checkpoints, result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.callbacks.resources import Resources
from trainyard.engine.writer import PendingWrite, Writer
from trainyard.integrations.checkpoints import Checkpoint, TrainerCheckpoints
from trainyard.integrations.description import plain
from trainyard.records.journal import number, read
from trainyard.records.result import BestModel, Result
from trainyard.records.run_dir import RunDir
from trainyard.redact import redacted
from trainyard.runs.session import Session
from trainyard.trackers.feed.card import read_run

log = logging.getLogger("trainyard")
Json = dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that the trainer has written, or (`wait` returns when it has) is writing."""

    path: Path
    step: int
    epochs: float
    resumable: bool = True
    wait: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Ending:
    """How far a training came.

    `samples` are those of an epoch; `best` is as in `result.json`; `is_best`: the final weights are the best model's.
    """

    step: int
    epochs: float
    samples: int | None = None
    digest: str | None = None
    best: Json | None = None
    is_best: bool = False


class Attempt:
    """Begins when it is made, the run being owned and its config and manifest written; `end` ends it.

    Methods raise OSError where the disk does; they are for one thread.
    """

    def __init__(self, run: RunDir, step: int, train_seconds: float = 0.0) -> None:
        """`step` is where the training goes on; `train_seconds` is what it took up to there."""
        self.run = run
        self.last_step = step
        self._session = Session(run)
        self._begun = time.monotonic() - train_seconds
        self._journal = self._session.open_journal(step)
        self._checkpoints = TrainerCheckpoints(run.path)
        self._writer = Writer()
        self._resources = Resources(self._system)
        self._result: Result | None = None
        self._feed()

    def _feed(self) -> None:
        self._session.feed([name for name, _ in read_run(self.run.path).trackers])

    def values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """A record of kind `metrics`, or `evaluation` with names that have `val_` or `test_` before them."""
        self.last_step = max(step, self.last_step)
        self._values(kind, step, values)
        if kind == "metrics":
            self._resources.on_log(step, {})
        self._tell_failures(step)

    def event(self, step: int, name: str, **detail: Any) -> None:
        self._journal.event(step, name, **plain(detail))
        self._journal.flush()

    def commit(self, saved: Saved) -> None:
        """Has a checkpoint verified while the training goes on."""
        self.last_step = max(saved.step, self.last_step)
        self._journal.flush()
        seconds = time.monotonic() - self._begun
        checkpoint = Checkpoint(
            saved.path.absolute(), saved.step, self._session.number, saved.epochs, seconds, saved.resumable
        )

        def work() -> None:
            saved.wait()
            self._journal.sync()
            self._checkpoints.commit(checkpoint)

        self._writer.submit(PendingWrite(saved.step, work, replaceable=False))

    def end(self, status: str, ending: Ending, error: str = "") -> None:
        """Writes the result and the report, and gives the run up."""
        try:
            self._writer.drain()
            self._tell_failures(ending.step)
            self._writer.close()
            self._checkpoints.prune()
            if error:
                self.event(ending.step, status, message=redacted(error))
            self._journal.flush()
            self._result = self._so_far(status, ending, redacted(error) or None)
            self._publish(self._result)
        finally:
            if not self._session.has_ended:
                self._session.record(status, redacted(error))
            self.run.release()

    def late(self, kind: str, values: Mapping[str, Any]) -> None:
        """What comes after the training; an evaluation is of the final weights."""
        result = self._result
        if result is None:
            return
        self.run.acquire()
        try:
            best = result.best if result.evaluated == "best" else None
            self._values(kind, best.step if best else result.steps, values)
            metrics = {name: value for name, value in _numbers(values).items() if _is_metric(name)}
            if kind == "evaluation" and metrics:
                before = result.metrics if result.evaluated else {}  # else they are of earlier weights
                result = result.with_values(metrics=before | metrics, evaluated=result.evaluated or "final")
            self._result = result
            self._feed()
            self._publish(result)
        finally:
            self.run.release()

    def _publish(self, result: Result) -> None:
        self._session.publish(result, lambda: self._journal.end(result.steps, result.status))

    def _values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        numbers = _numbers(values)
        self._journal.values(kind, step, numbers)
        if others := {
            name: value for name, value in values.items() if name not in numbers and not _is_nested(value)
        }:
            self._journal.event(step, "not_a_number", values=plain(others))
        self._journal.flush()

    def _system(self, step: int, values: Mapping[str, Any]) -> None:
        self._journal.values("metrics", step, {f"system_{name}": value for name, value in values.items()})

    def _tell_failures(self, step: int) -> None:
        for saved, message in self._writer.failures():
            log.warning("%s", message)
            self._journal.event(step, "checkpoint_failed", saved_step=saved, message=message)

    def _so_far(self, status: str, ending: Ending, error: str | None) -> Result:
        seconds = time.monotonic() - self._begun
        metrics, evaluated = self._evaluated(ending)
        return Result(
            status=status,
            run_id=self.run.id,
            experiment=self.run.experiment,
            steps=ending.step,
            epochs=ending.epochs,
            metrics=metrics,
            evaluated=evaluated,
            best=None if ending.best is None else BestModel.model_validate(ending.best),
            digest=ending.digest,
            attempts=self._session.number,
            determinism=self.run.known_manifest().determinism,
            train_seconds=seconds,
            samples_per_second=ending.samples * ending.epochs / max(1e-9, seconds)
            if ending.samples
            else None,
            error=error,
        )

    def _evaluated(self, ending: Ending) -> tuple[dict[str, float], str | None]:
        """Return the metrics of the final weights or, where they were not evaluated, the last ones there are."""
        metrics: dict[int, dict[str, float]] = {}
        for record in read(self.run.journal):
            if record["kind"] == "evaluation":
                values = {name: number(value) for name, value in record["values"].items() if _is_metric(name)}
                metrics.setdefault(record["step"], {}).update(values)
        last = max(metrics, default=0)
        if ending.is_best and ending.best and ending.best["step"] in metrics:
            return metrics[ending.best["step"]], "best"
        return metrics.get(last, {}), "final" if metrics and last == ending.step else None


def _is_metric(name: str) -> bool:
    return name.startswith(("val_", "test_"))


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The values that are numbers, those of nested mappings by their dotted names."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if _is_nested(value):
            found |= _numbers(value, f"{prefix}{name}.")
        elif (
            isinstance(value, bool | int | float) or getattr(value, "shape", None) == ()
        ):  # the latter of NumPy or torch
            found[prefix + name] = float(value)
    return found


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping)
