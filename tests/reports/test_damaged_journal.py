"""No damage to a journal makes any of its readers raise; what stands before it counts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from small_runs import crashed
from trainwright import api
from trainwright.cli.main import main
from trainwright.engine.journal import Journal
from trainwright.records.journal import each_loss, read
from trainwright.reports import journal
from trainwright.reports.html import write_report
from trainwright.reports.summary import damage, html_table, summary_table
from trainwright.runs.reproduce import _side_by_side
from trainwright.runs.run import Run
from trainwright.trackers.base import RunCard
from trainwright.trackers.feed.feeder import Feeder
from trainwright.trackers.feed.state import State
from trainwright.trackers.feed.tail import pending
from written import write_record

BARS = {"w": {"edges": [0.0, 0.5, 1.0], "counts": [1, 2], "sum": 3.0, "sum_squares": 2.0}}
VALUES = [None, True, -1, 0, 1.5, "x", "NaN", [], {}, [[]], {"a": {}}, 10**30, 10**400, 2**60]
BYTES = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"[" * 5000,
    b"9" * 5000,
    b'"',
    b"\\",
    b"\xff",
    b"\x00" * 100,
    b"{}",
    b"\n",
]


def make(run: Path) -> None:
    """A run of two attempts, with every kind of record."""
    (run / "trackers").mkdir(parents=True)
    (run / "config.yaml").write_text("experiment: {name: fuzz}\n")
    write_record(run / "manifest.json", {"run_id": "fuzz", "experiment": "fuzz"})
    for attempt, (first, last) in enumerate([(0, 40), (25, 60)], start=1):
        segment = Journal(run / "journal", attempt, first)
        for step in range(first + 1, last, 5):
            segment.losses(step, [1 / at for at in range(step, step + 5)])
            segment.values("metrics", step + 4, {"train_loss": 1 / step, "grad_norm": float("inf")})
            segment.values("evaluation", step + 4, {"val_loss": 1 / step})
            segment.values("histograms", step + 4, BARS)
            segment.event(step + 4, "skipped_batch", reason="loss spike", loss=float("nan"))
        segment.event(last, "step_times", steps=5, hosts=[["a", 2]], medians=[0.1, 0.2], longest=[1, 2])
        segment.end(last, "preempted")
        segment.close()


def flip(line: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(line))
    return line[:at] + bytes([line[at] ^ 1 << draw.randrange(8)]) + line[at + 1 :]


def replace_value(line: bytes, draw: random.Random) -> bytes:
    record = json.loads(line)
    holder, key = draw.choice(list(holders(record)))
    holder[key] = draw.choice(VALUES)
    return json.dumps(record).encode() + b"\n"


def remove_key(line: bytes, draw: random.Random) -> bytes:
    record = json.loads(line)
    holder, key = draw.choice(list(holders(record)))
    del holder[key]
    return json.dumps(record).encode() + b"\n"


def holders(value: Any) -> Any:
    """Each key or index at any depth, with what holds it."""
    for key, child in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(child, dict | list):
            yield from holders(child)


def insert(line: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(line))
    return line[:at] + draw.choice(BYTES) + line[at:]


def cut(line: bytes, draw: random.Random) -> bytes:
    return line[: draw.randrange(len(line))]


def double(line: bytes, draw: random.Random) -> bytes:
    return line + line


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    flip,
    replace_value,
    remove_key,
    insert,
    cut,
    double,
]


class Sink:
    """A tracker that takes only what a strict library would take."""

    wants_histograms = True

    def open(self, card: RunCard) -> dict[str, int]:
        return {}

    def log(self, points: Any) -> None:
        for point in points:
            assert (type(point.metric), type(point.step), type(point.value)) == (str, int, float)
            assert 0 <= point.step < 2**63
            assert 0 <= int(point.time * 1000) < 2**63

    def log_histograms(self, histograms: Any) -> None:
        for bars in histograms:
            assert len(bars.edges) == len(bars.counts) + 1
            assert sum(map(float, (*bars.edges, *bars.counts, bars.sum, bars.sum_squares))) is not None

    def close(self, status: str) -> None:
        assert isinstance(status, str)

    def log_artifact(self, path: Path, name: str) -> None:
        """Takes anything."""


def read_everything(run: Path, *, page: bool) -> None:
    """Has every reader read a run."""
    list(read(run / "journal"))
    Run(run).history()
    list(_side_by_side(*(each_loss(read(run / "journal")) for _ in range(2))))
    summary_table(run)
    html_table(run)
    damage(run)
    if page:
        write_report(run)
    pending(run / "journal", State())
    feeder = Feeder(RunCard("fuzz", "fuzz", run, {}, {}), run / "trackers" / "0-sink.json", Sink)
    feeder.forward()
    feeder.finish(crashed=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole")
    make(run)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_no_reader_raises(
    damage: Callable[[bytes, random.Random], bytes],
    cached: bool,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if cached:
        monkeypatch.setattr(journal, "CACHED_FROM", 100)
    (tmp_path / "trackers").mkdir()
    (tmp_path / "journal").mkdir()
    (tmp_path / "config.yaml").write_text("{}")
    segments = {path.name: path.read_bytes() for path in (whole / "journal").glob("*.jsonl")}
    intact = list(read(whole / "journal"))
    for seed in range(30):
        draw = random.Random(f"{damage.__name__} {seed}")
        name = draw.choice(sorted(segments))
        for other, data in segments.items():
            (tmp_path / "journal" / other).write_bytes(data)
        lines = segments[name].splitlines(keepends=True)
        at = draw.randrange(len(lines))
        lines[at] = damage(lines[at], draw)
        (tmp_path / "journal" / name).write_bytes(b"".join(lines))
        (tmp_path / "trackers" / "0-sink.json").unlink(missing_ok=True)
        try:
            read_everything(tmp_path, page=seed % 10 == 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}: line {at + 1} of {name} is {lines[at][:200]!r}") from error
        if name == "0002.jsonl" and at > 0:
            before = intact[: len(intact) - len(lines) + at]
            assert list(read(tmp_path / "journal"))[: len(before)] == before


def test_show_and_the_report_name_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "fuzz" / "20260101-120000-abc123"
    make(run)
    path = run / "journal" / "0002.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b'"step"', b'"stop"')
    path.write_bytes(b"".join(lines))
    assert main(["runs", "show", str(run)]) == 0
    problem = "journal/0002.jsonl: line 8 is damaged"
    assert capsys.readouterr().err.count(problem) == 1
    assert write_report(run).read_text(encoding="utf-8").count(problem) == 1
    assert dict(summary_table(run))["steps"] == "40"  # of the first attempt: the second counts up to step 35


def test_a_resume_does_not_need_the_journal(tmp_path: Path) -> None:
    run = crashed(tmp_path)
    path = run.path / "journal" / "0001.jsonl"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] = 0
    path.write_bytes(data)
    resumed = api.resume(str(run.path))
    assert resumed.status == "completed"
    assert "journal/0001.jsonl: line" in (run.path / "report.html").read_text(encoding="utf-8")
