"""The journal for people: what is superseded, what is counted only, and the cache."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from trainwright.engine.journal import Journal
from trainwright.records import journal as records
from trainwright.reports import journal
from trainwright.reports.journal import History, read_history


def write(folder: Path, attempt: int, first: int, last: int, *, end: str = "") -> Journal:
    segment = Journal(folder, attempt, first)
    for step in range(first + 1, last + 1, 10):
        upto = min(step + 9, last)
        segment.losses(step, [attempt + at / 1e6 for at in range(step, upto + 1)])
        segment.values("metrics", upto, {"train_loss": 1.0 / step, "rate": attempt})
        segment.values("evaluation", upto, {"val_loss": 2.0 / step, "test_loss": 0.5})
        segment.event(upto, "skipped_batch", since=step)
        segment.event(upto, "best", metric="val_loss", value=1.0)
    if end:
        segment.end(last, end)
    segment.close()
    return segment


def points(history: History) -> dict[str, dict[int, float]]:
    return {
        name: dict(zip(curve.envelope.x.astype(int).tolist(), curve.envelope.mean.tolist(), strict=True))
        for name, curve in history.curves.items()
    }


def expected(folder: Path) -> dict[str, dict[int, float]]:
    """All points, from the records that count."""
    found: dict[str, dict[int, float]] = {"loss": records.losses(records.read(folder))}
    for record in records.read(folder):
        if record["kind"] in ("metrics", "evaluation"):
            for name, value in record["values"].items():
                if not name.startswith("test_"):
                    found.setdefault(name, {})[record["step"]] = value
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three attempts, the second of which is superseded almost wholly."""
    write(tmp_path, 1, 0, 500)
    write(tmp_path, 2, 300, 480)
    write(tmp_path, 3, 310, 600, end="preempted")
    return tmp_path


def test_superseded_points_and_events_are_left_out(folder: Path) -> None:
    history = read_history(folder)
    assert points(history) == expected(folder)
    assert [event.step for event in history.events] == list(range(10, 601, 10))
    assert [(a.number, a.from_step, a.last_step, a.status) for a in history.attempts] == [
        (1, 0, 500, ""),
        (2, 300, 480, ""),
        (3, 310, 600, "preempted"),
    ]
    assert history.problems == []


def test_an_event_that_an_attempt_repeats_at_its_first_step_is_shown_once(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 20)
    for attempt in (2, 3):
        segment = Journal(tmp_path, attempt, 20)
        segment.event(20, "learning_rate_drop", factor=0.5)
        segment.close()
    assert [(event.step, event.name) for event in read_history(tmp_path).events] == [
        (10, "skipped_batch"),
        (20, "skipped_batch"),
        (20, "learning_rate_drop"),
    ]


def test_a_cache_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = read_history(folder)
    assert list(folder.glob("*.summary")) == []
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    for _ in range(3):  # the first writes it
        again = read_history(folder)
        assert points(again) == points(without)
        assert (again.events, again.attempts) == (without.events, without.attempts)
    assert len(list(folder.glob("*.summary"))) == 3
    parsed = counted(monkeypatch)
    read_history(folder)
    assert parsed == {"0001.jsonl": 0, "0002.jsonl": 0, "0003.jsonl": 0}
    assert points(read_history(folder)) == expected(folder)


