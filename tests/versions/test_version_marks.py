"""Processes that add or delete at once, on other machines, too: none deletes what another one relies on."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainwright
from trainwright.errors import DataError, InputError
from trainwright.stores.base import Store
from trainwright.versions.embedded import EmbeddedVersion, sweep
from trainwright.versions.embedded import add as adding

BUSY = Path("runs/.data/busy")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sweep, "_CHECKED_SECONDS", 0.0)
    Path("churn.csv").write_text("a\n1\n")
    trainwright.data_add("churn.csv")
    return tmp_path


@pytest.fixture
def store(here: Path) -> Store:
    return EmbeddedVersion((here / "runs").as_uri()).store


def as_if_elsewhere(hours: float) -> None:
    """Make the one mark that of another machine, which last renewed it so long ago."""
    (mark,) = BUSY.iterdir()
    note = json.loads(mark.read_text())
    mark.write_text(json.dumps(note | {"machine": "other", "time": time.time() - 3600 * hours}))


@pytest.mark.parametrize("dead_after", [25.0, -25.0])  # hours; a clock may be wrong
def test_an_add_elsewhere_counts_as_dead_a_day_after_its_last_sign(store: Store, dead_after: float) -> None:
    add = sweep.adding(store)
    add.__enter__()
    for hours in (23.0, -23.0):
        as_if_elsewhere(hours)
        with pytest.raises(InputError, match="data are added or deleted"):
            trainwright.data_gc()
    as_if_elsewhere(dead_after)
    trainwright.data_gc()
    assert not BUSY.exists()
    with pytest.raises(DataError, match="paused for so long"):
        add.__exit__(None, None, None)
    trainwright.data_gc()
    assert not BUSY.exists()


def test_what_an_add_stored_is_not_named_once_it_counted_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = adding._bytes_of

    def paused(*given: object) -> bytes:
        as_if_elsewhere(25.0)
        trainwright.data_gc()
        return reading(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(adding, "_bytes_of", paused)
        Path("churn.csv").write_text("a\n2\n")
        with pytest.raises(DataError, match="paused for so long that others took it for dead"):
            trainwright.data_add("churn.csv")
    assert [one["version"] for one in trainwright.data_log()] == ["churn@v1"]
    assert trainwright.data_add("churn.csv")["version"] == "churn@v2"
    assert trainwright.data_get("churn@v2", "out.csv").read_text() == "a\n2\n"


def test_gc_deletes_no_more_once_it_counted_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("churn.csv").write_text("a\n2\n")
    trainwright.data_add("churn.csv")
    trainwright.data_delete("churn@v2")
    from trainwright.api import data

    finding = data.unneeded

    def paused(*given: object) -> list[str]:
        keys = finding(*given)  # type: ignore[arg-type]
        as_if_elsewhere(25.0)
        assert trainwright.data_add("churn.csv")["version"] == "churn@v3"
        return keys

    with monkeypatch.context() as patched:
        patched.setattr(data, "unneeded", paused)
        with pytest.raises(DataError, match="paused for so long"):
            trainwright.data_gc()
    assert trainwright.data_get("churn@v3", "out.csv").read_text() == "a\n2\n"


def test_a_mark_is_renewed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()

    def note() -> Iterator[bytes]:
        yield b'{"first": 1}'
        while True:
            renewed.set()
            yield b'{"again": 1}'

    notes = note()
    monkeypatch.setattr(sweep, "_note", lambda: next(notes))
    monkeypatch.setattr(sweep, "_RENEWED_SECONDS", 0.01)
    mark = sweep.Mark(store, "busy/add-")
    assert renewed.wait(30)
    ended = mark._ended
    ended.set()
    mark._thread.join()
    assert store.get(mark.key) == b'{"again": 1}'
    mark.end()
    assert [*store.list("busy/")] == []


def test_a_note_that_nobody_wrote_stops_nobody(store: Store) -> None:
    for note in (b"", b"{}", b"[]", b'{"machine": 1, "pid": 1, "time": "x", "host": 1}', b"[" * 100_000):
        store.put_if_absent("busy/add-crafted", note)
        trainwright.data_gc()
        assert [*store.list("busy/")] == []


def test_the_dead_are_forgotten_in_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_if_absent("busy/add-crafted", b"{}")
    trainwright.data_gc()
    assert len([*store.list("dead/")]) == 1
    trainwright.data_gc()
    assert len([*store.list("dead/")]) == 1
    monkeypatch.setattr(sweep, "_FORGOTTEN_SECONDS", -1.0)
    assert trainwright.data_gc().objects == 1
    assert [*store.list("dead/")] == []


def test_holders_are_looked_for_while_nobody_else_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.api import data

    looking, seen = data.holders, list[int]()

    def counted(runs_dir: Path) -> dict[str, list[str]]:
        seen.append(len([*BUSY.iterdir()]) if BUSY.exists() else 0)
        return looking(runs_dir)

    monkeypatch.setattr(data, "holders", counted)
    Path("churn.csv").write_text("a\n2\n")
    trainwright.data_add("churn.csv")
    assert trainwright.data_gc(keep=1).versions == ["churn@v1"]
    trainwright.data_delete("churn@v2")
    assert seen == [1, 1]
