"""Functions that are called later: in time, once, in one thread, and not when they were cancelled."""

import logging
import os
import threading

import pytest

from trainwright.process import alarms
from trainwright.process.alarms import _Clock, call_later


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Return a clock without the alarms of other tests."""
    made = _Clock()
    monkeypatch.setattr(alarms, "_clock", made)
    return made


def test_the_earlier_alarm_rings_first_in_the_same_thread(clock: _Clock) -> None:
    rung, done = list[tuple[str, int]](), threading.Event()

    def ring(name: str) -> None:
        rung.append((name, threading.get_ident()))
        if len(rung) == 2:
            done.set()

    call_later(0.5, lambda: ring("later"))  # a busy machine may take long to come to the next line
    call_later(0.0, lambda: ring("at once"))
    assert done.wait(30)
    assert [name for name, _ in rung] == ["at once", "later"]
    assert len({thread for _, thread in rung} - {threading.get_ident()}) == 1


def test_what_was_cancelled_does_not_ring_and_the_thread_ends_with_the_last_alarm(clock: _Clock) -> None:
    rung, done = list[str](), threading.Event()
    cancelled = call_later(0.01, lambda: rung.append("cancelled"))
    call_later(0.02, done.set)
    thread = clock._thread
    assert thread is not None
    assert thread.daemon, "it must not keep the process alive"
    cancelled.cancel()
    cancelled.cancel()
    assert done.wait(30)
    thread.join(30)
    assert not thread.is_alive()
    assert rung == []
    again = threading.Event()
    call_later(0.0, again.set)
    assert again.wait(30), "the thread was not started again"


def test_the_thread_is_woken_only_for_an_alarm_that_comes_before_the_others(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wake a thread takes longer than most of what a short run does."""
    woken, asleep = list[int](), threading.Event()
    notify, wait = clock._changed.notify, clock._changed.wait
    monkeypatch.setattr(clock._changed, "notify", lambda: (woken.append(1), notify())[1])
    monkeypatch.setattr(clock._changed, "wait", lambda seconds: (asleep.set(), wait(seconds))[1])
    soon = call_later(60.0, lambda: None)
    assert asleep.wait(30)
    later = [call_later(61.0 + i, lambda: None) for i in range(3)]
    assert woken == []
    done = threading.Event()
    call_later(0.0, done.set)
    assert done.wait(30)
    assert woken == [1]
    for alarm in (soon, *later):
        alarm.cancel()


def test_a_function_that_fails_does_not_stop_the_others(
    clock: _Clock, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    call_later(0.0, lambda: 1 / 0)
    call_later(0.01, done.set)
    assert done.wait(30)
    assert "ZeroDivisionError" in caplog.text
    assert logging.getLogger("trainwright").name in caplog.records[0].name


def test_a_forked_child_has_a_clock_of_its_own() -> None:
    """Its parent's thread is not there, and may have held the lock."""
    never = call_later(60.0, lambda: None)
    with alarms._clock._changed:
        child = os.fork()
        if child == 0:
            try:
                done = threading.Event()
                call_later(0.0, done.set)
                os._exit(0 if done.wait(30) else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    never.cancel()


def test_where_the_system_has_no_room_for_a_thread_the_next_alarm_starts_it(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="new thread"):
            call_later(0.0, list)
    rung = threading.Event()
    call_later(0.0, rung.set)
    assert rung.wait(30), "no run of this process would end at its time limit"
