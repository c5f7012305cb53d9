"""Commit, verify and prune checkpoints.

A checkpoint is a folder `checkpoints/step-000000300-a0002` (step 300, saved by attempt 2) with its files and
`manifest.json`: a SHA-256 of every file, the digests, and a hash of itself. The folder is put together
elsewhere, and appears whole; a manifest is never there before what it names. A folder without a valid
manifest is not a checkpoint, and is never loaded; nor is one that the log of the run does not name (exported
runs have no log). Best models are kept in the same way in `best/`; neither kind prunes the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.digest import FileRecord, damage, sha256_bytes, write_file
from trainwright.errors import CheckpointError, OtherFormatError
from trainwright.frameworks.base import Snapshot
from trainwright.records.checkpoint_names import attempt_of, step_of
from trainwright.records.commit import DEPTH, NAME, Commit
from trainwright.records.document import OtherFormat
from trainwright.safe_files import open_regular
from trainwright.storage.lease import Lease
from trainwright.storage.log import StoredFile
from trainwright.storage.run_files import MANIFEST
from trainwright.stores.base import FileStore

STATE_FILE = "state.json"


class StoredCommit:
    """The snapshot in a committed checkpoint, to be committed again elsewhere; its files were verified.

    Args:
        folder: The folder of the checkpoint.
        commit: The checkpoint.
    """

    def __init__(self, folder: Path, commit: Commit) -> None:
        self._folder = folder
        self._files = [file for file in commit.files if file.name != STATE_FILE]

    def write(self, folder: Path) -> list[FileRecord]:
        """Copy the files, and return their records."""
        for file in self._files:
            copy_file(self._folder / file.name, folder / file.name)
        return self._files

    def release(self) -> None:
        """Do nothing: no memory is held."""


class Checkpoints:
    """The checkpoints of one kind (`checkpoints` or `best`) of one run.

    The writer's thread uses them during training, the loop's thread before and after.
    """

    def __init__(
        self,
        store: FileStore,
        kind: str,
        attempt: int = 0,
        run_files: Mapping[str, str] | None = None,
        committed: Collection[str] | None = None,
        fetch: Callable[[str], None] | None = None,
        sealed: Mapping[str, StoredFile] | None = None,
    ) -> None:
        """Prepare the checkpoints of a kind.

        Args:
            store: Where the run's files are.
            kind: `checkpoints` or `best`.
            attempt: The attempt that commits; 0: nobody does.
            run_files: The SHA-256 of files that a prediction depends on, for the manifests.
            committed: The names that the log says exist; None: there is no log.
            fetch: Brings the files of one, given as `KIND/NAME`, from the run's store; None: all are here.
            sealed: The files that the log seals, among them the manifests.
        """
        self._store = store
        self._kind = kind
        self._attempt = attempt
        self._run_files = run_files or {}
        self._committed = committed
        self._fetch = fetch
        self._sealed = sealed or {}
        self._own: set[str] = set()  # committed here; the log names them a little later

    def covering(self, run_files: Mapping[str, str]) -> Checkpoints:
        """Return the same checkpoints; the manifests of new ones have the SHA-256 of files of the run."""
        names = None if self._committed is None else {*self._committed, *self._own}
        return Checkpoints(
            self._store, self._kind, self._attempt, run_files, names, self._fetch, self._sealed
        )

    def commit(
        self,
        step: int,
        snapshot: Snapshot,
        state: dict[str, Any] | None = None,
        best: frozenset[int] = frozenset(),
        others: Checkpoints | None = None,
    ) -> Commit:
        """Write a checkpoint and publish it.

        Args:
            step: The step.
            snapshot: The state after it.
            state: The loop's state; None: a best model has none.
            best: The steps of the best models that it needs.
            others: The best models: a file that one of the same step has, too, is kept once on the disk.

        Raises:
            CheckpointError: It cannot be written, or another process wrote it in the meantime; what was
                committed before is untouched.
        """
        name = f"step-{step:09d}-a{self._attempt:04d}"
        failed = f"the {self._what} of step {step} cannot be written"
        if next(self._store.list(f"{self._kind}/{name}/{MANIFEST}"), None):
            raise CheckpointError(f"{failed}: {name} is committed already")
        try:
            staging = self._store.staging()
            try:
                files = snapshot.write(staging)
                if others is not None:
                    others.share(step, files, staging)
                if state is not None:
                    text = json.dumps(state, allow_nan=False)
                    files.append(write_file(staging / STATE_FILE, text.encode()))
                commit = Commit(name, step, self._attempt, files, best, self._run_files)
                write_file(staging / MANIFEST, commit.manifest())
                is_ours = self._store.publish(staging, f"{self._kind}/{name}", MANIFEST)
            finally:
                shutil.rmtree(staging, ignore_errors=True)  # as a rule, it was renamed
        except OSError as error:
            raise CheckpointError(f"{failed}: {error}") from error
        if not is_ours:
            raise CheckpointError(f"{failed}: another process committed {name} in the meantime")
        self._own.add(name)
        return commit

    def share(self, step: int, files: Sequence[FileRecord], folder: Path) -> None:
        """Replace files in a folder by hard links to equal ones of the checkpoints of a step."""
        for name in self.names(published=True):
            if step_of(name) != step:
                continue
            with contextlib.suppress(CheckpointError, OSError):  # then there are two files
                known = {file.name: file for file in self.read_manifest(name).files}
                for file in files:
                    if (same := known.get(file.name)) and (same.bytes, same.sha256) == (
                        file.bytes,
                        file.sha256,
                    ):
                        link = folder / f"{file.name}.link"
                        os.link(self._store.folder(f"{self._kind}/{name}") / file.name, link)
                        link.replace(folder / file.name)

    @property
    def _what(self) -> str:
        return "best model" if self._kind == "best" else "checkpoint"

    def copy_to(self, commit: Commit, store: FileStore) -> None:
        """Copy a checkpoint into another store as it is, its manifest last.

        Raises:
            CheckpointError, OSError: A file is gone or cannot be read, or the copy cannot be written.
        """
        folder = self.folder(commit)
        for name in (*(file.name for file in commit.files), MANIFEST):
            store.put(f"{self._kind}/{commit.name}/{name}", folder / name)

    def sweep(self) -> None:
        """Remove what processes that died left in staging; only the owner of the run calls it."""
        self._store.sweep()

    def names(self, *, published: bool = False) -> list[str]:
        """Return the names of the checkpoints that the log names, newest first.

        With `published`, return only those that have a manifest.
        """
        paths = [key.split("/") for key in self._store.list(f"{self._kind}/")]
        names = {path[1] for path in paths if len(path) == 3 and (not published or path[2] == MANIFEST)}
        return sorted((name for name in names if self._exists(name)), reverse=True)

    def _exists(self, name: str) -> bool:
        is_named = self._committed is None or name in self._committed or name in self._own
        return is_named and NAME.fullmatch(name) is not None

    def load(self, name: str) -> Commit:
        """Read a manifest, and verify every file against it.

        Raises:
            CheckpointError: It is damaged; the message says how.
        """
        if self._fetch is not None:
            self._fetch(f"{self._kind}/{name}")
        commit = self.read_manifest(name)
        for file in commit.files:
            if problem := damage(self.folder(commit) / file.name, file, depth=DEPTH):
                raise CheckpointError(f"{self._what} {name} is damaged: {problem}")
        recorded = {file.name for file in commit.files}
        for path in self.folder(commit).iterdir():
            if not stat.S_ISREG(path.lstat().st_mode):  # a framework may look for files that no record names
                raise CheckpointError(
                    f"{self._what} {name} is damaged: {path.name}: it is not a regular file"
                )
            if path.suffix == ".safetensors" and path.name not in recorded:
                raise CheckpointError(f"{self._what} {name} is damaged: {path.name}: no record names it")
        return commit

    def load_step(self, step: int) -> Commit:
        """Return the newest valid checkpoint of one step.

        Raises:
            CheckpointError: There is none; the message says why.
        """
        complaints = []
        for name in self.names():
            if step_of(name) == step:
                try:
                    return self.load(name)
                except CheckpointError as error:
                    complaints.append(str(error))
        if complaints:
            raise CheckpointError(complaints[-1])
        named = [name for name in sorted(self._committed or ()) if step_of(name) == step]
        if named:
            raise CheckpointError(f"{self._what} {named[-1]} is missing, though the run's log names it")
        raise CheckpointError(f"there is no {self._what} of step {step}")

    def newest(self) -> tuple[Commit | None, list[str]]:
        """Return the newest valid checkpoint, and what is wrong with those that are newer."""
        complaints: list[str] = []
        for name in self.names():
            try:
                return self.load(name), complaints
            except CheckpointError as error:
                complaints.append(str(error))
        return None, complaints

    def folder(self, commit: Commit) -> Path:
        """Return a local folder with the checkpoint's files."""
        return self._store.folder(f"{self._kind}/{commit.name}")

    def state(self, commit: Commit) -> dict[str, Any]:
        """Return the loop's state that was saved with it."""
        state: dict[str, Any] = json.loads(self._store.get(f"{self._kind}/{commit.name}/{STATE_FILE}"))
        return state

    def prune(self, keep: Collection[str]) -> None:
        """Delete every checkpoint except those named, and except those of later attempts.

        If there are such, this attempt has lost the run and does not know it yet.
        """
        self._prune(lambda name: name in keep)

    def prune_steps(self, keep: Collection[int]) -> None:
        """Delete what `prune` deletes, but keep the checkpoints of some steps that the log names."""
        self._prune(lambda name: step_of(name) in keep and self._exists(name))

    def _prune(self, is_kept: Callable[[str], bool]) -> None:
        folders = {key.split("/")[1] for key in self._store.list(f"{self._kind}/") if key.count("/") == 2}
        for name in sorted(filter(NAME.fullmatch, folders)):
            if attempt_of(name) <= self._attempt and not is_kept(name):
                self.delete(name)

    def delete(self, name: str) -> None:
        """Delete one checkpoint, its manifest first: a crash in between leaves nothing that looks valid."""
        prefix = f"{self._kind}/{name}/"
        self._store.delete(prefix + MANIFEST)
        for key in list(self._store.list(prefix)):
            self._store.delete(key)

    def read_manifest(self, name: str) -> Commit:
        """Read a manifest; the files are not verified.

        Raises:
            CheckpointError: It is missing or damaged.
        """
        key = f"{self._kind}/{name}/{MANIFEST}"
        try:
            content = self._store.get(key)
            if (sealed := self._sealed.get(key)) is not None and sha256_bytes(content) != sealed.sha256:
                raise ValueError("its manifest is not the one that the run wrote")
            return Commit.read(name, content)
        except CheckpointError as error:
            raise CheckpointError(
                f"{self._what} {name} was never finished, or has lost its manifest: {error}"
            ) from error
        except OtherFormat as error:
            raise OtherFormatError(f"{self._what} {name} {error}") from error
        except ValueError as error:
            raise CheckpointError(f"{self._what} {name} is damaged: {error}") from error


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints of a run: those to resume from, and the best models.

    `lease` names them in the run's log; None: there is no log.
    """

    resume: Checkpoints
    best: Checkpoints
    lease: Lease | None = None

    def covering(self, run_files: Mapping[str, str]) -> RunCheckpoints:
        """Return the same checkpoints; the manifests of new ones have the SHA-256 of files of the run."""
        resume, best = self.resume.covering(run_files), self.best.covering(run_files)
        return RunCheckpoints(resume, best, self.lease)

    def publish(self, kept: Collection[str]) -> None:
        """Say in the log that these checkpoints exist, no others, and all best models.

        Raises:
            RunLostError: Another attempt has taken the run over.
            OSError: The entry cannot be written.
        """
        if self.lease is not None:
            self.lease.commit(kept, self.best.names(published=True))

    def newest(self) -> tuple[Commit | None, list[str]]:
        """Return the newest valid checkpoint, and what is wrong with those that are newer.

        A checkpoint whose best models are damaged is not valid: a resume from it would end with another
        model.
        """
        complaints: list[str] = []
        for name in self.resume.names():
            try:
                commit = self.resume.load(name)
                for step in sorted(commit.best):
                    self._check_best(commit, step)
                return commit, complaints
            except CheckpointError as error:
                complaints.append(str(error))
        return None, complaints

    def _check_best(self, commit: Commit, step: int) -> None:
        try:
            self.best.load_step(step)
        except CheckpointError as error:
            raise CheckpointError(
                f"checkpoint {commit.name} cannot be used without the best model of step {step}: {error}"
            ) from error


def copy_file(source: Path, target: Path) -> None:
    """Copy a file durably; a link is refused."""
    with open_regular(source) as original, open(target, "xb") as copy:
        shutil.copyfileobj(original, copy)
        copy.flush()
        os.fsync(copy.fileno())
