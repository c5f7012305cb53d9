"""A training process that kills itself, for the contract suite of frameworks.

    python -m trainyard.testing.victim PHASE COUNT CONFIG RUNS_DIR     trains a new run
    python -m trainyard.testing.victim PHASE COUNT --resume RUN_DIR    resumes one

With a step as a fifth word, the run is asked to stop in that step, and PHASE counts from that decision on.
The process sends itself SIGKILL the COUNTth time (from 1) that it is in PHASE, so that no handler, no
`finally` and no buffered write runs. This module patches Trainyard from outside; the engine has no hook for
it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainyard import api, registry
from trainyard.config import load
from trainyard.engine.journal import Journal
from trainyard.engine.outside import Outside
from trainyard.engine.writer import PendingWrite, Writer
from trainyard.records.decision import Decision, Decisions
from trainyard.runs import attempt
from trainyard.runs.catalog import Catalog
from trainyard.runs.wiring import framework_name
from trainyard.stores.local import LocalStore

PHASES = ("start-up", "step", "decision", "evaluation", "write", "commit", "final-evaluation", "end", "never")
"""Where a process can be killed, in this order: while the run is built; in a step; when a decision is in the
journal; in an evaluation; while a checkpoint's files are written; before its manifest is published; in the
evaluation after training; before the result is written; nowhere.
"""


class Countdown:
    """Send the process a signal at call number `count`."""

    def __init__(self, count: int, signum: signal.Signals) -> None:
        self._left = count
        self._signum = signum

    def __call__(self) -> None:
        """Count one call."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signum)


def arm(phase: str, count: int, framework: Any, signum: signal.Signals = signal.SIGKILL) -> None:
    """Patch the code of `phase` to send the signal."""
    tick = Countdown(count, signum)
    if phase in ("write", "commit"):
        Writer.submit = _drained(Writer.submit)  # type: ignore[method-assign]
    if phase == "start-up":
        attempt.build = _before(tick, attempt.build)  # type: ignore[attr-defined]
    elif phase == "step":
        framework.step = _after(tick, framework.step)
    elif phase == "decision":
        Journal.decision = _after(tick, Journal.decision)  # type: ignore[method-assign]
    elif phase == "evaluation":
        framework.predict = _within(tick, framework.predict)
    elif phase == "write":
        LocalStore.put = _before(tick, LocalStore.put)  # type: ignore[method-assign]
    elif phase == "commit":
        LocalStore.put_if_absent = _before(tick, LocalStore.put_if_absent)  # type: ignore[method-assign]
    elif phase == "final-evaluation":
        attempt.evaluate_outcome = _rearmed(tick, attempt.evaluate_outcome, framework)  # type: ignore[attr-defined]
    elif phase == "end":
        attempt.evaluate_outcome = _after(tick, attempt.evaluate_outcome)  # type: ignore[attr-defined]
    elif phase != "never":
        raise SystemExit(f"unknown phase {phase!r}; there are {', '.join(PHASES)}")


def _before(tick: Countdown, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tick()
        return function(*args, **kwargs)

    return wrapped


def _after(tick: Countdown, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        tick()
        return result

    return wrapped


def _drained(submit: Callable[..., None]) -> Callable[..., None]:
    """Finish each write before the next is submitted: the number of checkpoints must not depend on speed."""

    def wrapped(writer: Writer, write: PendingWrite) -> None:
        writer.drain()
        submit(writer, write)

    return wrapped


def _within(tick: Countdown, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
        parts = function(*args, **kwargs)
        yield next(parts)
        tick()
        yield from parts

    return wrapped


def _rearmed(tick: Countdown, function: Callable[..., Any], framework: Any) -> Callable[..., Any]:
    """Count only the predictions that are made in `function`."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        framework.predict = _within(tick, framework.predict)
        return function(*args, **kwargs)

    return wrapped


def stop_in(step: int, framework: Any, then: Callable[[], None]) -> None:
    """Ask the run to stop in a step (from 1), and call `then` when that has become a decision."""
    watching: list[tuple[Outside, Callable[[], None]]] = []
    start, take_step, write = Outside.start, framework.step, Journal.decision

    def started(self: Outside, wake: Callable[[], None], train_seconds: float, decisions: Decisions) -> None:
        watching.append((self, wake))
        start(self, wake, train_seconds, decisions)

    def stepped(self: Any, number: int, lr: float) -> Any:
        if number + 1 == step:
            watching[0][0].request = "stop"
            watching[0][1]()
        return take_step(self, number, lr)

    def decided(self: Journal, decision: Decision) -> None:
        write(self, decision)
        if decision.kind == "stop":
            then()

    Outside.start = started  # type: ignore[method-assign]
    Journal.decision = decided  # type: ignore[method-assign]
    framework.step = stepped


def main(phase: str, count: str, first: str, second: str, stop: str = "") -> None:
    """Train or resume with the kill in place; print the run's directory if the process survives."""
    config = Path(second) / "config.yaml" if first == "--resume" else Path(first)
    name = framework_name(load(config, adapters=Catalog()).config)
    framework = registry.adapter("framework", name)
    if stop and phase == "decision":
        stop_in(int(stop), framework, Countdown(int(count), signal.SIGKILL))
    elif stop:
        stop_in(int(stop), framework, lambda: arm(phase, int(count), framework))
    else:
        arm(phase, int(count), framework)
    run = api.resume(second) if first == "--resume" else api.train(config, runs_dir=second)
    sys.stdout.write(f"{run.path}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
