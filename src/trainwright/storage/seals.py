"""Seals: the files of a run that its log vouches for by length and SHA-256, and what does not fit them.

Each entry of the log seals the manifests of the checkpoints that it names, which seal the files beside them,
and the segments of the journal as far as they are written; the entry that ends an
attempt also seals config, manifest, preparation of the data, records of the attempts, result, and tables of
the evaluation. Lines behind the sealed part of the newest segment belong to no commit yet: a kill leaves some
there, and the last may be torn. The next attempt seals them as it finds them.

Of the files of a checkpoint, the sizes are checked here, and the content is when they are loaded.

On the local disk, these files are all that `Entry.files` names; in a store, it names every file of the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trainwright import plugins
from trainwright.errors import CheckpointError
from trainwright.records.checkpoint_names import step_of
from trainwright.records.journal import segments
from trainwright.records.result import AttemptRecord
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import open_regular, read_regular
from trainwright.storage.log import Entry, Kind, Log, StoredFile
from trainwright.storage.run_files import MANIFEST, is_any, is_appended, is_of_checkpoint
from trainwright.storage.urls import url_of

_BLOCK = 1 << 20
_TRIES = 3  # to read a run that another process goes on with meanwhile
# An explanation may be made again after the end, and holds a SHA-256 of its own.
_AT_END = re.compile(
    r"config\.yaml|(created|parent|manifest|data(-\d+)?|result)\.json"
    r"|attempts/\d+\.json|evaluation/(?!explanation\.json)[^/]+\.json"
)


class GrowingHash:
    """The SHA-256 of the whole lines of a file, extended as the file grows."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._bytes = 0

    @property
    def sealed(self) -> StoredFile:
        """The length and the SHA-256 so far."""
        return StoredFile(bytes=self._bytes, sha256=self._hash.hexdigest())

    def extend(self, file: BinaryIO) -> None:
        """Hash the whole lines that follow in a file, and make them durable."""
        file.seek(self._bytes)
        rest = b""
        while block := file.read(_BLOCK):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            self._hash.update(whole + newline)
            self._bytes += len(whole) + len(newline)
        os.fsync(file.fileno())

    def starts(self, file: BinaryIO, sealed: StoredFile) -> bool:
        """Hash as many bytes of a file as were sealed, and return whether they are those."""
        while self._bytes < sealed.bytes:
            block = file.read(min(_BLOCK, sealed.bytes - self._bytes))
            if not block:
                return False
            self._hash.update(block)
            self._bytes += len(block)
        return self.sealed.sha256 == sealed.sha256


class Seals:
    """Seal the files of a run on the local disk, for the entries of one attempt.

    Args:
        path: The run directory.
        head: The newest entry of the log before this attempt; None if there is none, or it is damaged.
        attempt: The number of this attempt.
    """

    def __init__(self, path: Path, head: Entry | None, attempt: int) -> None:
        self._path = path
        self._earlier = _earlier_segments(path, head)
        self._manifests = {
            name: file for name, file in (head.files if head else {}).items() if is_of_checkpoint(name)
        }
        self._own = _segment(attempt)
        self._growing = GrowingHash()

    def files(self, kind: Kind, checkpoints: Collection[str]) -> dict[str, StoredFile]:
        """Return what the next entry seals.

        Args:
            kind: The kind of the entry.
            checkpoints: The folders of the checkpoints and best models that it names.

        Raises:
            OSError: A file cannot be read.
        """
        for name in (f"{folder}/{MANIFEST}" for folder in checkpoints):
            if name not in self._manifests:
                with contextlib.suppress(FileNotFoundError):  # it is lost, or was pruned just now
                    self._manifests[name] = whole_file(self._path / name, depth=3)
        kept = {f"{folder}/{MANIFEST}" for folder in checkpoints}
        self._manifests = {name: file for name, file in self._manifests.items() if name in kept}
        sealed = self._earlier | self._manifests
        try:
            with open_regular(self._path / self._own, depth=2) as file:
                self._growing.extend(file)
            sealed[self._own] = self._growing.sealed
        except FileNotFoundError:  # it is not begun yet; one that was deleted stays sealed
            if self._growing.sealed.bytes:
                sealed[self._own] = self._growing.sealed
        if kind == "end":
            sealed |= {
                name: whole_file(self._path / name, name.count("/") + 1) for name in _names_at_end(self._path)
            }
        return sealed


