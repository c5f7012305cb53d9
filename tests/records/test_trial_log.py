"""The log of a study: what was written comes back, and what was damaged is told."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from trainwright.errors import CheckpointError
from trainwright.records.trials import FILE, SEAL, Ending, LoggedTrial, TrialLog, read_log

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


def test_a_line_without_a_checksum_is_damaged(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(len(line.pop("crc")) == 8 for line in lines)
    path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
    with pytest.raises(CheckpointError, match="line 1 is damaged: it has no checksum"):
        read_log(tmp_path)


@pytest.mark.parametrize("more", [b"", b"\n"])
def test_a_kill_leaves_a_torn_line_or_one_that_is_not_sealed_yet(more: bytes, tmp_path: Path) -> None:
    path = written(tmp_path)
    whole, before = path.read_bytes(), (tmp_path / SEAL).read_bytes()
    log = TrialLog(tmp_path)
    log.note(time_limit=4)
    log.close()
    (tmp_path / SEAL).write_bytes(before)
    path.write_bytes(path.read_bytes()[:-1] + more)
    log = TrialLog(tmp_path)
    assert log.notes == [{"time_limit": 3}] + [{"time_limit": 4}] * len(more)
    log.note(time_limit=5)
    log.close()
    assert read_log(tmp_path).notes[-1] == {"time_limit": 5}
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("how", ["delete", "double", "swap", "truncate"])
def test_lines_that_are_gone_or_moved_are_noticed(how: str, at: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "swap":
        lines[at], lines[at - 1] = lines[at - 1], lines[at]
    else:
        lines[at:] = {
            "delete": lines[at + 1 :],
            "double": [lines[at], *lines[at:]],
            "truncate": [],
        }[how]
    path.write_bytes(b"".join(lines))
    if (how, at) == ("double", 6):  # a note, which may come twice: one line may be there that is not sealed
        assert read_log(tmp_path).notes == [{"time_limit": 3}] * 2
        return
    for read in (TrialLog, read_log):
        with pytest.raises(CheckpointError, match=r"trials\.jsonl"):
            read(tmp_path)


@pytest.mark.parametrize("content", [None, b"12 ab\n", b"9 " + b"0" * 64 + b"\n"])
def test_a_seal_that_is_damaged_or_gone_is_named(content: bytes | None, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / SEAL).unlink() if content is None else (tmp_path / SEAL).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"trials\.jsonl is damaged"):
        read_log(tmp_path)


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
