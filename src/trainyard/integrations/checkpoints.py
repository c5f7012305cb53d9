"""Checkpoints that another trainer writes: they stay where it puts them, and we know what they must hold.

For each there is `RUN_DIR/checkpoints/<name>-<hash of its path>/manifest.json`, with a SHA-256 of every file, published
when all of them are on the disk. Nothing is written into the trainer's own folders: transformers, for one, prunes by the
time that a folder was last changed. What it prunes is forgotten here, too.
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

from trainyard.digest import (
    CHUNK_BYTES,
    Chunk,
    FileRecord,
    damage,
    fsync_folder,
    make_folders,
    sha256_bytes,
    sha256_json,
    write_atomically,
)
from trainyard.errors import CheckpointError
from trainyard.regular import read_regular

FORMAT = 1
_MANIFEST = "manifest.json"
_LONGEST = 200  # characters of a name, so that what we put behind it still fits into a folder's name

log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint: a folder, or a single file. `epochs` and `train_seconds` are how far the training was."""

    path: Path
    step: int
    attempt: int
    epochs: float
    train_seconds: float
    resumable: bool
    files: Sequence[FileRecord] = ()
    saved: float = 0.0

    def to_json(self) -> dict[str, Any]:
        body = vars(self) | {
            "format": FORMAT,
            "path": str(self.path),
            "files": [file.to_json() for file in self.files],
        }
        return body | {"sha256": sha256_json(body)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Checkpoint:
        """Raises ValueError, KeyError or TypeError where it is not what `to_json` made."""
        body = {key: value for key, value in data.items() if key != "sha256"}
        if sha256_json(body) != data["sha256"]:
            raise ValueError("its manifest is not what was written")
        if body.pop("format") != FORMAT:
            raise ValueError(f"it has format {data['format']}, this version of Trainyard reads {FORMAT}")
        files = [FileRecord.from_json(file) for file in body["files"]]
        return Checkpoint(**{**body, "path": Path(body["path"]), "files": files})

    def damage(self) -> str | None:
        """What is wrong with the files, or None if they hold what was written."""
        base = self.path if self.path.is_dir() else self.path.parent
        return next(
            (found for file in self.files if (found := damage((base / file.name).resolve(), file))), None
        )


class TrainerCheckpoints:
    """What a run knows of its trainer's checkpoints."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "checkpoints"

    def commit(self, checkpoint: Checkpoint) -> None:
        """Brings the checkpoint's files to the disk, hashes them, and publishes that. May be called from any thread.

        Raises:
            CheckpointError: that cannot be done; the checkpoint is not one to resume from then.
        """
        self.prune()
        known = self._folder / _key(checkpoint.path)
        try:
            (known / _MANIFEST).unlink(missing_ok=True)  # of what the trainer has just replaced
            files = _durable(checkpoint.path)
            make_folders(known)
            whole = Checkpoint(**{**vars(checkpoint), "files": files, "saved": time.time()})
            write_atomically(known / _MANIFEST, json.dumps(whole.to_json()).encode())
        except FileNotFoundError as error:
            log.info("checkpoint %s was deleted again before it was verified: %s", checkpoint.path, error)
        except OSError as error:
            raise CheckpointError(f"checkpoint {checkpoint.path} cannot be verified: {error}") from error

    def prune(self) -> None:
        """Forgets what the trainer has deleted."""
        for known in self._known():
            if not known.path.exists():
                shutil.rmtree(self._folder / _key(known.path), ignore_errors=True)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint whose files all hold what was written, and what is wrong with those that are newer."""
        complaints: list[str] = []
        for known in sorted(
            self._known(complaints), key=lambda found: (found.step, found.saved), reverse=True
        ):
            if not known.resumable or not known.path.exists():
                continue
            if (found := known.damage()) is None:
                return known, complaints
            complaints.append(f"checkpoint {known.path} is damaged: {found}")
        return None, complaints

    def unfinished(self, places: Sequence[Sequence[str]], since: float) -> list[str]:
        """What looks like a checkpoint and is not known, though it was changed after `since` (seconds since the epoch).

        Args:
            places: folder, and pattern of the names in it.
            since: older ones are not of this run.
        """
        paths = [path for folder, pattern in places for path in sorted(Path(folder).glob(pattern))]
        known = {found.path for found in self._known()}
        return [
            f"checkpoint {path} is passed over: its process ended before it was finished and verified"
            for path in paths
            if path not in known and not path.is_symlink() and path.stat().st_mtime >= since
        ]

    def _known(self, complaints: list[str] | None = None) -> Iterator[Checkpoint]:
        for path in sorted(self._folder.glob(f"*/{_MANIFEST}")):
            try:
                yield Checkpoint.from_json(json.loads(read_regular(path, depth=3)))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                if complaints is not None:
                    complaints.append(
                        f"what is known of the checkpoint {path.parent.name} is damaged: {error}"
                    )


def _key(path: Path) -> str:
    return f"{path.name[:_LONGEST]}-{sha256_bytes(str(path).encode())[:8]}"


def _durable(path: Path) -> list[FileRecord]:
    """Hashes the files of a checkpoint, each brought to the disk; their names are relative to the folder."""
    if not path.is_dir():
        record = _record(path, path.name)
        fsync_folder(path.parent)
        return [record]
    entries = sorted(path.rglob("*"))
    records = [_record(entry, entry.relative_to(path).as_posix()) for entry in entries if entry.is_file()]
    for folder in [entry for entry in entries if entry.is_dir()] + [path, path.parent]:
        fsync_folder(folder)
    return records


def _record(path: Path, name: str) -> FileRecord:
    """Hashed by one thread: the others are the training's."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        chunks = [Chunk(len(part), sha256_bytes(part)) for part in iter(lambda: file.read(CHUNK_BYTES), b"")]
    chunks = chunks or [Chunk(0, sha256_bytes(b""))]
    sha256 = chunks[0].sha256 if len(chunks) == 1 else sha256_json([list(chunk) for chunk in chunks])
    return FileRecord(name, sum(chunk.bytes for chunk in chunks), sha256, chunks)
