"""The log and the lease: one attempt writes, a loser finds out and writes nothing, lost answers are settled."""

import os
import socket
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright.errors import CheckpointError, RunLockedError, RunLostError
from trainwright.storage import lease as lease_module
from trainwright.storage import log as entries
from trainwright.storage.lease import Lease
from trainwright.storage.log import Entry, Log, StoredFile, committed
from trainwright.stores.local import LocalStore
from trainwright.testing.faults import Faults, FaultyStore, fail

ENTRIES = {"operations": ["put_if_absent"]}


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def leased(store: LocalStore | FaultyStore) -> Lease:
    """The lease of a next attempt."""
    log = Log(store)
    head = log.head()
    lease = Lease(log, head.number if head else 0, head.attempt + 1 if head else 1)
    lease.take(head.checkpoints if head else [], head.best if head else [])
    return lease


def test_the_newest_entry_says_what_exists(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert committed(store, "checkpoints") is None, "there is no log yet"
    lease = leased(store)
    assert committed(store, "checkpoints") == frozenset()
    lease.commit(["b", "a"], ["best"])
    assert (committed(store, "checkpoints"), committed(store, "best")) == ({"a", "b"}, {"best"})
    lease.end("completed")
    head = Log(store).head()
    assert head is not None
    assert (head.number, head.attempt, head.kind, head.status) == (3, 1, "end", "completed")
    assert head.checkpoints == ("a", "b")


def test_an_attempt_that_is_superseded_finds_out_and_writes_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    zombie = leased(store)
    zombie.commit(["a"], [])
    winner = leased(store)
    assert winner.attempt == 2
    before = content(tmp_path)
    for act in (lambda: zombie.commit(["b"], []), zombie.check, lambda: zombie.end("completed")):
        with pytest.raises(
            RunLostError, match=r"attempt 2 has taken the run over \(process \d+ on .*\)"
        ) as lost:
            act()
        assert lost.value.exit_code == 2
    assert content(tmp_path) == before
    winner.commit(["c"], [])
    assert committed(store, "checkpoints") == {"c"}


def test_a_number_that_was_taken_and_folded_is_not_free_again(tmp_path: Path) -> None:
    """The entry that the zombie writes does not count: there are later ones."""
    store = LocalStore(tmp_path)
    zombie = leased(store)
    winner = leased(store)
    for name in "abcd":
        winner.commit([name], [])
    assert Log(store).numbers() == [5, 6]
    before = content(tmp_path)
    with pytest.raises(RunLostError, match="attempt 2 has taken the run over"):
        zombie.commit(["zombie's"], [])
    assert content(tmp_path) == before


def test_a_zombie_that_wakes_up_just_before_it_writes_commits_nothing(tmp_path: Path) -> None:
    """Its number is free: it was taken and folded. The entry that it writes does not count, and goes again."""
    store = LocalStore(tmp_path)
    winners: list[Lease] = []

    def meanwhile() -> None:
        winners.append(leased(store))
        for name in "abcd":
            winners[0].commit([name], [])

    zombie = leased(FaultyStore(store, Faults(meanwhile, [2], **ENTRIES)))
    with pytest.raises(RunLostError, match="attempt 2 has taken the run over"):
        zombie.commit(["zombie's"], [])
    assert committed(store, "checkpoints") == {"d"}
    assert Log(store).numbers() == [5, 6]
    winners[0].commit(["e"], [])
    assert committed(store, "checkpoints") == {"e"}


def test_of_several_that_take_a_lease_one_gets_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    leased(store).commit(["a"], [])
    together = threading.Barrier(8)

    def take(_: int) -> Lease | None:
        lease = Lease(Log(store), 2, 2)
        together.wait()
        try:
            lease.take(["a"], [])
        except RunLockedError:
            return None
        return lease

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [lease for lease in pool.map(take, range(8)) if lease]
    winner.commit(["b"], [])
    assert committed(store, "checkpoints") == {"b"}


def test_an_answer_that_was_lost_is_settled_by_reading(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = leased(FaultyStore(store, Faults(fail, [2, 3], when="after", **ENTRIES)))
    lease.commit(["a"], [])
    lease.commit(["a", "b"], [])
    lease.commit(["b", "c"], [])
    assert Log(store).numbers()[-1] == 4
    assert committed(store, "checkpoints") == {"b", "c"}


def test_an_answer_that_was_lost_while_the_store_is_away_is_settled_by_the_next_commit(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    reads = Faults(fail, [1], operations=["get"])
    lease = leased(FaultyStore(store, Faults(fail, [2], when="after", **ENTRIES), reads))
    with pytest.raises(OSError, match="the store is away"):
        lease.commit(["a"], [])
    lease.commit(["b"], [])
    assert Log(store).numbers()[-1] == 3, "the entry of the lost answer has number 2"
    assert committed(store, "checkpoints") == {"b"}


def test_a_store_that_was_away_takes_the_next_commit(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = leased(FaultyStore(store, Faults(fail, [2, 3], **ENTRIES)))
    for name in "ab":
        with pytest.raises(OSError, match="the store is away"):
            lease.commit([name], [])
        assert committed(store, "checkpoints") == frozenset()
    lease.commit(["c"], [])
    assert committed(store, "checkpoints") == {"c"}
    assert Log(store).numbers() == [1, 2]


def test_an_entry_that_cannot_be_checked_is_no_success_and_no_harm(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = leased(FaultyStore(store, Faults(fail, [3], operations=["list"])))
    with pytest.raises(OSError, match="the store is away"):
        lease.commit(["a"], [])
    lease.commit(["b"], [])
    assert committed(store, "checkpoints") == {"b"}


def test_a_fold_that_is_cut_short_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = leased(FaultyStore(store, Faults(fail, [1, 2], operations=["delete"])))
    for name in "abc":
        lease.commit([name], [])
        assert committed(store, "checkpoints") == {name}
    assert Log(store).numbers()[0] == 1
    leased(store).commit(["d"], [])
    assert len(Log(store).numbers()) == 2
    assert committed(store, "checkpoints") == {"d"}


def test_a_reader_whose_entry_is_folded_meanwhile_reads_the_next(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = leased(store)

    def go_on() -> None:
        for name in "abc":
            lease.commit([name], [])

    reader = FaultyStore(store, Faults(go_on, [1], operations=["list"], when="after"))
    assert committed(reader, "checkpoints") == {"c"}


def test_a_damaged_entry_is_named_and_each_valid_checkpoint_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(tmp_path)
    leased(store).commit(["a"], [])
    newest = tmp_path / "log" / "000000002"
    newest.write_bytes(newest.read_bytes().replace(b'"a"', b'"b"'))
    with pytest.raises(CheckpointError, match="entry 2 of the run's log is damaged"):
        Log(store).head()
    assert committed(store, "checkpoints") is None
    assert "every checkpoint with a valid manifest counts" in caplog.text


def test_only_a_process_of_the_same_container_is_known_to_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Containers with one host name may each have a process 7."""
    writer = entries.new_writer()
    assert entries.has_ended(writer), "it holds no lease"
    monkeypatch.setattr(entries, "machine_id", lambda *_: "another")
    assert not entries.has_ended(writer)


# -- of a run in a store


class Uploads:
    """The store of a run: notes what it is told, in which thread, and says once that it is asked to stop."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.fetched: list[str] = []
        self.names: list[tuple[Collection[str], Collection[str]]] = []
        self.entries: list[Entry] = []
        self.beats: list[int] = []
        self.stopped: list[int] = []
        self.threads: set[str] = set()
        self.beaten, self.again = threading.Event(), threading.Event()

    def upload(
        self, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        self.folders.append(folder)
        self.names.append((checkpoints, best))
        return {"config.yaml": StoredFile(bytes=3, sha256=folder, text="abc")}

    def published(self, entry: Entry) -> None:
        self.entries.append(entry)

    def fetch(self, folder: str) -> None:
        self.fetched.append(folder)

    @property
    def heartbeats(self) -> "Uploads":
        return self

    def beat(self, attempt: int) -> None:
        self.beats.append(attempt)
        thread = threading.current_thread()
        self.threads.add(f"{thread.name}, {thread.daemon}")

    def is_asked_to_stop(self, attempt: int) -> bool:
        assert attempt == self.beats[-1]
        (self.again if self.beaten.is_set() else self.beaten).set()
        return len(self.beats) == 1

    def stop_beating(self, attempt: int) -> None:
        self.stopped.append(attempt)


def test_each_entry_of_a_run_in_a_store_names_its_files(tmp_path: Path) -> None:
    store, uploads = LocalStore(tmp_path), Uploads()
    lease = Lease(Log(store), 0, 7, uploads)
    assert lease.is_in_store
    assert not Lease(Log(store), 0, 7).is_in_store
    lease.take(["b", "a"], ["x"])
    lease.commit(["c"], ["z", "y"])
    lease.renew()
    lease.end("completed")
    lease.release()
    folders = [f"0007-{serial:06d}/" for serial in range(1, 5)]
    assert uploads.folders == folders
    names = [(("a", "b"), ("x",)), *[(("c",), ("y", "z"))] * 3]
    assert uploads.names == names
    assert [(one.number, one.kind, one.status) for one in uploads.entries] == [
        (1, "lease", None),
        (2, "commit", None),
        (3, "commit", None),
        (4, "end", "completed"),
    ]
    assert [(one.checkpoints, one.best) for one in uploads.entries] == names
    assert [one.files["config.yaml"].sha256 for one in uploads.entries] == folders
    head = Log(store).head()
    assert head == uploads.entries[-1]
    assert Log(store).numbers() == [3, 4], "the others are folded"
    assert (uploads.beats, uploads.stopped) == ([], []), "it ended before the first heartbeat was due"


def test_what_is_fetched_comes_from_the_store_of_the_run(tmp_path: Path) -> None:
    uploads = Uploads()
    Lease(Log(LocalStore(tmp_path)), 0, 1, uploads).fetch("best/step-000000007-a0001")
    Lease(Log(LocalStore(tmp_path)), 0, 1).fetch("best/step-000000014-a0001")
    assert uploads.fetched == ["best/step-000000007-a0001"], "the files of the other are here"


def test_a_run_is_created_before_its_first_attempt(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Lease(Log(store), 0, 0, Uploads()).create()
    head = Log(store).head()
    assert head is not None
    assert (head.number, head.kind, head.attempt, head.has_owner) == (1, "create", 0, False)
    with pytest.raises(RunLostError):
        Lease(Log(store), 0, 0, Uploads()).create()
    lease = Lease(Log(store), 1, 1, Uploads())
    lease.take([], [])
    head = Log(store).head()
    assert head is not None
    assert (head.number, head.has_owner) == (2, True)
    lease.release()


def test_heartbeats_go_on_until_the_release_and_hear_of_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_BEAT", 0.01)
    uploads, before = Uploads(), set(threading.enumerate())
    lease = Lease(Log(LocalStore(tmp_path)), 0, 3, uploads)
    assert not lease.is_asked_to_stop
    lease.take([], [])
    assert not entries.has_ended(lease._writer)
    assert uploads.beaten.wait(10)
    assert uploads.again.wait(10)
    (thread,) = set(threading.enumerate()) - before
    lease.release()
    thread.join(10)
    assert lease.is_asked_to_stop, "once asked, it stays so"
    assert entries.has_ended(lease._writer)
    assert not thread.is_alive()
    assert set(uploads.beats) == {3}
    assert uploads.threads == {"trainwright-heartbeat, True"}
    lease.release()
    assert uploads.stopped == [3], "only once"


def test_a_store_that_is_away_gets_the_journal_with_the_next_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, uploads = LocalStore(tmp_path), Uploads()
    lease = Lease(Log(FaultyStore(store, Faults(fail, [2], **ENTRIES))), 0, 1, uploads)
    lease.take([], [])
    lease.renew()
    assert "the store cannot be reached now: injected: the store is away" in caplog.text
    lease.renew()
    assert [one.number for one in uploads.entries] == [1, 2]
    (tmp_path / "local").mkdir()
    local = leased(LocalStore(tmp_path / "local"))
    local.renew()
    assert Log(LocalStore(tmp_path / "local")).numbers() == [1], (
        "where there is no store, nothing is to be renewed"
    )
    lease.release()


def delete_all(root: Path) -> None:
    for path in (root / "log").iterdir():
        path.unlink()


def test_a_run_that_was_deleted_from_its_store_is_lost(tmp_path: Path) -> None:
    store, uploads = LocalStore(tmp_path), Uploads()
    lease = Lease(Log(store), 0, 1, uploads)
    lease.take([], [])
    lease.check()
    delete_all(tmp_path)
    for act in (lease.check, lambda: lease.commit(["a"], []), lease.renew):
        with pytest.raises(
            RunLostError, match="the run was deleted from its store: attempt 1 writes nothing more"
        ):
            act()
    assert len(uploads.entries) == 1
    assert Log(store).numbers() == []
    lease.release()


def test_an_attempt_that_has_lost_its_run_uploads_nothing_more(tmp_path: Path) -> None:
    store, uploads = LocalStore(tmp_path), Uploads()
    lease = Lease(Log(store), 0, 1, uploads)
    lease.take([], [])
    other = Lease(Log(store), 1, 2)
    other.take([], [])
    with pytest.raises(RunLostError, match="attempt 2 has taken the run over"):
        lease.commit(["a"], [])
    assert uploads.folders == ["0001-000001/"], "what it uploads now, nobody would delete"
    lease.release()
    other.release()


def test_a_run_that_is_deleted_while_it_commits_is_lost(tmp_path: Path) -> None:
    """Its entry would be the only one, as if the run were new; it goes again."""
    store, uploads = LocalStore(tmp_path), Uploads()
    faults = Faults(lambda: delete_all(tmp_path), [2], **ENTRIES)
    lease = Lease(Log(FaultyStore(store, faults)), 0, 1, uploads)
    lease.take([], [])
    with pytest.raises(RunLostError, match="the run was deleted from its store"):
        lease.commit(["a"], [])
    assert Log(store).numbers() == []
    assert len(uploads.entries) == 1
    lease.release()


def test_a_store_that_cannot_be_listed_is_an_error_of_the_disk(tmp_path: Path) -> None:
    lease = leased(FaultyStore(LocalStore(tmp_path), Faults(fail, [3], operations=["list"])))
    with pytest.raises(OSError, match="the store is away"):
        lease.check()
    lease.check()


# -- the log


def test_an_entry_under_another_number_is_damaged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    leased(store)
    (tmp_path / "log" / "000000001").rename(tmp_path / "log" / "000000002")
    (tmp_path / "log" / "notes").touch()
    assert Log(store).numbers() == [2], "other files are no entries"
    with pytest.raises(CheckpointError, match="entry 2 of the run's log is damaged: it is number 1"):
        Log(store).head()


def test_the_entries_of_each_prefix_are_a_log(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = leased(store)
    lease.commit(["a"], [])
    log = Log(store, "runs/one/log/")
    assert (log.head(), log.numbers()) == (None, [])
    assert [log.is_newest(0), Log(store).is_newest(1), Log(store).is_newest(2)] == [True, False, True]
    Log(store).remove()
    assert Log(store).numbers() == []


def test_an_entry_that_is_taken_by_one_that_cannot_be_read_may_be_ours(tmp_path: Path) -> None:
    """It is unknown whether it was written: the caller writes again."""
    store = LocalStore(tmp_path)
    leased(store)
    entry = Log(store).read(1)
    with pytest.raises(OSError, match="the store is away"):
        Log(FaultyStore(store, Faults(fail, operations=["get"]))).write(entry)


@pytest.mark.parametrize("tries", [4, 5])
def test_a_reader_tries_again_where_the_newest_entry_is_gone(tries: int, tmp_path: Path) -> None:
    """Five times, and then once more, so that the error is the store's own."""
    store = LocalStore(tmp_path)
    leased(store)
    reads = Faults(fail, range(1, tries + 2), operations=["get"])
    log = Log(FaultyStore(store, reads))
    if tries == 4:
        assert log.head() is not None
    else:
        with pytest.raises(CheckpointError, match="the store is away"):
            log.head()


def test_a_writer_of_a_process_that_is_gone_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process gets a signal for that: 0 only asks whether it is there."""
    errors = {700001: ProcessLookupError, 700002: PermissionError}

    def kill(pid: int, signum: int) -> None:
        assert signum == 0
        if pid in errors:
            raise errors[pid]

    monkeypatch.setattr(os, "kill", kill)
    writer = entries.new_writer()
    name, host = f"process {os.getpid()} ", f"on {socket.gethostname()}, "
    assert writer.startswith(f"{name}{host}")
    gone = writer.replace(name, "process 700001 ")
    assert entries.has_ended(gone)
    assert not entries.has_ended(writer.replace(name, "process 700002 "))
    assert not entries.has_ended(writer.replace(name, "process 700003 "))
    assert not entries.has_ended(writer.replace(name, "process one "))
    assert not entries.has_ended(gone.replace(host, "on another, "))
    assert not entries.has_ended("process 700001")
    assert writer != entries.new_writer()