def test_who_writes_a_segment_keeps_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    written = Journal(tmp_path, 1, 0, journal.SegmentSummary)
    for step in range(10, 3001, 10):
        written.losses(step - 9, [math.sin(i) for i in range(step - 9, step)] + [math.nan])
        written.values("metrics", step, {"train_loss": math.cos(step), "rate": -math.inf, "count": step})
        written.event(step, "early_stop", metric="val_loss", limits=(1, 2))
        written.flush()
    parsed = counted(monkeypatch)
    kept = read_history(tmp_path)
    assert 0 < parsed["0001.jsonl"] < 900 / 5, "most of it is cached before anybody reads"
    (tmp_path / "0001.summary").unlink()
    monkeypatch.setattr(journal, "CACHED_FROM", 1 << 30)
    anew = read_history(tmp_path)
    assert parsed["0001.jsonl"] > 900
    np.testing.assert_equal(points(kept), points(anew))
    assert (kept.events, kept.attempts) == (anew.events, anew.attempts)
    written.close()


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many records of each segment are summed up from now on."""
    counts: dict[str, int] = {}

    class Counting(records.SegmentReader):
        def __iter__(self):
            counts.setdefault(self.path.name, 0)
            for record in super().__iter__():
                counts[self.path.name] += 1
                yield record

    monkeypatch.setattr(journal, "SegmentReader", Counting)
    return counts


def test_what_is_written_after_the_cache_is_read_from_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    read_history(folder)
    line = {"kind": "losses", "time": 5.0, "first": 601, "values": [7.0, 8.0]}
    with open(folder / "0003.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n" + '{"kind": "torn')
    parsed = counted(monkeypatch)
    history = read_history(folder)
    assert parsed["0003.jsonl"] == 1
    assert points(history) == expected(folder)
    assert (history.attempts[-1].last_step, history.attempts[-1].status) == (602, "")
    with open(folder / "0003.jsonl", "a") as file:
        file.write("\nmore")
    assert read_history(folder).problems == [
        f"{folder.name}/0003.jsonl: line {len((folder / '0003.jsonl').read_bytes().splitlines()) - 1} is damaged; "
        "this line and what follows it in the file are left out"
    ]


def test_a_later_attempt_supersedes_what_is_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    read_history(folder)
    write(folder, 4, 250, 260)
    assert points(read_history(folder)) == expected(folder)


def test_a_byte_that_changes_within_what_is_cached_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    read_history(folder)
    path = folder / "0001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[100] = lines[100].replace(b":", b";", 1)
    path.write_bytes(b"".join(lines))
    history = read_history(folder)
    assert points(history) == expected(folder)
    assert "0001.jsonl: line 101 is damaged" in history.problems[0]


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_cache_is_made_anew(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    before = points(read_history(folder))
    rng = np.random.default_rng(seed)
    path = folder / "0001.summary"
    data = bytearray(path.read_bytes())
    head = data.index(b"\n")
    at = int(rng.integers(head if seed % 2 else len(data)))
    data[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(data[: at + 1] if seed % 5 == 0 else data)
    assert points(read_history(folder)) == before


def test_a_cache_that_cannot_be_written_is_no_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CACHED_FROM", 5000)
    for number in (1, 2, 3):
        (folder / f"000{number}.summary").mkdir()
    history = read_history(folder)
    assert points(history) == expected(folder)
    assert history.problems == []
    assert list(folder.glob(".*")) == []


def test_a_frequent_event_is_counted_and_does_not_hide_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_EVENTS", 20)
    segment = Journal(tmp_path, 1, 0)
    for step in range(1, 101):
        segment.event(step, "skipped_batch")
    segment.event(100, "early_stop", metric="val_loss")
    segment.close()
    history = read_history(tmp_path)
    assert len(history.events) == 21
    assert history.more_events == 80
    assert history.events[-1].text == "early stop (metric val_loss)"


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "0001.jsonl").mkdir()
    history = read_history(tmp_path)
    assert history.attempts == []
    assert history.problems == ["journal: cannot be read (Is a directory)"]


def test_memory_does_not_grow_with_the_journal(tmp_path: Path) -> None:
    segment = Journal(tmp_path, 1, 0)
    for first in range(1, 100_000, 500):
        segment.losses(first, [first / 7] * 500)
        segment.values("metrics", first + 499, {"train_loss": 0.5})
    segment.close()
    tracemalloc.start()
    history = read_history(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert history.attempts[0].last_step == 100_000
    assert peak < 4 << 20
