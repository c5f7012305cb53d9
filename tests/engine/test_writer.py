"""The writer: in order, newest pending wins, failures are kept, nothing hangs."""

import gc
import threading
import weakref
from pathlib import Path

import pytest

from trainwright.engine.writer import PendingWrite, Writer
from trainwright.errors import CheckpointError, RunGoneError, RunLostError


def blocked(writer: Writer) -> threading.Event:
    """Keeps the writer busy until the event is set."""
    begun, release = threading.Event(), threading.Event()
    writer.submit(PendingWrite(0, lambda: (begun.set(), release.wait(30))[0], replaceable=False))  # type: ignore[arg-type]
    assert begun.wait(30)
    return release


def test_the_newest_waiting_resume_checkpoint_wins_and_order_is_kept() -> None:
    writer, done = Writer(), list[str]()
    release = blocked(writer)
    writer.submit(PendingWrite(1, lambda: done.append("resume 1"), replaceable=True))
    writer.submit(PendingWrite(2, lambda: done.append("best 2"), replaceable=False))
    writer.submit(PendingWrite(3, lambda: done.append("resume 3"), replaceable=True))
    release.set()
    writer.drain()
    assert done == ["best 2", "resume 3"]
    writer.close()


def test_a_failure_is_kept_and_the_next_job_is_done() -> None:
    writer, done = Writer(), list[int]()

    def fail() -> None:
        raise CheckpointError("no space left")

    writer.submit(PendingWrite(5, fail, replaceable=True))
    writer.drain()
    writer.submit(PendingWrite(6, lambda: done.append(6), replaceable=True))
    writer.drain()
    assert (writer.failures(), writer.failures(), done) == ([(5, "no space left")], [], [6])
    writer.close()


def test_training_waits_where_the_disk_is_several_jobs_behind() -> None:
    writer, done = Writer(), list[int]()
    release = blocked(writer)
    for step in range(3):
        writer.submit(PendingWrite(step, lambda step=step: done.append(step), replaceable=False))  # type: ignore[misc]
    late = threading.Thread(
        target=lambda: writer.submit(PendingWrite(3, lambda: done.append(3), replaceable=False))
    )
    late.start()
    late.join(0.05)
    assert late.is_alive(), "it did not wait"
    release.set()
    late.join(30)
    writer.drain()
    assert done == [0, 1, 2, 3]
    writer.close()


def test_a_best_model_takes_no_resume_checkpoints_place() -> None:
    writer, done = Writer(), list[str]()
    release = blocked(writer)
    writer.submit(PendingWrite(1, lambda: done.append("resume 1"), replaceable=True))
    writer.submit(PendingWrite(2, lambda: done.append("best 2"), replaceable=False))
    release.set()
    writer.drain()
    assert done == ["resume 1", "best 2"]
    writer.close()


def test_what_waits_when_it_is_closed_is_dropped_and_the_thread_has_ended() -> None:
    writer, done = Writer(), list[int]()
    release = blocked(writer)
    writer.submit(PendingWrite(1, lambda: done.append(1), replaceable=True))
    closing = threading.Thread(target=writer.close)
    closing.start()
    with writer._changed:
        assert writer._changed.wait_for(lambda: writer._closed, 30)
    release.set()
    closing.join(30)
    assert not closing.is_alive()
    assert done == []
    assert writer._thread is not None
    assert not writer._thread.is_alive()


def test_a_hanging_disk_does_not_keep_the_process_alive() -> None:
    writer = Writer()
    blocked(writer).set()
    assert writer._thread is not None
    assert writer._thread.daemon
    writer.close()
    assert not writer._thread.is_alive(), "close returned before the thread had ended"


def test_draining_waits_for_the_write_that_has_begun() -> None:
    writer, drained = Writer(), threading.Event()
    release = blocked(writer)
    draining = threading.Thread(target=lambda: (writer.drain(), drained.set()))
    draining.start()
    assert not drained.wait(0.05), "the write is not done yet"
    release.set()
    assert drained.wait(30)
    writer.close()


def test_what_was_written_is_freed_before_there_is_more_to_write() -> None:
    class Copy:
        """Stands for the copy of a large state."""

    writer, copy = Writer(), Copy()
    freed = weakref.ref(copy)
    writer.submit(PendingWrite(1, lambda copy=copy: None, replaceable=True))  # type: ignore[misc]
    del copy
    writer.drain()
    gc.collect()
    assert freed() is None
    writer.close()


def test_a_failure_of_any_kind_is_told_with_its_name() -> None:
    writer = Writer()

    def fail() -> None:
        raise ValueError("oops")

    writer.submit(PendingWrite(5, fail, replaceable=True))
    writer.drain()
    assert writer.failures() == [(5, "ValueError: oops")]
    writer.close()


def test_that_the_run_directory_is_gone_is_no_failure_to_go_on_from(tmp_path: Path) -> None:
    writer = Writer()

    def gone() -> None:
        raise RunGoneError(tmp_path)

    writer.submit(PendingWrite(5, gone, replaceable=True))
    writer.drain()
    for _ in range(2):  # it does not come back
        with pytest.raises(RunGoneError):
            writer.failures()
    writer.close()


def test_nothing_is_written_after_the_run_was_lost() -> None:
    writer, done = Writer(), list[int]()

    def lost() -> None:
        raise RunLostError("attempt 2 has taken the run over", "another process")

    release = blocked(writer)
    writer.submit(PendingWrite(1, lost, replaceable=False))
    writer.submit(PendingWrite(2, lambda: done.append(2), replaceable=False))
    release.set()
    writer.drain()
    writer.submit(PendingWrite(3, lambda: done.append(3), replaceable=False))
    writer.drain()
    assert done == []
    with pytest.raises(RunLostError, match="attempt 2"):
        writer.failures()
    writer.close()


def test_what_may_wait_is_begun_with_what_may_not_or_when_the_queue_is_full() -> None:
    writer, done = Writer(), list[str]()

    def submit(name: str, *, may_wait: bool) -> threading.Event:
        begun = threading.Event()
        run = lambda: (done.append(name), begun.set())[0]  # noqa: E731
        writer.submit(PendingWrite(len(done), run, replaceable=False, may_wait=may_wait))
        return begun

    submit("best 1", may_wait=True)
    submit("best 2", may_wait=True)
    assert submit("resume 2", may_wait=False).wait(30)
    assert done == ["best 1", "best 2", "resume 2"]
    first = submit("best 3", may_wait=True)
    second = submit("best 4", may_wait=True)
    assert not first.wait(0.05), "it did not wait"
    submit("best 5", may_wait=True)
    assert first.wait(30)
    assert not second.wait(0.05), "it did not wait"
    writer.drain()
    assert done[3:] == ["best 3", "best 4", "best 5"]
    assert not submit("best 6", may_wait=True).wait(0.05), "it did not wait after a drain"
    writer.close()
    assert done[6:] == [], "what waits is dropped"


def test_where_the_system_has_no_room_for_a_thread_what_waits_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer, done = Writer(), list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="new thread"):
            writer.submit(PendingWrite(1, lambda: done.append(1), replaceable=True))
    draining = threading.Thread(target=writer.drain, daemon=True)
    draining.start()
    draining.join(30)
    assert done == [1], "the attempt would hang instead of failing"
    writer.close()
