"""Notice processes that hang, or that were stopped, and end them: the launcher then starts all again."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainwright.frameworks.torch.parallel.stopwatch import waiting
from trainwright.process.machine import machine_id
from trainwright.world import RETRYABLE, World

log = logging.getLogger("trainwright")
HUNG = 124  # exit code of a process that hung, as of timeout(1)
_POLL_SECONDS = 5.0
_STOPPED_POLLS = 12  # after which a process that is stopped all the time is killed
_FIRST_SECONDS = 1800.0  # that a process may take the first time
_TIMES = 10  # as long as the longest time so far
_IDLE = "between two steps"
_WIDTH = 64  # bytes of the memory that says what a process does


class _Work(NamedTuple):
    """The work of a process, and how many seconds it may take without progress, computing or waiting."""

    where: str
    seconds: float
    waits: float


class _Peer(NamedTuple):
    """Another process of this machine: handles of the process, and of the memory that says what it does."""

    rank: int
    pid: int
    handle: int
    board: int


class Watch:
    """Ends this process where it hangs, and another one of this machine that was stopped.

    A thread looks every few seconds. This process makes progress whenever it begins or ends to wait for
    others, as counted by `waiting`; while it waits, it does not hang. A process that is stopped cannot end
    itself: each process looks at the next one of its machine, which Linux alone allows.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._work: _Work | None = None
        self._seen = self._since = 0.0
        self._longest: dict[str, float] = {}
        self._board = os.memfd_create("trainwright") if hasattr(os, "memfd_create") else -1
        self._peer: _Peer | None = None
        self._stopped = 0
        self._closed = threading.Event()

    def begin(self, where: str, seconds: float, *, waits: float = float("inf")) -> None:
        """Watch some work from now on.

        Args:
            where: What it is, for messages: `a step`.
            seconds: This process ends if it makes no progress for so long, with its stacks on stderr.
            waits: The same while it waits for others.
        """
        with self._lock:
            self._work = _Work(where, seconds, waits)
            self._seen, self._since = waiting.changes, time.monotonic()
            self._arm(seconds)
        self._say(f"in {where}")

    def rest(self) -> None:
        """Watch no work of this process any more."""
        with self._lock:
            self._work = None
            faulthandler.cancel_dump_traceback_later()
        self._say(_IDLE)

    @contextmanager
    def working(self, where: str, least: float) -> Iterator[None]:
        """Watch a block, which may take ten times as long as it has taken at most, and `least` seconds."""
        longest = self._longest.get(where)
        self.begin(where, _FIRST_SECONDS if longest is None else max(least, _TIMES * longest))
        began = time.monotonic()
        try:
            yield
        finally:
            self.rest()
        self._longest[where] = max(longest or 0.0, time.monotonic() - began)

    def start(self, world: World) -> None:
        """Start the thread; a collective call."""
        place = machine_id("pid")
        places = world.gather((place, os.getpid(), self._board))
        ranks = [rank for rank, other in enumerate(places) if place and other[0] == place]
        if len(ranks) > 1:
            following = ranks[(ranks.index(self._rank) + 1) % len(ranks)]
            self._peer = _opened(following, *places[following][1:])
        threading.Thread(target=self._run, name="trainwright-watch", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _say(self, where: str) -> None:
        if self._board >= 0:
            os.pwrite(self._board, where.encode()[:_WIDTH].ljust(_WIDTH), 0)

    def _run(self) -> None:
        """Look until `close`, the last call of all."""
        while not self._closed.wait(_POLL_SECONDS):
            self._look_at_own()
            if self._peer is not None:
                self._look_at(self._peer)
        for one in (self._board, *(self._peer[2:] if self._peer is not None else ())):
            if one >= 0:
                os.close(one)

    def _look_at_own(self) -> None:
        """End this process if it has made no progress for too long."""
        with self._lock:
            work, now = self._work, time.monotonic()
            if work is None:
                return
            if waiting.changes != self._seen:
                self._seen, self._since = waiting.changes, now
            is_waiting, quiet = waiting.is_on, now - self._since
            if quiet <= (work.waits if is_waiting else work.seconds):
                if is_waiting or quiet < 2 * _POLL_SECONDS:
                    self._arm(work.seconds)
                return
        if is_waiting:
            said = f"has waited {quiet:.0f} s for others in {work.where}, and none of them says why"
        else:
            said = f"hangs: it makes no progress in {work.where}, for {quiet:.0f} s"
        log.error("process %d %s; its threads are at:", self._rank, said)
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(RETRYABLE if is_waiting else HUNG)

    def _arm(self, seconds: float) -> None:
        """Let the process end some time after it should have ended itself: no thread may get its turn."""
        faulthandler.dump_traceback_later(seconds + 4 * _POLL_SECONDS, exit=True)

    def _look_at(self, peer: _Peer) -> None:
        """Kill the other process if it has been stopped for long; continued, it counts anew."""
        try:
            state = Path(f"/proc/{peer.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return  # it has ended
        self._stopped = self._stopped + 1 if state.rpartition(")")[2].split()[0] == "T" else 0
        if self._stopped < _STOPPED_POLLS:
            return
        where, seconds = os.pread(peer.board, _WIDTH, 0).decode().strip(), self._stopped * _POLL_SECONDS
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(peer.handle, signal.SIGKILL)
            log.error("process %d was stopped %s, and is killed after %.0f s", peer.rank, where, seconds)
        self._stopped = 0


def _opened(rank: int, pid: int, board: int) -> _Peer | None:
    """Return another process; None where the system does not allow to look at it."""
    try:
        handle = os.pidfd_open(pid)
        return _Peer(rank, pid, handle, os.open(f"/proc/{pid}/fd/{board}", os.O_RDONLY))
    except (AttributeError, OSError):
        return None
