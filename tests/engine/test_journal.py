"""The journal: later segments supersede, torn lines end, values keep their bits."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard import digest
from trainyard.engine import journal
from trainyard.engine.journal import Journal
from trainyard.records.journal import losses, number, read


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
    journal.event(13, "best", value=-math.inf, metric="val_loss")
    journal.flush()
    lines = path.read_text(encoding="ascii").splitlines()
    records = [json.loads(line) for line in lines]
    assert lines == [json.dumps(record, separators=(",", ":")) for record in records]
    assert records[1]["values"] == {"train_loss": "Infinity", "epoch": 1, "note": "é"}
    assert records[2]["detail"] == {"value": "-Infinity", "metric": "val_loss"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.values("histograms", 13, {"w": [math.nan]})
    journal.close()


def test_the_end_of_an_attempt_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable: list[str] = []
    journal = Journal(tmp_path, 1, 0)
    monkeypatch.setattr(os, "fsync", lambda fd: durable.append((tmp_path / "0001.jsonl").read_text()))
    journal.end(7, "completed")
    last = json.loads(durable[-1].splitlines()[-1])
    assert (last["kind"], last["step"], last["status"]) == ("end", 7, "completed")
    file = journal._file
    journal.close()
    assert file.closed


def test_an_attempt_never_writes_into_a_segment_that_is_there(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 5)
    with pytest.raises(FileExistsError):
        Journal(tmp_path, 1, 0)


def test_a_segment_has_a_durable_name_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, list[str]]] = []

    def spy(folder: Path) -> None:
        synced.append((folder.name, sorted(path.name for path in folder.iterdir())))

    monkeypatch.setattr(digest, "fsync_folder", spy)  # `make_folders` calls this one
    monkeypatch.setattr(journal, "fsync_folder", spy)
    Journal(tmp_path / "run" / "journal", 1, 0).close()
    assert synced[-3:] == [("run", ["journal"]), (tmp_path.name, ["run"]), ("journal", ["0001.jsonl"])]


def test_reading_the_journal_does_without_numpy() -> None:
    code = "import sys; import trainyard.records.journal; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
