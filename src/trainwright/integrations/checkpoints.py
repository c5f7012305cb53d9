"""Checkpoints that another trainer writes: they stay where it puts them, and the run records their hashes.

Each has a record `RUN_DIR/checkpoints/<name>-<hash of its path>/manifest.json` with a SHA-256 of every file.
The record is published when all files are on the disk. Nothing is written into the trainer's own folders:
transformers, for one, prunes by the time that a folder was last changed. The record of a pruned checkpoint is
deleted.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.digest import CHUNK_BYTES, Chunk, FileRecord, damage, sha256_bytes, sha256_json
from trainwright.errors import CheckpointError
from trainwright.safe_files import fsync_folder, make_folders, read_regular, write_atomically

FORMAT = 1
_MANIFEST = "manifest.json"
_LONGEST = 200  # characters of a name, so that the name with a hash behind it is a valid folder name

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Checkpoint:
    """The record of a checkpoint, which is a folder or a single file.

    `epochs` and `train_seconds` are those of the training at that step. `saved` is in seconds since the
    epoch.
    """

    path: Path
    step: int
    attempt: int
    epochs: float
    train_seconds: float
    resumable: bool
    files: Sequence[FileRecord] = ()
    saved: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the content of the record, with a hash of itself."""
        body = vars(self) | {
            "format": FORMAT,
            "path": str(self.path),
            "files": [file.to_json() for file in self.files],
        }
        return body | {"sha256": sha256_json(body)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Checkpoint:
        """Read what `to_json` returned.

        Raises:
            ValueError: It was changed, or has another format.
            KeyError: A key is missing.
            TypeError: A value has another type.
        """
        body = {key: value for key, value in data.items() if key != "sha256"}
        if sha256_json(body) != data["sha256"]:
            raise ValueError("its manifest is not what was written")
        if body.pop("format") != FORMAT:
            raise ValueError(f"it has format {data['format']}, this version of Trainwright reads {FORMAT}")
        files = [FileRecord.from_json(file) for file in body["files"]]
        return Checkpoint(**{**body, "path": Path(body["path"]), "files": files})

    def damage(self) -> str | None:
        """Return what is wrong with the files, or None if they hold what was written."""
        base = self.path if self.path.is_dir() else self.path.parent
        return next(
            (problem for file in self.files if (problem := damage((base / file.name).resolve(), file))), None
        )


class TrainerCheckpoints:
    """The records that a run keeps of its trainer's checkpoints."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "checkpoints"

    def commit(self, checkpoint: Checkpoint) -> None:
        """Sync and hash the checkpoint's files, and publish the record. Any thread may call this.

        Raises:
            CheckpointError: A file cannot be read or synced; no run resumes from the checkpoint then.
        """
        self.prune()
        folder = self._folder / _key(checkpoint.path)
        try:
            (folder / _MANIFEST).unlink(missing_ok=True)  # the trainer may have replaced its files
            files = _sync_and_hash(checkpoint.path)
            make_folders(folder)
            complete = Checkpoint(**{**vars(checkpoint), "files": files, "saved": time.time()})
            write_atomically(folder / _MANIFEST, json.dumps(complete.to_json()).encode())
        except FileNotFoundError as error:
            log.info("checkpoint %s was deleted before it was verified: %s", checkpoint.path, error)
        except OSError as error:
            raise CheckpointError(f"checkpoint {checkpoint.path} cannot be verified: {error}") from error

    def prune(self) -> None:
        """Delete the records of checkpoints that the trainer has deleted."""
        for checkpoint in self._recorded():
            if not checkpoint.path.exists():
                shutil.rmtree(self._folder / _key(checkpoint.path), ignore_errors=True)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest undamaged checkpoint, and what is wrong with newer ones."""
        problems: list[str] = []
        newest_first = sorted(self._recorded(problems), key=lambda one: (one.step, one.saved), reverse=True)
        for checkpoint in newest_first:
            if not checkpoint.resumable or not checkpoint.path.exists():
                continue
            if (problem := checkpoint.damage()) is None:
                return checkpoint, problems
            problems.append(f"checkpoint {checkpoint.path} is damaged: {problem}")
        return None, problems

    def unfinished(self, locations: Sequence[Sequence[str]], since: float) -> list[str]:
        """Describe the checkpoints of this run that have no record: their process ended too early.

        Args:
            locations: Folders, each with the pattern of the names in it.
            since: When the run began, in seconds since the epoch; older checkpoints are not of this run.
        """
        paths = [path for folder, pattern in locations for path in sorted(Path(folder).glob(pattern))]
        recorded = {checkpoint.path for checkpoint in self._recorded()}
        return [
            f"checkpoint {path} is skipped: its process ended before it was finished and verified"
            for path in paths
            if path not in recorded and not path.is_symlink() and path.stat().st_mtime >= since
        ]

    def _recorded(self, problems: list[str] | None = None) -> Iterator[Checkpoint]:
        for path in sorted(self._folder.glob(f"*/{_MANIFEST}")):
            try:
                yield Checkpoint.from_json(json.loads(read_regular(path, depth=3)))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                if problems is not None:
                    problems.append(f"the record of checkpoint {path.parent.name} is damaged: {error}")


def _key(path: Path) -> str:
    return f"{path.name[:_LONGEST]}-{sha256_bytes(str(path).encode())[:8]}"


def _sync_and_hash(path: Path) -> list[FileRecord]:
    """Sync and hash the files of a checkpoint; their names are relative to its folder."""
    if not path.is_dir():
        record = _file_record(path, path.name)
        fsync_folder(path.parent)
        return [record]
    entries = sorted(path.rglob("*"))
    records = [
        _file_record(entry, entry.relative_to(path).as_posix()) for entry in entries if entry.is_file()
    ]
    for folder in [entry for entry in entries if entry.is_dir()] + [path, path.parent]:
        fsync_folder(folder)
    return records


def _file_record(path: Path, name: str) -> FileRecord:
    """Sync and hash a file in this thread; the other processors are left to the training."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        chunks = [Chunk(len(part), sha256_bytes(part)) for part in iter(lambda: file.read(CHUNK_BYTES), b"")]
    chunks = chunks or [Chunk(0, sha256_bytes(b""))]
    sha256 = chunks[0].sha256 if len(chunks) == 1 else sha256_json([list(chunk) for chunk in chunks])
    return FileRecord(name, sum(chunk.bytes for chunk in chunks), sha256, chunks)
