"""The log of a tuning study: one line for each stint that is begun, and one for each that has ended.

A trial is one stint, or one for each rung that it trains up to. A line is durable before it has a
consequence: the parameters of a trial before its run is trained, and its result before a later trial is
decided. The last line may be torn by a kill, and is then cut off. Each line ends with its checksum.

`trials.seal` beside it has the length and the SHA-256 of the log, so that a line that is gone or changed is
noticed. It is written after each line, so it may be older than the log: the lines behind it are checked by
themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainwright.errors import CheckpointError
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import (
    TEMPORARY_SUFFIX,
    fsync_folder,
    open_regular,
    read_regular,
    write_atomically,
)

FILE, SEAL = "trials.jsonl", "trials.seal"
TIME_LIMIT, LIMIT_LIFTED = "time_limit", "go_on"  # kinds of notes; see `LoggedTrials.is_over_time`
LENGTH = "trials"  # the kind of the notes of how many trials a study is to have
_SEAL = re.compile(rb"(\d{1,15}) ([0-9a-f]{64})\n")
_REMEDY = "put the files of the study back from a backup, or begin another study"
_CHECKED = re.compile(rb'(.*),"crc":"([0-9a-f]{8})"}\n')
TrialStatus = Literal["running", "paused", "completed", "pruned", "failed"]
Json = dict[str, Any]


class Ending(NamedTuple):
    """The end of a trial, or of one of its stints.

    Attributes:
        status: `completed`, `paused` at a rung, `pruned` or `failed`.
        value: The best value of the study's metric; None if there is none.
        step: The step of this value.
        curve: The metric at each evaluation, as (step, value).
        digest: The digest of the final weights.
        seconds: The training time.
        error: Why it failed.
        values: Where the study has several metrics or constraints: these, of the model of this step.
    """

    status: TrialStatus
    value: float | None = None
    step: int | None = None
    curve: tuple[tuple[int, float], ...] = ()
    digest: str | None = None
    seconds: float = 0.0
    error: str | None = None
    values: Mapping[str, float] | None = None


class LoggedStint(NamedTuple):
    """A stint of a trial: its number, which orders all stints of the study, and how it has ended."""

    number: int
    ending: Ending | None = None


class LoggedTrial(NamedTuple):
    """A trial as the log knows it; `same_as` is the number of an earlier trial with the same parameters.

    `stints` has one entry for each rung that was begun, or a single one. `ending` is None while one of them
    is being trained. `others` are its runs after the first. A trial of a Python function has no run; its
    `distributions` are Optuna's, as text. `running` are the trials that were not known to have ended when
    this one was decided, where that depends on the clock.
    """

    number: int
    params: Json
    run_id: str
    same_as: int | None = None
    ending: Ending | None = None
    stints: tuple[LoggedStint, ...] = ()
    others: tuple[str, ...] = ()
    distributions: Mapping[str, str] | None = None
    running: tuple[int, ...] | None = None


@dataclass
class LoggedTrials:
    """The trials and notes of a study, from the lines of its log."""

    trials: list[LoggedTrial] = field(default_factory=list)
    notes: list[Json] = field(default_factory=list)  # other decisions, as a time limit that was reached

    @property
    def is_over_time(self) -> bool:
        """True if the time limit has ended the study, and has not been lifted since."""
        kinds = [note["kind"] for note in self.notes if note["kind"] in (TIME_LIMIT, LIMIT_LIFTED)]
        return kinds[-1:] == [TIME_LIMIT]

    def lengths(self) -> list[int]:
        """Return how many trials the study was to have, each time that this was noted."""
        return [note["trials"] for note in self.notes if note["kind"] == LENGTH]

    def read(self, path: Path) -> int:
        """Apply the lines of a file, and return where the last whole one ends.

        Raises:
            CheckpointError: The file is damaged.
        """
        size = 0
        sealed = _seal_of(path)  # before the lines: they may become more meanwhile
        content = _content(path)
        for number, (raw, end) in enumerate(_lines(content), 1):
            try:
                self.apply(json.loads(_verified(raw)))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as error:
                raise CheckpointError(f"{path}: line {number} is damaged: {error}") from error
            size = end
        if problem := _unsealed(content, sealed):
            raise CheckpointError(f"{path} is damaged: {problem}; {_REMEDY}")
        return size

    def apply(self, line: Json) -> None:
        """Take a line into account."""
        if "note" in line:
            self.notes.append(line["note"])
        elif "end" in line:
            end = dict(line["end"])
            end["curve"] = tuple((int(step), float(value)) for step, value in end["curve"])
            self._change(line["trial"], Ending(**end))
        elif "pruned" in line:
            trial = self.trials[line["trial"]]
            assert trial.ending is not None, "a trial is paused before it is pruned"
            assert trial.ending.status == "paused", "a trial is pruned once"
            self.trials[trial.number] = trial._replace(ending=trial.ending._replace(status="pruned"))
        elif "params" not in line:
            trial = self.trials[line["trial"]]
            assert trial.stints[-1].number != line["job"], "a stint begins once"
            self.trials[trial.number] = trial._replace(
                ending=None, stints=(*trial.stints, LoggedStint(line["job"]))
            )
        else:
            number: int = line["trial"]
            assert number == len(self.trials), "trials begin in the order of their numbers"
            stints = (LoggedStint(line.get("job", number)),)
            self.trials.append(
                LoggedTrial(
                    number,
                    line["params"],
                    line["run_id"],
                    line.get("same_as"),
                    stints=stints,
                    others=tuple(line.get("others", ())),
                    distributions=line.get("distributions"),
                    running=None if line.get("running") is None else tuple(line["running"]),
                )
            )

    def _change(self, number: int, ending: Ending) -> None:
        trial = self.trials[number]
        assert trial.ending is None, "a stint ends once"
        stints = (*trial.stints[:-1], trial.stints[-1]._replace(ending=ending))
        self.trials[number] = trial._replace(ending=ending, stints=stints)


class TrialLog(LoggedTrials):
    """The log of a study, open for writing.

    Raises:
        CheckpointError: It is damaged.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        path = folder / FILE
        self._size = size = self.read(path)
        self._file = open_regular(path, "r+b")
        os.ftruncate(self._file.fileno(), size)
        self._hash = hashlib.sha256(self._file.read())
        self._seal = folder / SEAL
        write_atomically(self._seal, self._sealed())  # there before the first line
        fsync_folder(folder)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def begin(self, trial: LoggedTrial) -> None:
        """Record that a trial begins, with its first stint; durable when this returns."""
        line: Json = {"trial": trial.number, "params": trial.params, "run_id": trial.run_id}
        more: Json = {"same_as": trial.same_as, "distributions": trial.distributions}
        more["running"] = trial.running
        if trial.stints and trial.stints[0].number != trial.number:
            more["job"] = trial.stints[0].number
        if trial.others:
            more["others"] = trial.others
        self._write(line | {key: value for key, value in more.items() if value is not None})

    def promote(self, number: int, stint: int) -> None:
        """Record that a paused trial is promoted: its next stint begins; durable when this returns."""
        self._write({"trial": number, "job": stint})

    def end(self, number: int, ending: Ending) -> None:
        """Record how a trial, or its last stint, has ended; durable when this returns."""
        self._write({"trial": number, "end": ending._asdict()})

    def prune(self, number: int) -> None:
        """Record that a paused trial is pruned; durable when this returns."""
        self._write({"trial": number, "pruned": True})

    def note(self, **detail: Any) -> None:
        """Record a decision that is not about one trial; durable when this returns."""
        self._write({"note": detail})

    def _write(self, line: Json) -> None:
        plain = json.dumps(line, separators=(",", ":")).encode()
        whole = data = b'%s,"crc":"%08x"}\n' % (plain[:-1], zlib.crc32(plain))
        while data:
            data = data[os.write(self._file.fileno(), data) :]
        os.fdatasync(self._file.fileno())
        self._size += len(whole)
        self._hash.update(whole)
        # Without fsync, which costs as much as the line did: a power cut leaves an older or an empty seal.
        aside = self._seal.with_name(f".{SEAL}{TEMPORARY_SUFFIX}")
        with open_regular(aside, "wb") as file:
            file.write(self._sealed())
        aside.replace(self._seal)
        self.apply(line)

    def _sealed(self) -> bytes:
        return b"%d %s\n" % (self._size, self._hash.hexdigest().encode())