def _segment(attempt: int) -> str:
    return f"journal/{attempt:04d}.jsonl"


def whole_file(path: Path, depth: int = 1) -> StoredFile:
    """Return the length and the SHA-256 of a file of a run or study."""
    with open_regular(path, depth=depth) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return StoredFile(bytes=file.tell(), sha256=sha256)


def _names_at_end(path: Path) -> Iterator[str]:
    """Yield the names of the files that only the end of an attempt seals."""
    for found in (path / "config.yaml", *path.glob("*.json"), *path.glob("*/*.json")):
        name = found.relative_to(path).as_posix()
        if _AT_END.fullmatch(name) and found.is_file() and not found.is_symlink():
            yield name


def _earlier_segments(path: Path, head: Entry | None) -> dict[str, StoredFile]:
    """Return the seals of the segments of earlier attempts, with the lines that the last one left unsealed.

    A segment that does not fit its seal keeps it, so that the damage is named from then on.
    """
    known = head.files if head is not None else {}
    sealed = {name: file for name, file in known.items() if is_appended(name)}
    for segment in segments(path / "journal"):
        name, growing = f"journal/{segment.name}", GrowingHash()
        if head is not None and not _may_grow(name, head):
            continue
        try:
            with open_regular(segment, depth=2) as file:
                if name in sealed and not growing.starts(file, sealed[name]):
                    continue
                growing.extend(file)
        except OSError:  # which `problems` names
            continue
        sealed[name] = growing.sealed
    return sealed


def _may_grow(name: str, head: Entry) -> bool:
    """Return whether a segment may have lines that the newest entry does not seal."""
    return head.has_owner and name == _segment(head.attempt)


# -- what does not fit


def problems(run: RunDir, wanted: Callable[[str], bool] = is_any) -> list[str]:
    """Return a sentence for each file of a run that is missing, or not what was written.

    Args:
        run: The run.
        wanted: Returns whether a file is looked at; of a run in a store, its working copy must have those.
    """
    found: list[str] = []
    head = _head(run)
    for _ in range(_TRIES):
        if isinstance(head, str):
            return [head]
        if head is None:
            has_begun = any(run.path.glob("attempts/*.json"))
            return ["log: missing, so that nothing says what was written"] if has_begun else []
        found = list(_problems(run, head, wanted))
        if not found or (after := _head(run)) == head:
            break
        head = after
    return found


def _head(run: RunDir) -> Entry | str | None:
    """Return the newest entry of a run's log, or what is wrong with it."""
    try:
        return Log(plugins.adapter("store", "file")(run.path)).head()
    except CheckpointError as error:
        return f"log: {error}"


def _problems(run: RunDir, head: Entry, wanted: Callable[[str], bool]) -> Iterator[str]:
    is_copy = url_of(run.path.parent.parent) is not None
    has_ended = head.kind == "end"
    for name, file in sorted(head.files.items()):
        is_sealed = is_appended(name) or (has_ended and _AT_END.fullmatch(name))
        if is_sealed and wanted(name):
            problem = damage(run.path, name, file, may_grow=_may_grow(name, head))
            if problem:
                yield f"{name}: {problem}"
    for name in _strangers(run.path, head):
        if wanted(name):
            yield f"{name}: the run did not write it"
    if not has_ended:
        yield from _damaged_records(run)
    if not is_copy:
        yield from _damaged_checkpoints(run, head, wanted)


