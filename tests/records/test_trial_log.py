"""The log of a study: what was written comes back, and what was damaged is told."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from trainwright.errors import CheckpointError
from trainwright.records.trials import FILE, Ending, LoggedTrial, TrialLog, read_log

ENDED = Ending("completed", 0.1 + 0.2, 10, ((8, 0.5), (10, 0.1 + 0.2)), "d", 1.5, None, {"val_loss": 0.3})


def written(folder: Path) -> Path:
    log = TrialLog(folder)
    for number in range(3):
        log.begin(LoggedTrial(number, {"training.learning_rate": 10.0**-number}, f"run-{number}"))
        log.end(number, ENDED)
    log.note(time_limit=3)
    log.close()
    return folder / FILE


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """But in the line break at the end, without which the last line counts as torn by a kill."""
    path = written(tmp_path)
    content, before = path.read_bytes(), read_log(tmp_path)
    assert before.trials[2].ending == ENDED
    for at in range(len(content) - 1):
        for bit in (at % 8, 5):  # the fifth makes a carriage return of a minus sign
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            with contextlib.suppress(CheckpointError):
                assert read_log(tmp_path) == before


def test_a_line_without_a_checksum_is_one_of_an_earlier_version(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = read_log(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(len(line.pop("crc")) == 8 for line in lines)
    path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
    assert read_log(tmp_path) == before


def test_a_torn_line_is_cut_off_and_the_log_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    log = TrialLog(tmp_path)
    assert log.notes == []
    log.note(time_limit=3)
    log.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "line", ['{"trial": 7, "end": {}}', "[]", "{}", '{"trial": 5, "params": 1, "run_id": 2}']
)
def test_lines_that_make_no_sense_are_damaged(line: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"{line}\n")
    with pytest.raises(CheckpointError, match=r"trials\.jsonl: line 1 is damaged"):
        read_log(tmp_path)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_is_not_followed_and_a_pipe_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    """What it leads to would be cut down to its whole lines."""
    mine, study = tmp_path / "mine", tmp_path / "study"
    mine.write_text("without a line break")
    study.mkdir()
    (study / FILE).symlink_to(mine) if kind == "link" else os.mkfifo(study / FILE)
    for read in (TrialLog, read_log):
        with pytest.raises(CheckpointError, match=r"trials\.jsonl cannot be read"):
            read(study)
    assert mine.read_text() == "without a line break"
