"""One process life of a run that another trainer makes: journal, trackers, checkpoints, result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.callbacks.resources import Resources
from trainwright.engine.writer import PendingWrite, Writer
from trainwright.errors import RunLockedError
from trainwright.integrations.checkpoints import Checkpoint, TrainerCheckpoints
from trainwright.integrations.description import to_json_value
from trainwright.records.journal import number, read
from trainwright.records.result import BestModel, Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import Ended
from trainwright.redact import redacted
from trainwright.runs.session import Session
from trainwright.trackers.feed.card import read_feed_inputs

log = logging.getLogger("trainwright")
Json = dict[str, Any]


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that the trainer has written or is writing; `wait` returns when it is written."""

    path: Path
    step: int
    epochs: float
    resumable: bool = True
    wait: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class TrainingEnd:
    """The state of a training at its end.

    `samples` is the number of samples in an epoch. `best` is as in `result.json`. `is_best` says whether the
    final weights are those of the best model.
    """

    step: int
    epochs: float
    samples: int | None = None
    digest: str | None = None
    best: Json | None = None
    is_best: bool = False


class TrainerAttempt:
    """One process life of a run; the constructor begins it, `end` ends it.

    The run must be owned by this process, and its config and manifest written. Methods let the OSError of a
    disk pass; they must be called from one thread.
    """

    def __init__(self, run: RunDir, step: int, train_seconds: float = 0.0) -> None:
        """Open the journal and start the trackers.

        Args:
            run: The run, owned by this process.
            step: The step from which the training continues.
            train_seconds: The training time up to that step.
        """
        self.run = run
        self.last_step = step
        self._session = Session(run)
        if manifest := run.manifest():
            self._session.note_environment(manifest.environment.numeric())
        self._began = time.monotonic() - train_seconds
        self._journal = self._session.open_journal(step)
        self._checkpoints = TrainerCheckpoints(run.path)
        self._writer = Writer()
        self._resources = Resources(self._system)
        self._result: Result | None = None
        self._feed()

    def _feed(self) -> None:
        self._session.feed([name for name, _ in read_feed_inputs(self.run.path).trackers])

    def values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Journal values.

        Args:
            kind: `metrics`, or `evaluation` with names that begin with `val_` or `test_`.
            step: The step that they are of.
            values: The values by name; nested mappings get dotted names.
        """
        self.last_step = max(step, self.last_step)
        self._write_values(kind, step, values)
        if kind == "metrics":
            self._resources.on_log(step, {})
        self._report_failed_saves(step)

    def event(self, step: int, name: str, **detail: Any) -> None:
        """Journal an event."""
        self._journal.event(step, name, **to_json_value(detail))
        self._journal.flush()

    def commit(self, saved: SavedCheckpoint) -> None:
        """Hash a checkpoint in the background; the training continues."""
        self.last_step = max(saved.step, self.last_step)
        self._journal.flush()
        seconds = time.monotonic() - self._began
        checkpoint = Checkpoint(
            saved.path.absolute(), saved.step, self._session.number, saved.epochs, seconds, saved.resumable
        )

        def work() -> None:
            saved.wait()
            self._journal.sync()
            self._checkpoints.commit(checkpoint)

        self._writer.submit(PendingWrite(saved.step, work, replaceable=False))

    def end(self, status: Ended, end: TrainingEnd, error: str = "") -> None:
        """Write the result and the report, and release the run."""
        try:
            self._writer.drain()
            self._report_failed_saves(end.step)
            self._writer.close()
            self._checkpoints.prune()
            if error:
                self.event(end.step, status, message=redacted(error))
            self._journal.flush()
            self._result = self._make_result(status, end, redacted(error) or None)
            self._publish(self._result)
        finally:
            self._session.close(status, redacted(error))
            self._session.lease.release()
            self.run.release()

    def record_after_end(self, kind: str, values: Mapping[str, Any]) -> None:
        """Journal values that arrive after the training; an evaluation is of the final weights."""
        result = self._result
        if result is None:
            return
        self.run.acquire()
        try:
            if self.run.next_attempt() != self._session.number + 1:
                raise RunLockedError(
                    f"run {self.run.id} was resumed in the meantime: its result is not this one's"
                )
            self._session.lease.go_on()
            best = result.best if result.evaluated == "best" else None
            self._write_values(kind, best.step if best else result.steps, values)
            metrics = {name: value for name, value in _numbers(values).items() if _is_metric(name)}
            if kind == "evaluation" and metrics:
                before = result.metrics if result.evaluated else {}  # otherwise they are of earlier weights
                result = result.with_values(metrics=before | metrics, evaluated=result.evaluated or "final")
            self._result = result
            self._feed()
            self._publish(result)
        finally:
            self.run.release()

    def _publish(self, result: Result) -> None:
        self._session.publish(result, lambda: self._journal.end(result.steps, result.status))

    def _write_values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        numbers = _numbers(values)
        self._journal.values(kind, step, numbers)
        others = {
            name: value for name, value in values.items() if name not in numbers and not _is_nested(value)
        }
        if others:
            self._journal.event(step, "not_a_number", values=to_json_value(others))
        self._journal.flush()

    def _system(self, step: int, values: Mapping[str, Any]) -> None:
        self._journal.values("metrics", step, {f"system_{name}": value for name, value in values.items()})

    def _report_failed_saves(self, step: int) -> None:
        for saved, message in self._writer.failures():
            log.warning("%s", message)
            self._journal.event(step, "checkpoint_failed", saved_step=saved, message=message)

    def _make_result(self, status: Ended, end: TrainingEnd, error: str | None) -> Result:
        seconds = time.monotonic() - self._began
        metrics, evaluated = self._last_metrics(end)
        return Result(
            status=status,
            run_id=self.run.id,
            experiment=self.run.experiment,
            steps=end.step,
            epochs=end.epochs,
            metrics=metrics,
            evaluated=evaluated,
            best=None if end.best is None else BestModel.model_validate(end.best),
            digest=end.digest,
            attempts=self._session.number,
            determinism=self.run.require_manifest().determinism,
            train_seconds=seconds,
            samples_per_second=end.samples * end.epochs / max(1e-9, seconds) if end.samples else None,
            error=error,
        )

    def _last_metrics(self, end: TrainingEnd) -> tuple[dict[str, float], str | None]:
        """Return the metrics of the final weights or, if those were not evaluated, the last metrics."""
        metrics: dict[int, dict[str, float]] = {}
        for record in read(self.run.journal):
            if record["kind"] == "evaluation":
                values = {name: number(value) for name, value in record["values"].items() if _is_metric(name)}
                metrics.setdefault(record["step"], {}).update(values)
        last = max(metrics, default=0)
        if end.is_best and end.best and end.best["step"] in metrics:
            return metrics[end.best["step"]], "best"
        return metrics.get(last, {}), "final" if metrics and last == end.step else None


def _is_metric(name: str) -> bool:
    return name.startswith(("val_", "test_"))


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the values that are numbers; those of nested mappings get dotted names."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if _is_nested(value):
            numbers |= _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float) or _is_scalar_array(value):
            numbers[prefix + name] = float(value)
    return numbers


def _is_scalar_array(value: Any) -> bool:
    """Return whether it is a NumPy or torch value without dimensions."""
    return getattr(value, "shape", None) == ()


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping)