def damage(folder: Path, name: str, sealed: StoredFile, *, may_grow: bool = False) -> str | None:
    """Return what is wrong with a file, or None if it is what was written."""
    try:
        with open_regular(folder / name, depth=len(PurePosixPath(name).parts)) as file:
            size = os.fstat(file.fileno()).st_size
            if size < sealed.bytes:
                return f"{size} of the {sealed.bytes} bytes that were written are there"
            if not GrowingHash().starts(file, sealed):
                return "its content is not what was written"
            if may_grow or size == sealed.bytes:
                return None
            # A kill may have left a torn line behind the sealed ones.
            is_torn = is_appended(name) and b"\n" not in file.read()
            return None if is_torn else f"{size - sealed.bytes} bytes follow that the run did not write"
    except FileNotFoundError:
        return "missing, though it was written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _strangers(path: Path, head: Entry) -> Iterator[str]:
    """Yield the names of the segments and records of attempts that are there, and that no entry names."""
    for segment in segments(path / "journal"):
        name = f"journal/{segment.name}"
        if name not in head.files and not _may_grow(name, head) and segment.lstat().st_size:
            yield name
    if head.kind == "end":
        for record in path.glob("attempts/*.json"):
            if (name := f"attempts/{record.name}") not in head.files and record.stem.isdecimal():
                yield name


def _damaged_records(run: RunDir) -> Iterator[str]:
    """Yield what is wrong with the records that no end has sealed, of a run that has begun to train."""
    begun = segments(run.journal)
    if begun and not (run.path / MANIFEST).exists():
        yield f"{MANIFEST}: missing, though it was written"
    for segment in begun:
        name = f"attempts/{segment.stem}.json"
        try:
            if AttemptRecord.load(run.path / name, depth=2) is None:
                yield f"{name}: missing, though it was written"
        except CheckpointError as error:
            yield f"{name}: {str(error).removeprefix(f'{run.path / name} ')}"


def _damaged_checkpoints(run: RunDir, head: Entry, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield what is wrong with the checkpoints that the log names, and with the best models that count."""
    steps = _best_steps(run, head)
    needed = [f"checkpoints/{name}" for name in head.checkpoints]
    needed += [f"best/{name}" for name in head.best if step_of(name) in steps]
    for name in needed:
        problem = _damage_of_checkpoint(run.path / name, with_content=wanted(f"{name}/{MANIFEST}"))
        if problem is not None:
            yield f"{name}: {problem}"
    for name, sealed in head.files.items():  # of best models that are worse, some are deleted meanwhile
        is_there = is_of_checkpoint(name) and wanted(name) and (run.path / name).is_file()
        if is_there and (problem := damage(run.path, name, sealed)) is not None:
            yield f"{name}: {problem}"


def _best_steps(run: RunDir, head: Entry) -> set[int]:
    """Return the steps of the best models that the result names or, before the end, that a resume needs."""
    steps = set()
    try:
        result = run.result()
        if result is not None and result.best is not None:
            steps.add(result.best.step)
    except CheckpointError:  # which its seal says, or its reader
        pass
    if head.kind != "end" and head.checkpoints:
        newest = run.path / "checkpoints" / max(head.checkpoints) / MANIFEST
        # One that is damaged is named as such.
        with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            steps.update(json.loads(read_regular(newest, depth=3))["best"])
    return steps


def _damage_of_checkpoint(folder: Path, *, with_content: bool) -> str | None:
    """Return what is wrong with a checkpoint: it is gone or, if asked, files have another size."""
    if not (folder / MANIFEST).is_file():
        return "missing, though the log names it"
    if not with_content:
        return None
    try:
        manifest = json.loads(read_regular(folder / MANIFEST, depth=3))
        written = {str(file["name"]): int(file["bytes"]) for file in manifest["files"]}
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        return f"{MANIFEST} is damaged: {type(error).__name__}: {error}"
    for name, length in written.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != length:
            there = "missing" if size is None else f"{size} bytes long"
            return f"{name} is {there}: {length} bytes were written"
    return None
