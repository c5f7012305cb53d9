"""Processes that hang are ended, those that only wait are not, and a stopped one is killed by its neighbour."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainwright.frameworks.torch.parallel import watch as module
from trainwright.frameworks.torch.parallel.stopwatch import waiting
from trainwright.frameworks.torch.parallel.watch import HUNG, Watch, _opened
from trainwright.world import RETRYABLE


class Ended(Exception):
    """The process would have ended."""


class Clock:
    """A clock that a test moves, and what the process would do at its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.armed: list[float | None] = []  # the seconds until an end without the thread's help
        fake = SimpleNamespace(
            dump_traceback_later=lambda seconds, exit: self.armed.append(seconds),
            cancel_dump_traceback_later=lambda: self.armed.append(None),
            dump_traceback=lambda _: None,
        )
        monkeypatch.setattr(module, "faulthandler", fake)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module.os, "_exit", self._exit)

    def _exit(self, code: int) -> None:
        raise Ended(code)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def seconds_to_end(clock: Clock, watch: Watch, most: int = 5000) -> tuple[int, int] | None:
    """Let time pass; return after how many seconds the process ends, and its exit code."""
    for second in range(1, most):
        clock.now += 1
        try:
            watch._look_at_own()
        except Ended as ended:
            return second, ended.args[0]
    return None


def test_a_process_without_progress_ends(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(3)
    watch.begin("a step", 60, waits=120)
    assert seconds_to_end(clock, watch) == (61, HUNG)
    assert caplog.messages == [
        "process 3 hangs: it makes no progress in a step, for 61 s; its threads are at:"
    ]
    watch.rest()
    assert seconds_to_end(clock, watch) is None
    assert clock.armed[-1] is None


def test_one_that_waits_for_others_ends_after_them(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(0)
    watch.begin("a step", 60, waits=120)
    clock.now += 59
    with waiting:
        assert seconds_to_end(clock, watch) == (122, RETRYABLE)  # since it was seen to wait
    assert "has waited 121 s for others in a step" in caplog.text


def test_to_begin_or_end_to_wait_is_progress(clock: Clock) -> None:
    watch = Watch(0)
    watch.begin("a step", 60, waits=120)
    for _ in range(5):
        assert seconds_to_end(clock, watch, 50) is None
        with waiting:
            pass
    assert seconds_to_end(clock, watch) == (62, HUNG)


def test_in_evaluations_and_saves_one_waits_as_long_as_others_take(clock: Clock) -> None:
    watch = Watch(0)
    with watch.working("a save", 60):
        with waiting:
            assert seconds_to_end(clock, watch) is None
        assert seconds_to_end(clock, watch, 1799) is None
    assert clock.armed[-1] is None


@pytest.mark.parametrize(("took", "given"), [(1, 60), (20, 200), (5, 60)])
def test_what_has_been_done_before_is_given_ten_times_as_long(took: int, given: int, clock: Clock) -> None:
    watch = Watch(0)
    for seconds in (0, took):
        with watch.working("the evaluation of val", 60):
            clock.now += seconds
    with watch.working("the evaluation of val", 60):
        assert seconds_to_end(clock, watch) == (given + 1, HUNG)
    with watch.working("the evaluation of test", 60):
        assert seconds_to_end(clock, watch) == (1801, HUNG)


def test_the_end_comes_even_if_no_thread_gets_its_turn(clock: Clock) -> None:
    """But later than the thread would end the process; and again later while it waits, or makes progress."""
    watch = Watch(0)
    watch.begin("a step", 60, waits=120)
    assert clock.armed == [80.0]
    with waiting:
        seconds_to_end(clock, watch, 100)
    assert len(clock.armed) == 100
    before = len(clock.armed)
    seconds_to_end(clock, watch, 50)
    assert 10 <= len(clock.armed) - before <= 11  # then it makes no progress


STUCK = """
import ctypes
from trainwright.frameworks.torch.parallel import watch
watch._POLL_SECONDS = 0.05
one = watch.Watch(0)
one.begin("a step", 0.2)
ctypes.PyDLL(None).sleep(60)  # keeps the interpreter's lock
"""


@pytest.mark.slow
def test_a_process_whose_interpreter_is_stuck_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "Timeout (" in ended.stderr


CHILD = """
import os, signal, sys
board = os.memfd_create("child")
os.pwrite(board, b"in the evaluation of val".ljust(64), 0)
print(board, flush=True)
signal.pause()
"""


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process, and the descriptor of the memory in which it says what it does."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in state:
        assert time.monotonic() < deadline


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says whether another process is stopped")
def test_a_process_that_is_stopped_is_killed(
    child: tuple[subprocess.Popen[str], int], caplog: pytest.LogCaptureFixture
) -> None:
    process, board = child
    watch, peer = Watch(0), _opened(1, process.pid, board)
    assert peer is not None
    for number in range(13):
        if number == 11:  # it goes on, and is stopped again
            process.send_signal(signal.SIGCONT)
            wait_for_state(process.pid, "SR")
            watch._look_at(peer)
        process.send_signal(signal.SIGSTOP)
        wait_for_state(process.pid, "T")
        watch._look_at(peer)
    assert process.poll() is None
    with caplog.at_level(logging.ERROR, "trainwright"):
        for _ in range(10):
            watch._look_at(peer)
    assert process.wait(30) == -signal.SIGKILL
    assert caplog.messages == ["process 1 was stopped in the evaluation of val, and is killed after 60 s"]
    watch._look_at(peer)  # it has ended
    assert _opened(1, process.pid, board) is None
    for one in (peer.handle, peer.board, watch._board):
        os.close(one)
