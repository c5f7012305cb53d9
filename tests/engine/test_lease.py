"""The log and the lease: one attempt writes, a loser finds out and writes nothing, lost answers are settled."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.engine.lease import Lease
from trainyard.errors import CheckpointError, RunLockedError, RunLostError
from trainyard.records import log as entries
from trainyard.records.log import Log, committed
from trainyard.stores.local import LocalStore
from trainyard.testing.faults import Faults, FaultyStore, fail

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
    assert committed(store, "checkpoints") is None, "a run of an earlier version has no log"
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
    lease = leased(FaultyStore(store, Faults(fail, [5], operations=["list"])))
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
    monkeypatch.setattr(entries, "_namespace", lambda: "another")
    assert not entries.has_ended(writer)
