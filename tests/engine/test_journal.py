"""The journal: later segments supersede, torn lines end, values keep their bits."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright import safe_files
from trainwright.engine import journal
from trainwright.engine.journal import Journal
from trainwright.records import journal as records_journal
from trainwright.records.decision import Decision
from trainwright.records.journal import SegmentReader, losses, number, read


def write(folder: Path, attempt: int, from_step: int, upto: int, *, loss: float = 1.0) -> None:
    journal = Journal(folder, attempt, from_step)
    for first in range(from_step + 1, upto + 1, 5):
        journal.losses(first, [loss] * min(5, upto + 1 - first))
        journal.values("metrics", min(first + 4, upto), {"train_loss": loss})
    journal.flush()
    journal.close()


def test_what_a_later_segment_repeats_is_superseded(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 23, loss=1.0)
    write(tmp_path, 2, 12, 20, loss=2.0)
    found = losses(read(tmp_path))
    assert found == {step: 1.0 if step <= 12 else 2.0 for step in range(1, 21)}
    steps = [record["step"] for record in read(tmp_path) if record["kind"] == "metrics"]
    assert steps == [5, 10, 17, 20]


def test_what_is_due_at_the_step_that_an_attempt_begins_with_counts_once(tmp_path: Path) -> None:
    """As where a signal cut the evaluation short, and the attempt that made it was killed; or after the last one."""
    write(tmp_path, 1, 0, 12)
    for attempt in (2, 3):
        segment = Journal(tmp_path, attempt, 12)
        segment.decision(Decision(20, "stop", {}))
        segment.values("evaluation", 12, {"val_loss": attempt})
        segment.event(12, "best", value=attempt)
        segment.values("metrics", 12, {"system_cpu_percent": attempt})
        segment.values("evaluation", 12, {"test_loss": attempt})
        segment.losses(13, [float(attempt)])
        segment.close()
    found = [record for record in read(tmp_path) if record.get("step", 0) == 12]
    once = [record.get("values", record.get("detail")) for record in found]
    assert once == [
        {"train_loss": 1.0},
        *({name: 3} for name in ("val_loss", "value", "system_cpu_percent", "test_loss")),
    ]
    assert losses(read(tmp_path)) == {**dict.fromkeys(range(1, 13), 1.0), 13: 3.0}


@pytest.mark.parametrize(
    "tail", ['{"kind":"losses","first":24', '{"kind":"losses","fir\n', "[1, 2]\n", "\x00\x00\n"]
)
def test_a_torn_line_ends_a_segment(tail: str, tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 23)
    with open(tmp_path / "0001.jsonl", "a") as segment:
        segment.write(tail)
    assert max(losses(read(tmp_path))) == 23


def test_values_keep_their_bits_and_those_json_cannot_hold(tmp_path: Path) -> None:
    values = [0.1, 1 / 3, 5e-324, -0.0, math.inf, -math.inf]
    journal = Journal(tmp_path, 1, 0)
    journal.losses(1, [*values, math.nan])
    journal.end(7, "completed")
    found = losses(read(tmp_path))
    assert [repr(found[step]) for step in range(1, 7)] == [repr(value) for value in values]
    assert math.isnan(found[7])
    assert number("Infinity") == math.inf


def test_each_record_is_a_line_of_compact_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 3, 12)
    path = tmp_path / "0003.jsonl"
    assert json.loads(path.read_text())["from_step"] == 12, (
        "a reader finds the attempt as soon as there is one"
    )
    journal.values("metrics", 13, {"train_loss": math.inf, "epoch": 1, "note": "é"})
    journal.event(13, "best", value=-math.inf, metric="val_loss", steps=(1, 2))
    journal.flush()
    lines = path.read_text(encoding="ascii").splitlines()
    records = [json.loads(line) for line in lines]
    assert lines == [json.dumps(record, separators=(",", ":")) for record in records]
    assert records[1]["values"] == {"train_loss": "Infinity", "epoch": 1, "note": "é"}
    assert records[2]["detail"] == {"value": "-Infinity", "metric": "val_loss", "steps": [1, 2]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.values("histograms", 13, {"w": [math.nan]})
    journal.close()


def test_a_forked_child_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1, 0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="a forked child"):
        journal.event(1, "best")
    journal.close()
    assert len((tmp_path / "0001.jsonl").read_text().splitlines()) == 1


def test_the_end_of_an_attempt_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable: list[str] = []
    journal = Journal(tmp_path, 1, 0)
    monkeypatch.setattr(os, "fsync", lambda fd: durable.append((tmp_path / "0001.jsonl").read_text()))
    journal.end(7, "completed")
    last = json.loads(durable[-1].splitlines()[-1])
    assert (last["kind"], last["step"], last["status"]) == ("end", 7, "completed")
    file = journal._file
    assert not journal.is_closed
    journal.close()
    assert journal.is_closed
    assert file.closed


def test_a_decision_is_on_the_disk_before_its_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: list[str] = []
    journal = Journal(tmp_path, 1, 0)
    monkeypatch.setattr(os, "fsync", lambda fd: durable.append((tmp_path / "0001.jsonl").read_text()))
    journal.decision(Decision(7, "prune"))
    (kept,) = durable
    journal.close()
    last = json.loads(kept.splitlines()[-1])
    assert (last["kind"], last["step"], last["name"]) == ("decision", 7, "prune")


def test_an_attempt_never_writes_into_a_segment_that_is_there(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 5)
    with pytest.raises(FileExistsError):
        Journal(tmp_path, 1, 0)


def test_a_segment_has_a_durable_name_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, list[str]]] = []

    def spy(folder: Path) -> None:
        synced.append((folder.name, sorted(path.name for path in folder.iterdir())))

    monkeypatch.setattr(safe_files, "fsync_folder", spy)  # `make_folders` calls this one
    monkeypatch.setattr(journal, "fsync_folder", spy)
    Journal(tmp_path / "run" / "journal", 1, 0).close()
    assert synced[-3:] == [("run", ["journal"]), (tmp_path.name, ["run"]), ("journal", ["0001.jsonl"])]


def test_reading_the_journal_and_the_records_does_without_numpy() -> None:
    code = (
        "import sys; import trainwright.records.journal, trainwright.storage.index; "
        "from trainwright.api import summaries; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_segments_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for attempt in (9999, 10000):
        write(tmp_path, attempt, 0, 5, loss=float(attempt))
    (tmp_path / "0001-copy.jsonl").touch()
    assert losses(read(tmp_path)) == dict.fromkeys(range(1, 6), 10000.0)


SAMPLES = [
    {"kind": "losses", "first": 1, "values": [0.5, "NaN"]},
    {"kind": "metrics", "step": 2, "values": {"train_loss": 0.5, "bad": "Infinity"}},
    {"kind": "evaluation", "step": 2, "values": {"val_loss": 1}},
    {
        "kind": "histograms",
        "step": 2,
        "values": {"w": {"edges": [0.0, 1.0], "counts": [3], "sum": 1.0, "sum_squares": 1.0}},
    },
    {"kind": "event", "step": 2, "name": "early_stop", "detail": {"metric": "val_loss"}},
    {"kind": "end", "step": 2, "status": "completed"},
]
WRONG = ["x", None, [], {}, [None], {"a": None}, {"a": {}}, ["x"], -1, 0.5, 10**400, 10**17, True]
# What is wrong for one key is right for another.
RIGHT = {
    ("losses", "values"): [[]],
    ("metrics", "values"): [{}],
    ("evaluation", "values"): [{}],
    ("histograms", "values"): [{}],
    ("event", "name"): ["x"],
    ("event", "detail"): [{}, {"a": None}, {"a": {}}],
    ("end", "status"): ["x"],
    ("*", "time"): [0.5, True],
}


def reading(folder: Path, *lines: bytes) -> SegmentReader:
    """The reader of a segment whose first line is whole, having read it."""
    folder.mkdir(exist_ok=True)
    start = b'{"kind":"start","time":0,"attempt":1,"from_step":0}\n'
    (folder / "0001.jsonl").write_bytes(b"".join([start, *lines]))
    segment = SegmentReader(folder / "0001.jsonl")
    for _ in segment:
        pass
    return segment


def line(record: dict[str, object]) -> bytes:
    return json.dumps({"time": 1.0, **record}).encode() + b"\n"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["kind"])
def test_a_record_without_a_key_or_with_a_value_of_a_wrong_type_is_damage(sample, tmp_path: Path) -> None:
    assert (reading(tmp_path, line(sample)).damage, reading(tmp_path, line(sample)).lines) == (0, 2)
    for key in (*sample, "time"):
        whole = {"time": 1.0, **sample}
        del whole[key]
        assert reading(tmp_path, json.dumps(whole).encode() + b"\n").damage == 2, f"without {key}"
        right = RIGHT.get((sample["kind"], key), []) + RIGHT.get(("*", key), [])
        for wrong in WRONG:
            segment = reading(tmp_path, line(sample), line({**sample, key: wrong}), line(sample))
            accepted = any(wrong == value and type(wrong) is type(value) for value in right)
            assert segment.damage == (0 if accepted else 3), (key, wrong)


@pytest.mark.parametrize(
    "values",
    [
        b'{"w":{"edges":[0,1],"counts":[1],"sum":1}}',
        b'{"w":{"edges":[0,1],"counts":[1],"sum":1,"sum_squares":1,"more":1}}',
        b'{"w":{"edges":[0],"counts":[1],"sum":1,"sum_squares":1}}',
        b'{"w":{"edges":[],"counts":[],"sum":1,"sum_squares":1}}',
        b'{"w":{"edges":["0","1"],"counts":[1],"sum":1,"sum_squares":1}}',
        b'{"w":{"edges":[0,1],"counts":[null],"sum":1,"sum_squares":1}}',
        b'{"w":{"edges":[0,1],"counts":[1],"sum":"NaN","sum_squares":1}}',
        b'{"w":[]}',
    ],
)
def test_a_histogram_that_is_none_is_damage(values: bytes, tmp_path: Path) -> None:
    assert (
        reading(tmp_path, b'{"kind":"histograms","time":0,"step":1,"values":' + values + b"}\n").damage == 2
    )


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"kind":"metrics","time":0,"step":1,"values":{"a":NaN}}\n',
        b'{"kind":"metrics","time":0,"step":1,"values":{"a":-Infinity}}\n',
        b'{"kind":"losses","time":0,"first":1,"values":[1,2,]}\n',
        b'{"kind":"unheard of","time":0,"step":1}\n',
        b'{"kind":"start","time":0,"attempt":1,"from_step":0}\n',
        b'{"kind":"end","time":0,"step":1,"status":"completed"} {}\n',
        b'{"kind":"end","time":0,"step":1,"status":"\xff"}\n',
        b"[" * 100_000 + b"\n",
        b"9" * 10_000 + b"\n",
        b"\n",
        b"null\n",
        b"\x00" * 5000 + b"\n",
    ],
)
def test_a_damaged_line_ends_what_counts_and_is_named(damaged: bytes, tmp_path: Path) -> None:
    whole = line(SAMPLES[0])
    reading(tmp_path, whole, damaged, whole)
    problems: list[str] = []
    assert [record["kind"] for record in read(tmp_path, problems)] == ["start", "losses"]
    (problem,) = problems
    assert f"{tmp_path.name}/0001.jsonl: line 3 is damaged" in problem


def test_a_line_that_never_ends_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_journal, "LONGEST_LINE", 1000)
    assert reading(tmp_path, b"x" * 5000).damage == 2
    assert reading(tmp_path, b"x" * 999).damage == 0  # torn


def test_a_torn_line_is_no_damage(tmp_path: Path) -> None:
    whole = line(SAMPLES[1])
    for cut in range(1, len(whole)):
        segment = reading(tmp_path, whole, whole[:-cut])
        assert (segment.damage, segment.lines) == (0, 2)


def test_a_segment_without_a_start_counts_for_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 10)
    write(tmp_path, 2, 5, 10, loss=2.0)
    path = tmp_path / "0002.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"from_step"', b'"from_stop"', 1))
    assert losses(read(tmp_path)) == dict.fromkeys(range(1, 11), 1.0)


def test_lines_are_compact_and_hold_no_number_that_json_lacks(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)  # the run directory may be a link
    journal = Journal(tmp_path / "link" / "journal", 1, 0)
    assert (tmp_path / "journal" / "0001.jsonl").read_bytes().startswith(b'{"kind":"start","time":')
    with pytest.raises(ValueError, match="JSON"):
        journal.values("histograms", 1, {"w": {"sum": math.nan}})
    journal.close()


def test_an_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1, 0)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        journal.sync()
    assert (raised.value.errno, raised.value.filename) == (28, str(tmp_path / "0001.jsonl"))
    journal.close()


class Full:
    """A file on a full disk."""

    def write(self, _: bytes) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("act", ["write", "flush", "make"])
def test_a_full_disk_is_named_wherever_it_is_met(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        made = Journal(tmp_path, 1, 0)
        monkeypatch.setattr(made, "_file", Full())
        if act != "make":
            (made.flush if act == "flush" else lambda: made.losses(1, [0.5]))()

    if act == "make":
        monkeypatch.setattr(journal, "fsync_folder", lambda _: Full().flush())
    with pytest.raises(OSError, match="No space left") as raised:
        run()
    assert (raised.value.errno, raised.value.filename) == (28, str(tmp_path / "0001.jsonl"))
