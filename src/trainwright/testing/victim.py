"""A training process that kills itself, for the contract suite of frameworks.

    python -m trainwright.testing.victim PHASE COUNT CONFIG RUNS_DIR     trains a new run
    python -m trainwright.testing.victim PHASE COUNT --resume RUN        resumes one

RUNS_DIR may be the URL of a store, and RUN that of a run there. With a step as a fifth word, the run is asked
to stop in that step, and PHASE counts from that decision on. The process sends itself SIGKILL the COUNTth
time (from 1) that it is in PHASE, so that no handler, no `finally` and no buffered write runs. Stores are
wrapped; the rest is patched from outside, as the engine has no hook for it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainwright import api, plugins
from trainwright.config import load
from trainwright.engine.journal import Journal
from trainwright.engine.outside import Outside
from trainwright.engine.writer import PendingWrite, Writer
from trainwright.records.decision import Decision, Decisions
from trainwright.runs import attempt, startup
from trainwright.runs.catalog import Catalog
from trainwright.runs.frameworks import framework_name
from trainwright.testing.faults import WRITES, Faults, FaultyStore, wrap_learners

PHASES = (
    *("start-up", "step", "decision", "evaluation", "write", "commit", "entry", "committed"),
    *("final-evaluation", "end", "request", "answer", "never"),
)
"""Where a process can be killed, in this order: while the run is built; in a step; when a decision is in
the journal; in an evaluation; while a checkpoint's files are put together; before they are published;
before an entry of the log is written (the first takes the lease); after that; in the evaluation after
training; before the result is written; before a request to the store of the run's URL has its effect; after
that; nowhere.
"""
_STORE_FAULTS: dict[str, dict[str, Any]] = {
    "write": {"operations": ["move"]},
    "commit": {"operations": ["publish"]},
    "entry": {"operations": ["put_if_absent"], "keys": "log/"},
    "committed": {"operations": ["put_if_absent"], "keys": "log/", "when": "after"},
    "request": {"operations": WRITES},
    "answer": {"operations": WRITES, "when": "after"},
}


class Countdown:
    """Send the process a signal at call number `count`."""

    def __init__(self, count: int, signum: signal.Signals) -> None:
        self._left = count
        self._signum = signum
        self.is_counting = True

    def __call__(self) -> None:
        """Count one call."""
        if not self.is_counting:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signum)


def arm(
    phase: str,
    count: int,
    framework: Any,
    signum: signal.Signals = signal.SIGKILL,
    tick: Countdown | None = None,
) -> None:
    """Patch the code of `phase` to send the signal; `tick` counts instead of a new countdown."""
    tick = tick or Countdown(count, signum)
    if phase in _STORE_FAULTS:
        Writer.submit = _drained(Writer.submit)  # type: ignore[method-assign]
    if phase == "start-up":
        startup.build = _before(tick, startup.build)  # type: ignore[attr-defined]
    elif phase == "step":
        wrap_learners(framework, step=lambda step: _after(tick, step))
    elif phase == "decision":
        Journal.decision = _after(tick, Journal.decision)  # type: ignore[method-assign]
    elif phase == "evaluation":
        wrap_learners(framework, predict=lambda predict: _within(tick, predict))
    elif phase in _STORE_FAULTS:
        _wrap_stores(Faults(tick, **_STORE_FAULTS[phase]), remote_only=phase in ("request", "answer"))
    elif phase == "final-evaluation":
        final = Countdown(count, signum)
        final.is_counting = False
        attempt.evaluate_outcome = _counted_in(final, attempt.evaluate_outcome)  # type: ignore[attr-defined]
        wrap_learners(framework, predict=lambda predict: _within(final, predict))
    elif phase == "end":
        attempt.evaluate_outcome = _after(tick, attempt.evaluate_outcome)  # type: ignore[attr-defined]
    elif phase != "never":
        raise SystemExit(f"unknown phase {phase!r}; there are {', '.join(PHASES)}")


def _wrap_stores(fault: Faults, *, remote_only: bool) -> None:
    """Let the folder of the run and the store of its URL meet a fault; `remote_only`: the latter alone."""
    for name in plugins.BUILT_IN["store"]:
        make = plugins.adapter("store", name)

        def wrapped(root: Any, make: Any = make) -> Any:
            is_remote = isinstance(root, str)
            return FaultyStore(make(root), fault) if is_remote or not remote_only else make(root)

        plugins.replace_adapter("store", name, wrapped)


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


def _counted_in(tick: Countdown, function: Callable[..., Any]) -> Callable[..., Any]:
    """Count only from the call of `function` on."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tick.is_counting = True
        return function(*args, **kwargs)

    return wrapped


def stop_in(step: int, framework: Any, then: Callable[[], None]) -> None:
    """Ask the run to stop in a step (from 1), and call `then` when that has become a decision."""
    watching: list[tuple[Outside, Callable[[], None]]] = []
    start, write = Outside.start, Journal.decision

    def started(self: Outside, wake: Callable[[], None], train_seconds: float, decisions: Decisions) -> None:
        watching.append((self, wake))
        start(self, wake, train_seconds, decisions)

    def asking(take_step: Callable[[int, float], Any]) -> Callable[[int, float], Any]:
        def stepped(number: int, lr: float) -> Any:
            if number + 1 == step:
                watching[0][0].request = "stop"
                watching[0][1]()
            return take_step(number, lr)

        return stepped

    def decided(self: Journal, decision: Decision) -> None:
        write(self, decision)
        if decision.kind == "stop":
            then()

    Outside.start = started  # type: ignore[method-assign]
    Journal.decision = decided  # type: ignore[method-assign]
    wrap_learners(framework, step=asking)


def main(phase: str, count: str, first: str, second: str, stop: str = "") -> None:
    """Train or resume with the kill in place.

    If the process survives, print the packages that it has imported, and then the run's directory.
    """
    config = api.get(second).path / "config.yaml" if first == "--resume" else Path(first)
    name = framework_name(load(config, adapters=Catalog()).config)
    framework = plugins.adapter("framework", name)
    if stop and phase == "decision":
        stop_in(int(stop), framework, Countdown(int(count), signal.SIGKILL))
    elif stop:  # stores and learners are wrapped before they are made
        tick = Countdown(int(count), signal.SIGKILL)
        tick.is_counting = False
        arm(phase, int(count), framework, tick=tick)
        stop_in(int(stop), framework, lambda: setattr(tick, "is_counting", True))
    else:
        arm(phase, int(count), framework)
    run = api.resume(second) if first == "--resume" else api.train(config, runs_dir=second)
    imported = {name.partition(".")[0] for name in list(sys.modules)}
    sys.stdout.write(f"{' '.join(sorted(imported))}\n{run.path}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