def read_trials(folder: Path) -> list[LoggedTrial]:
    """Return the trials of a study without opening its log for writing.

    Raises:
        CheckpointError: The log is damaged.
    """
    return read_log(folder).trials


def read_log(folder: Path) -> LoggedTrials:
    """Return what the log of a study says; see `read_trials`."""
    logged = LoggedTrials()
    logged.read(folder / FILE)
    return logged


def status_of(trial: LoggedTrial, folder: Path) -> str:
    """Return how a trial of the study in a folder has ended; of one that has not, the status of its run."""
    if trial.ending is not None:
        return trial.ending.status
    if not trial.run_id:  # of a Python function
        return "running" if RunDir(folder).is_owned() else "crashed"
    return RunDir(folder.parent / trial.run_id).status()


def damage(folder: Path) -> str | None:
    """Return what is wrong with the log of a study, as far as its seal says; its lines are not parsed."""
    try:
        sealed = _seal_of(folder / FILE)
        problem = _unsealed(_content(folder / FILE), sealed)
    except CheckpointError as error:
        return str(error)
    return f"{folder / FILE} is damaged: {problem}" if problem else None


def _content(path: Path) -> bytes:
    """Return the content of a log; empty where there is none.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        return read_regular(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _lines(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the lines with the positions where they end; a torn last one is left out."""
    position = 0
    for line in content.split(b"\n")[:-1]:
        position += len(line) + 1
        yield line + b"\n", position


def _seal_of(path: Path) -> bytes | None:
    """Return the seal of a log; None where there is none.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        return read_regular(path.with_name(SEAL))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path.with_name(SEAL)} cannot be read: {error.strerror}") from error


def _unsealed(content: bytes, seal: bytes | None) -> str | None:
    """Return how the content of a log does not fit its seal."""
    if seal is None:
        return f"{SEAL}, which was written before its first line, is missing" if content else None
    if not seal:  # a power cut came before it was on the disk
        return None
    match = _SEAL.fullmatch(seal)
    if match is None:
        return f"{SEAL} is not what was written"
    size = int(match[1])
    if len(content) < size:
        return f"{len(content)} of the {size} bytes that were written are there"
    if hashlib.sha256(content[:size]).hexdigest() != match[2].decode():
        return "its lines are not those that were written"
    return None


def _verified(raw: bytes) -> bytes:
    """Return a line without its checksum.

    Raises:
        ValueError: It does not fit the line.
    """
    match = _CHECKED.fullmatch(raw)
    if match is None:
        raise ValueError("it has no checksum")
    plain = match[1] + b"}"
    if zlib.crc32(plain) != int(match[2], 16):
        raise ValueError("its content is not what was written")
    return plain
