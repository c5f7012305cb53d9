"""Runs in a store: `--runs-dir s3://bucket/runs`, with a working copy on the local disk.

Under the URL, `log/<experiment>/<run-id>/<k>` are the entries of each run's log, and the objects under
`files/<experiment>/<run-id>/<attempt>-<serial>/` hold what the entries name. The keys of an attempt begin
with its number and a counter, so that no attempt overwrites an object of another.

A working copy is an ordinary run directory in the cache folder. Training writes there; `upload` stores what
has changed at each commit, and `download` makes a working copy what the newest entry says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from trainwright import plugins
from trainwright.digest import sha256_file
from trainwright.errors import CheckpointError, RunLockedError, TrainingError
from trainwright.safe_files import fsync_folder, make_folders, write_atomically
from trainwright.storage import compression
from trainwright.storage.heartbeats import Heartbeats
from trainwright.storage.log import FOLDER, DamagedEntryError, Entry, Log, StoredFile
from trainwright.storage.run_files import is_appended, is_of_checkpoint, is_safe
from trainwright.storage.uploads import TEMPORARY, Uploads, holds, local_names
from trainwright.storage.urls import check_store, open_store, url_of
from trainwright.stores.base import Store

log = logging.getLogger("trainwright")

DELETED = "deleted/"  # begins the keys of notes of runs that are being deleted
_DOWNLOAD = ".down-"  # begins the names of folders with unfinished downloads


class _DamagedFileError(CheckpointError):
    """A file of a run is not in its store any more, or not as it was stored."""


class RemoteRun:
    """A run in a store, and its working copy.

    Args:
        path: The working copy.
        store: The store of the runs' URL.
        compresses: Whether files of checkpoints are compressed when they are stored.
    """

    def __init__(self, path: Path, store: Store, *, compresses: bool = False) -> None:
        self.path = path
        self._store = store
        name = f"{path.parent.name}/{path.name}"
        self.log = Log(store, f"log/{name}/")
        self._files = f"files/{name}/"
        self._beats = f"alive/{name}/"
        self.heartbeats = Heartbeats(path, store, self.log, self._beats)
        self._uploads = Uploads(path, store, self._files, compresses=compresses)

    @staticmethod
    def of(path: Path, *, compresses: bool = False) -> RemoteRun | None:
        """Return the run of a working copy, or None for a run on the local disk.

        Raises:
            InputError: The store cannot be opened.
            MissingExtraError: Files are to be compressed, and the library for that is not installed.
        """
        url = url_of(path.absolute().parent.parent)
        if url is None:
            return None
        if compresses:
            compression.check_codec()
        return RemoteRun(path.absolute(), open_store(url), compresses=compresses)

    def check(self) -> None:
        """Refuse a store in which two processes could both own the run; see `check_store`."""
        check_store(self._store, self._url)

    @property
    def _url(self) -> str:
        return url_of(self.path.parent.parent) or "the store"

    # -- the newest entry

    def head(self) -> Entry | None:
        """Return the newest entry of the log, or None if there is none.

        If it is damaged, return one with its number that says what its copy here says, or else what the
        entry before it says: the next entry gets a number of its own, and all that it needs is in the store.

        Raises:
            CheckpointError: The store cannot be read, or there is no such copy or entry.
        """
        try:
            return self.log.head()
        except DamagedEntryError as error:
            damage, copy = error, None
        numbers = self.log.numbers()
        if numbers[-1:] != [damage.number]:
            return self.head()  # there is a newer one by now
        with contextlib.suppress(DamagedEntryError):
            copy = copied_entry(self.path)
        if copy is not None and copy.number == damage.number:
            log.warning("run %s: %s; its copy on this machine is used", self.path.name, damage)
            return copy
        return self._head_before(damage, numbers[:-1])

    def _head_before(self, damage: DamagedEntryError, numbers: Sequence[int]) -> Entry:
        """Return what stands for the newest entry, which is damaged: what the one before it says."""
        try:
            before = self.log.read(numbers[-1])
        except (DamagedEntryError, IndexError) as error:
            name = f"{self._url}/log/{self.path.parent.name}/{self.path.name}/{damage.number:09d}"
            raise CheckpointError(
                f"run {self.path.name}: {damage}, and there is no valid entry before it; put the object "
                f"{name} back from a backup, or from an earlier version of it. Nothing was changed"
            ) from error
        log.warning("run %s: %s; the run is what entry %d says", self.path.name, damage, before.number)
        # Who wrote the damaged entry is unknown: the same attempt, or the one after it, which may live.
        update = {"number": damage.number, "attempt": before.attempt + 1, "writer": "", "kind": "commit"}
        return before.model_copy(update=update)

    def free_head(self) -> Entry | None:
        """Return the newest entry of a run that no other process owns, as far as can be seen.

        Raises:
            RunLockedError: Another process owns the run.
            CheckpointError: As in `head`.
        """
        head = self.head()
        if head is not None:
            try:
                self.heartbeats.refuse_owned(head)
            except RunLockedError:
                head = self.head()  # its owner may have ended meanwhile
                if head is None or head.has_owner:
                    raise
        return head

    # -- down

    def download(self, entry: Entry, wanted: Callable[[str], bool]) -> None:
        """Download the wanted files that an entry names.

        The wanted ones that it does not name are deleted, and all such files of checkpoints. A segment of the
        journal or a file of a checkpoint that the store has lost is left out, as on a local disk: whoever
        reads the checkpoint names it as damaged.

        Raises:
            CheckpointError: Another file is not in the store, or not what was stored.
            OSError: A file cannot be written.
        """
        for name, file in entry.files.items():
            if unsafe := [one for one in (name, *file.parts) if not is_safe(one)]:
                raise CheckpointError(
                    f"the log of run {self.path.name} names a file {unsafe[0]!r}, which no run has"
                )
            if wanted(name) and not holds(self.path / name, file):
                try:
                    self._download(name, file)
                except _DamagedFileError as error:
                    may_be_lost = is_appended(name) or is_of_checkpoint(name)
                    if not may_be_lost or not self.log.is_newest(entry.number):
                        raise
                    if is_of_checkpoint(name):
                        (self.path / name).unlink(
                            missing_ok=True
                        )  # a file of that name that was never stored
                    log.debug("run %s: %s is lost: %s", self.path.name, name, error)
        for name in list(local_names(self.path)):
            if name not in entry.files and (wanted(name) or is_of_checkpoint(name)):
                (self.path / name).unlink(missing_ok=True)
        self._uploads.begin(entry)
        self._keep(entry)

    def fetch(self, folder: str) -> None:
        """Download the files of a checkpoint that the working copy lacks; see `engine.lease.Upload`.

        Raises:
            CheckpointError: The checkpoint is damaged in the store.
            TrainingError: The store cannot be read now.
        """
        for name, file in self._uploads.named.items():
            if name.startswith(f"{folder}/") and not holds(self.path / name, file):
                try:
                    self._download(name, file)
                except _DamagedFileError:
                    raise
                except CheckpointError as error:
                    raise TrainingError(
                        f"{error}; nothing was changed: resume the run once it can be read"
                    ) from error

    def _download(self, name: str, file: StoredFile) -> None:
        target = self.path / name
        make_folders(target.parent)
        if file.text is not None:
            write_atomically(target, file.text.encode())
            return
        with tempfile.TemporaryDirectory(prefix=_DOWNLOAD, dir=self.path) as folder:
            content = Path(folder) / "content"
            for number, part in enumerate(file.parts):
                piece = Path(folder) / f"{number}"
                self._download_part(part, piece if len(file.parts) > 1 else content)
                if len(file.parts) > 1:
                    with open(piece, "rb") as source, open(content, "ab") as joined:
                        shutil.copyfileobj(source, joined)
            if file.codec is not None:
                content = self._decompressed(name, file, content)
            with open(content, "ab") as joined:
                os.fsync(joined.fileno())
            if content.stat().st_size != file.bytes or sha256_file(content) != file.sha256:
                raise _DamagedFileError(
                    f"{name} of run {self.path.name} is not in the store as it was stored"
                )
            content.replace(target)
        fsync_folder(target.parent)

    def _decompressed(self, name: str, file: StoredFile, compressed: Path) -> Path:
        if file.codec != compression.ZSTD:
            raise CheckpointError(
                f"{name} of run {self.path.name} was stored as {file.codec!r}, which this version of "
                "Trainwright cannot read: use the version that stored it, or a newer one"
            )
        plain = compressed.with_name("plain")
        try:
            compression.decompress(compressed, plain, file.bytes)
        except CheckpointError as error:
            raise _DamagedFileError(
                f"{name} of run {self.path.name} is not in the store as it was stored: {error}"
            ) from error
        return plain

    def _download_part(self, part: str, target: Path) -> None:
        key = self._files + part
        try:
            self._store.download(key, target)
        except CheckpointError as error:
            if key in self._store.list(key):
                raise
            raise _DamagedFileError(str(error)) from error

    def _keep(self, entry: Entry) -> None:
        """Make the entry the only one in the working copy: the checkpoints there are those that it names."""
        name = f"{entry.number:09d}"
        folder = self.path / FOLDER
        make_folders(folder)
        write_atomically(folder / name, entry.encoded())
        for other in folder.iterdir():
            if other.name != name:
                other.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what uploads and downloads of processes that died have left; for the owner only."""
        for left in [*self.path.glob(f"{_DOWNLOAD}*"), *self.path.glob(f"{TEMPORARY}*")]:
            shutil.rmtree(left, ignore_errors=True)
            left.unlink(missing_ok=True)

    # -- up

    def upload(
        self, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        """Store what has changed since the last entry, and return all files; see `engine.lease.Upload`.

        Raises:
            OSError: A file cannot be stored.
        """
        return self._uploads.upload(folder, checkpoints, best)

    def published(self, entry: Entry) -> None:
        """Copy the entry here, and delete objects that neither it nor the one before names.

        That one replaces it if it is damaged. Its checkpoints are deleted at the end of an attempt, as no
        other entry may follow. Objects of later attempts are left.
        """
        before = self._uploads.named.items()
        spare = [file for name, file in before if entry.has_owner or not is_of_checkpoint(name)]
        named = {part for file in (*spare, *entry.files.values()) for part in file.parts}
        self._uploads.begin(entry)
        try:
            self._keep(entry)
            if not entry.has_owner:
                self.heartbeats.note_end()
            for key in self._store.list(self._files):
                part = key.removeprefix(self._files)
                attempt = part.partition("-")[0]
                if part not in named and attempt.isdecimal() and int(attempt) <= entry.attempt:
                    self._store.delete(key)
        except (OSError, CheckpointError) as error:
            log.debug("objects that no entry names are left in the store: %s", error)

    def remove(self) -> None:
        """Delete the run from its store: the log first, so that what is left is no run.

        A note of the newest entry is there meanwhile, by which `finish_removal` goes on after a kill.

        Raises:
            OSError, CheckpointError: Something cannot be deleted.
        """
        numbers = self.log.numbers()
        self._store.put_if_absent(self._note, f"{max(numbers, default=0)}".encode())
        self._remove()

    def finish_removal(self) -> bool:
        """Go on with a removal that was cut off, unless the run was taken up since; return whether it ended.

        Raises:
            OSError, CheckpointError: Something cannot be read or deleted.
        """
        left = self._store.get(self._note)
        is_gone = self.log.numbers()[-1:] in ([], [int(left)])
        if is_gone:
            self._remove()
        else:
            self._store.delete(self._note)
        return is_gone

    def _remove(self) -> None:
        self.log.remove()
        for prefix in (self._beats, self._files):
            for key in self._store.list(prefix):
                self._store.delete(key)
        self._store.delete(self._note)

    @property
    def _note(self) -> str:
        return f"{DELETED}{self.path.parent.name}/{self.path.name}"


def copied_entry(path: Path) -> Entry | None:
    """Return the entry that a working copy was made from, or None if there is none.

    Raises:
        CheckpointError: It is damaged.
    """
    return Log(plugins.adapter("store", "file")(path)).head()
