"""Faults for tests: a store that fails, is slow or kills the process, and wrappers of learners.

    store = FaultyStore(LocalStore(root), Faults(fail, calls={3}, when="after"))

To inject faults into whole runs, register the wrapper instead of the store:

    plugins.replace_adapter("store", "file", lambda root: FaultyStore(LocalStore(root), faults))

    wrap_learners(TorchFramework, step=lambda step: failing_at(7, step))
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainwright.errors import CheckpointError
from trainwright.stores.base import Store

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
WRITES = ("put", "put_if_absent", "delete", "move", "publish")
READS = ("get", "download", "list")


@dataclass
class Faults:
    """Rules that say at which calls of a store something happens, and what.

    Args:
        act: What happens: `fail`, `kill`, `pause(seconds)`, or any function.
        calls: The numbers of the calls, from 1; None: all.
        operations: Only these operations are counted.
        keys: Only calls whose key contains this text are counted.
        when: Before or after the call takes effect. An error after the effect is a lost answer.
    """

    act: Callable[[], None]
    calls: Collection[int] | None = None
    operations: Collection[str] = (*WRITES, *READS)
    keys: str = ""
    when: Literal["before", "after"] = "before"

    def __post_init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def is_due(self, operation: str, key: str, when: str) -> bool:
        """Count a call, and return whether the fault acts now."""
        if when != self.when or operation not in self.operations or self.keys not in key:
            return False
        with self._lock:
            self._count += 1
            return self.calls is None or self._count in self.calls


def fail() -> None:
    """Raise the error of a store that cannot be reached."""
    raise ConnectionError("injected: the store is away")


def kill() -> None:
    """Kill the process: no handler, no `finally` and no buffered write runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def pause(seconds: float) -> Callable[[], None]:
    """Return an action that delays the answer."""
    return lambda: time.sleep(seconds)


def wrap_learners(framework: Any, *, step: Wrapper | None = None, predict: Wrapper | None = None) -> None:
    """Wrap the steps of each learner that a framework makes from now on, or the predictions of its model.

    Args:
        framework: The class of the adapter.
        step: Takes the learner's `step`, and returns what replaces it.
        predict: Takes the `predict` of the learner's `model()`, and returns what replaces it.
    """
    make = framework.learner

    def made(inputs: Any) -> Any:
        learner = make(inputs)
        if step is not None:
            learner.step = step(learner.step)
        if predict is not None:
            model = learner.model()
            # Of these two, what the other one calls.
            name = "evaluate" if framework.capabilities.accumulators else "predict"
            setattr(model, name, predict(getattr(model, name)))
        return learner

    framework.learner = staticmethod(made)


class FaultyStore:
    """A store that passes calls on to another one, with faults."""

    def __init__(self, store: Store, *faults: Faults) -> None:
        self._store: Any = store
        self._faults = faults

    def put(self, key: str, source: Path) -> None:
        """Put, with faults."""
        self._call("put", key, key, source)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Put conditionally, with faults."""
        created: bool = self._call("put_if_absent", key, key, data)
        return created

    def get(self, key: str) -> bytes:
        """Get, with faults."""
        content: bytes = self._call("get", key, key)
        return content

    def download(self, key: str, target: Path) -> None:
        """Download, with faults."""
        self._call("download", key, key, target)

    def list(self, prefix: str = "") -> Iterator[str]:
        """List, with faults."""
        yield from self._call("list", prefix, prefix)

    def delete(self, key: str) -> None:
        """Delete, with faults."""
        self._call("delete", key, key)

    def publish(self, folder: Path, prefix: str, last: str) -> bool:
        """Publish a folder of a store of files, with faults; the other files `move` before `last`."""
        for name in sorted(path.name for path in folder.iterdir()):
            for when in ("before", "after") if name != last else ():
                self._inject("move", f"{prefix}/{name}", when)
        is_ours: bool = self._call("publish", f"{prefix}/{last}", folder, prefix, last)
        return is_ours

    def folder(self, prefix: str) -> Path:
        """Return the folder of a store of files."""
        folder: Path = self._store.folder(prefix)
        return folder

    def staging(self) -> Path:
        """Return a staging folder of a store of files."""
        folder: Path = self._store.staging()
        return folder

    def sweep(self) -> None:
        """Sweep a store of files."""
        self._store.sweep()

    def _call(self, operation: str, key: str, *args: Any) -> Any:
        """Call an operation with `args`, whose fault is that of `key`."""
        self._inject(operation, key, "before")
        result = getattr(self._store, operation)(*args)
        if operation == "list":
            result = list(result)
        self._inject(operation, key, "after")
        return result

    def _inject(self, operation: str, key: str, when: str) -> None:
        for fault in self._faults:
            if fault.is_due(operation, key, when):
                try:
                    fault.act()
                except OSError as error:
                    if operation in READS:
                        raise CheckpointError(f"{operation} {key}: {error}") from error
                    raise
