"""Who owns a run in a store: clocks of other machines may be wrong by minutes, and nobody is fooled by that."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.errors import RunLockedError
from trainwright.storage import heartbeats
from trainwright.storage.heartbeats import Heartbeats, has_owner, may_have_owner
from trainwright.storage.log import Entry, new_writer
from trainwright.storage.remote import RemoteRun
from trainwright.stores.local import LocalStore

START = 1_800_000_000.0  # of the wall clock here
MONOTONIC = 5_000.0


class Clock:
    """The clocks of this machine, which go on only while somebody sleeps."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def time(self) -> float:
        return START + self.slept

    def monotonic(self) -> float:
        return MONOTONIC + self.slept

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= heartbeats.SILENCE
        self.slept += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeats, "time", clock)
    return clock


@pytest.fixture
def run(tmp_path: Path) -> RemoteRun:
    path = tmp_path / "copies" / "small" / "run"
    path.mkdir(parents=True)
    return RemoteRun(path, LocalStore((tmp_path / "store").as_uri()))


@pytest.fixture
def entry(run: RemoteRun, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """The newest entry of a run that another machine trains."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "elsewhere")
        writer = new_writer()
    entry = Entry(number=1, writer=writer, serial=1, attempt=1, kind="commit", time=START)
    run.log.write(entry)
    return entry


def beat(run: RemoteRun, seconds: float, attempt: int = 1) -> None:
    """Store the heartbeat of an owner whose clock shows so many seconds more than ours at the start."""
    source = run.path.parent / "beat"
    source.write_text(str(START + seconds))
    store: LocalStore = run._store  # type: ignore[assignment]
    store.put(f"alive/small/run/{attempt:04d}", source)


@pytest.mark.parametrize("skew", [-3600, -120, 0, 120, 3600])
def test_an_owner_that_lives_is_not_taken_over_whatever_its_clock_shows(
    skew: float, run: RemoteRun, entry: Entry, clock: Clock
) -> None:
    beat(run, skew)
    clock.meanwhile = lambda: beat(run, skew + clock.slept) if clock.slept > 14 else None
    with pytest.raises(RunLockedError, match=r"owned by another process \(process \d+ on elsewhere\)"):
        run.free_head()
    assert 14 < clock.slept < 20, "the first heartbeat tells"
    assert has_owner(run.path)


@pytest.mark.parametrize("skew", [-3600, -120, 0, 120, 3600])
def test_an_owner_that_is_silent_is_dead_whatever_its_clock_shows(
    skew: float, run: RemoteRun, entry: Entry, clock: Clock
) -> None:
    beat(run, skew)
    assert run.free_head() == entry
    assert clock.slept == heartbeats.SILENCE
    assert not has_owner(run.path)


def test_a_commit_is_a_sign_of_life_and_an_end_is_none(run: RemoteRun, entry: Entry, clock: Clock) -> None:
    end = entry.model_copy(update={"number": 3, "kind": "end", "status": "preempted"})
    clock.meanwhile = lambda: run.log.write(entry.model_copy(update={"number": 2})) and None
    with pytest.raises(RunLockedError):
        run.free_head()
    clock.meanwhile = lambda: run.log.write(end) and None
    assert run.free_head() == end, "it may be resumed at once"


def test_a_look_before_spares_the_wait(run: RemoteRun, entry: Entry, clock: Clock) -> None:
    """A list of runs has noted what it saw; the machine's clock may have been set since."""
    beat(run, -120)
    run.heartbeats.note(entry)
    assert has_owner(run.path)
    clock.slept = 40
    run.heartbeats.note(entry)
    clock.slept = 70
    assert run.free_head() == entry
    assert clock.slept == 70
    assert not has_owner(run.path)
    beat(run, -30)
    run.heartbeats.note(entry)
    assert has_owner(run.path), "the heartbeat has changed, however old its time is"


def test_what_another_machine_has_seen_spares_nothing(
    run: RemoteRun, entry: Entry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of working copies may be shared; the monotonic clocks of its machines are not."""
    with monkeypatch.context() as there:
        there.setattr(heartbeats, "machine_id", lambda *_: "another")
        run.heartbeats.note(entry)
    clock.slept = 1000
    run.free_head()
    assert clock.slept == 1000 + heartbeats.SILENCE


def test_the_status_of_a_run_that_is_seen_the_first_time_is_a_guess(
    run: RemoteRun, entry: Entry, clock: Clock
) -> None:
    beat(run, -120)
    run.heartbeats.note(entry)
    assert has_owner(run.path), "the clocks may differ by two minutes"
    run.heartbeats.note_end()
    assert not may_have_owner(run.path)
    clock.slept = 3600
    run.heartbeats.note(entry)
    assert not has_owner(run.path)
    assert may_have_owner(run.path)


def test_an_owner_on_this_machine_is_known_at_once(run: RemoteRun, clock: Clock) -> None:
    """It has our clock; one that is dead is no process."""
    entry = Entry(number=1, writer=new_writer(), serial=1, attempt=1, kind="lease", time=START - 1)
    run.log.write(entry)
    run.heartbeats.refuse_owned(entry)
    living = entry.model_copy(update={"writer": " ".join(["process", "1", *entry.writer.split()[2:]])})
    with pytest.raises(RunLockedError):
        run.heartbeats.refuse_owned(living)
    assert clock.slept == 0


def test_a_zombie_that_has_lost_the_run_is_no_sign_of_life(
    run: RemoteRun, entry: Entry, clock: Clock
) -> None:
    newest = entry.model_copy(update={"number": 2, "attempt": 2})
    run.log.write(newest)
    clock.meanwhile = lambda: beat(run, clock.slept, attempt=1)
    assert run.free_head() == newest


@pytest.mark.parametrize(
    "note", ["", "{", "[1]", '{"time": 0}', '{"sign": 1, "since": "x", "machine": "", "time": 0}']
)
def test_a_note_that_is_damaged_is_none(note: str, run: RemoteRun, entry: Entry, clock: Clock) -> None:
    (run.path / ".owner").write_text(note)
    assert not has_owner(run.path)
    Heartbeats.note(run.heartbeats, entry)
    assert has_owner(run.path)
