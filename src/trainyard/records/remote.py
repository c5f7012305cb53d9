"""Runs in a store: `--runs-dir s3://bucket/runs`, with a working copy on the local disk.

Under the URL, `log/<experiment>/<run-id>/<k>` are the entries of each run's log, and the objects under
`files/<experiment>/<run-id>/<attempt>-<serial>/` hold what the entries name. The keys of an attempt begin
with its number and a counter, so that no attempt overwrites an object of another. `alive/...` are heartbeats.
They only say early that a run is owned; the log decides.

A working copy is an ordinary run directory in the cache folder (`TRAINYARD_CACHE`, by default
`~/.cache/trainyard`). Training writes there; `upload` stores what has changed at each commit, and
`bring_down` makes a working copy what the newest entry says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import urlsplit

from trainyard import registry
from trainyard.digest import fsync_folder, make_folders, sha256_bytes, sha256_file, write_atomically
from trainyard.errors import CheckpointError, InputError, RunLockedError
from trainyard.records.document import dump
from trainyard.records.lineage import FOLDER as INITIAL
from trainyard.records.log import FOLDER, Entry, Log, StoredFile, has_ended
from trainyard.safe_open import open_regular, read_regular
from trainyard.stores.base import Store

log = logging.getLogger("trainyard")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_URL_FILE = ".url"  # beside the working copies of the runs under a URL
_CHECKPOINTS = ("checkpoints", "best")
_RECORDS = re.compile(
    r"(config\.yaml|created\.json|parent\.json|manifest\.json|result\.json|attempts/\d+\.json)"
)
_LOCAL = re.compile(r"(lock|log/.*|(.*/)?\..*|journal/.*\.summary)")  # stays on the local disk
_APPENDED = re.compile(r"journal/\d+\.jsonl")
_INLINE_BYTES = 2000  # a smaller text is in the entry itself
_MAX_PARTS = 32  # of a journal segment; then it is stored in one part again
_OWNER_FILE = ".owner"  # in a working copy: the process that trains the run elsewhere
SILENCE = 60.0  # seconds without a heartbeat after which the owner of a run counts as dead


# --- URLs and the folders of working copies


def is_url(runs_dir: Path | str) -> bool:
    """Return whether a folder of runs is given as a URL."""
    return isinstance(runs_dir, str) and _URL.match(runs_dir) is not None


def cache_folder() -> Path:
    """Return the folder of working copies: `TRAINYARD_CACHE`, or `trainyard` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return _absolute(os.environ.get("TRAINYARD_CACHE") or str(Path(base) / "trainyard"))


@cache
def _absolute(path: str) -> Path:
    """Make a path absolute once: a run changes the working directory later."""
    return Path(path).absolute()


def working_folder(url: str) -> Path:
    """Return the folder with the working copies of the runs under a URL, created if necessary.

    Raises:
        InputError: No store has the URL's scheme, or the URL holds credentials, or the folder cannot be made.
    """
    url = url.rstrip("/")
    parts = urlsplit(url)
    if registry.find("store", parts.scheme) is None:
        known = ", ".join(f"{name}://" for name in registry.names("store"))
        raise InputError(f"no store has URLs that begin with {parts.scheme}://; there are: {known}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            "the URL of a folder of runs holds no credentials or options: "
            "they come from the environment (for s3://, from AWS_ACCESS_KEY_ID and so on; see docs/stores.md)"
        )
    folder = cache_folder() / _hash(url)
    try:
        make_folders(folder)
        folder.chmod(0o700)  # a config may hold secrets
        if not (folder / _URL_FILE).exists():
            write_atomically(folder / _URL_FILE, url.encode())
    except OSError as error:
        raise InputError(
            f"cannot make the folder of working copies {folder}: {error.strerror}; "
            "set TRAINYARD_CACHE to another folder"
        ) from error
    return folder


def url_of(runs_dir: Path) -> str | None:
    """Return the URL whose runs have their working copies in a folder, or None for any other folder.

    A folder that someone else made is not believed: it must be in the cache, under the hash of its URL.
    """
    if runs_dir.absolute().parent != cache_folder():
        return None
    try:
        url = read_regular(runs_dir / _URL_FILE).decode()
    except (OSError, ValueError):
        return None
    return url if runs_dir.name == _hash(url) else None


def run_url(path: Path) -> str | None:
    """Return the URL of the run with this working copy, or None for a run on the local disk."""
    url = url_of(path.absolute().parent.parent)
    return None if url is None else f"{url}/{path.parent.name}/{path.name}"


def refuse_lost_copy(path: Path) -> None:
    """Refuse to train in a working copy outside of the cache folder: nothing would reach the store.

    Raises:
        InputError: The run directory is such a copy.
    """
    if (path.absolute().parent.parent / _URL_FILE).exists():
        raise InputError(
            f"{path} is the working copy of a run in a store, and not in the cache folder {cache_folder()}: "
            "name the run by its URL, or set TRAINYARD_CACHE as it was"
        )


def _hash(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


# --- stores


def open_store(url: str) -> Store:
    """Open the store of a URL for reading; `check_store` must follow before anything is committed."""
    return cast(Store, registry.adapter("store", urlsplit(url).scheme)(url))


def check_store(store: Store, name: str) -> None:
    """Refuse a store that lets two conditional puts win.

    Raises:
        InputError: It does, or nothing can be stored there.
    """
    key = f"probe/{secrets.token_hex(8)}"
    try:
        store.put_if_absent(key, b"first")
        is_second = store.put_if_absent(key, b"second")
        is_sound = not is_second and store.get(key) == b"first"
        store.delete(key)
    except (OSError, CheckpointError) as error:
        raise InputError(f"{name} cannot be used as a store: {error}") from error
    if not is_sound:
        raise InputError(
            f"{name} lets a second conditional put win, so that two processes could both own a run; "
            "use a service that refuses it (those of Amazon, Google and Microsoft do)"
        )


# --- one run


class RemoteRun:
    """A run in a store, and its working copy.

    Args:
        path: The working copy.
        store: The store of the runs' URL.
    """

    def __init__(self, path: Path, store: Store) -> None:
        self.path = path
        self._store = store
        name = f"{path.parent.name}/{path.name}"
        self.log = Log(store, f"log/{name}/")
        self._files = f"files/{name}/"
        self._beats = f"alive/{name}/"
        self._stored: dict[str, StoredFile] = {}  # by name: each file as it was last stored
        self._seen: dict[str, tuple[int, int]] = {}  # by name: its modification time and size then
        self._hashes: dict[str, hashlib._Hash] = {}  # by name: of the stored part of a journal segment

    @staticmethod
    def of(path: Path) -> RemoteRun | None:
        """Return the run of a working copy, or None for a run on the local disk.

        Raises:
            InputError: The store cannot be opened.
        """
        url = url_of(path.absolute().parent.parent)
        return None if url is None else RemoteRun(path.absolute(), open_store(url))

    def check(self) -> None:
        """Refuse a store in which two processes could both own the run; see `check_store`."""
        check_store(self._store, url_of(self.path.parent.parent) or "the store")

    # -- the owner

    def beat(self, attempt: int) -> None:
        """Store a heartbeat of an attempt.

        If the store cannot be reached, this heartbeat is lost: training needs the store only for its commits.
        """
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix=".up-", dir=self.path) as file:
            file.write(f"{time.time()}".encode())
            file.flush()
            self._store.put(f"{self._beats}{attempt:04d}", Path(file.name))

    def is_asked_to_stop(self, attempt: int) -> bool:
        """Return whether an attempt is asked to stop; False if the store cannot be reached."""
        with contextlib.suppress(OSError, CheckpointError):
            return self._stop_request(attempt) in self._store.list(self._beats)
        return False

    def stop_beating(self, attempt: int) -> None:
        """Delete the heartbeat of an attempt that has ended, and a request to stop it."""
        for key in (f"{self._beats}{attempt:04d}", self._stop_request(attempt)):
            with contextlib.suppress(OSError):
                self._store.delete(key)

    def ask_to_stop(self, attempt: int) -> None:
        """Ask an attempt, on whatever machine, to stop; it reads the request at its next heartbeat.

        Raises:
            OSError: The request cannot be stored.
        """
        self._store.put_if_absent(self._stop_request(attempt), b"")

    def _stop_request(self, attempt: int) -> str:
        return f"{self._beats}{attempt:04d}.stop"

    def refuse_owned(self, entry: Entry) -> None:
        """Refuse a run that another process seems to train, by the newest entry of its log.

        Raises:
            RunLockedError: The last heartbeat is less than `SILENCE` old.
        """
        if self._is_alive(entry):
            owner = entry.writer.partition(",")[0]
            raise RunLockedError(
                f"run {self.path.name} is owned by another process ({owner}); wait for it, or end it and "
                f"resume, at the latest {SILENCE:.0f} s after its end"
            )

    def note_owner(self, entry: Entry) -> None:
        """Note in the working copy whether a process trains the run elsewhere, for its status."""
        if not entry.has_owner:
            (self.path / _OWNER_FILE).unlink(missing_ok=True)
        else:
            self._note_heartbeat(time.time() if self._is_alive(entry) else 0.0)

    def forget_owner(self) -> None:
        """Note that no process elsewhere owns the run, and that its attempt has not ended."""
        self._note_heartbeat(0.0)

    def _note_heartbeat(self, seconds: float) -> None:
        write_atomically(self.path / _OWNER_FILE, json.dumps({"time": seconds}).encode())

    def _is_alive(self, entry: Entry) -> bool:
        if not entry.has_owner or has_ended(entry.writer):
            return False
        beat = entry.time
        with contextlib.suppress(CheckpointError, ValueError):
            beat = max(beat, float(self._store.get(f"{self._beats}{entry.attempt:04d}")))
        return abs(time.time() - beat) < SILENCE

    # -- down

    def bring_down(self, entry: Entry, wanted: Callable[[str], bool]) -> None:
        """Download the wanted files that an entry names, and delete the wanted ones that it does not name.

        Raises:
            CheckpointError: A file is not in the store, or not what was stored.
            OSError: A file cannot be written.
        """
        for name, file in entry.files.items():
            if unsafe := [one for one in (name, *file.parts) if not _is_safe(one)]:
                raise CheckpointError(
                    f"the log of run {self.path.name} names a file {unsafe[0]!r}, which no run has"
                )
            if wanted(name) and not _holds(self.path / name, file):
                self._download(name, file)
        for name in list(self._local_names()):
            if wanted(name) and name not in entry.files:
                (self.path / name).unlink(missing_ok=True)
        self._stored = dict(entry.files)
        self._keep(entry)

    def _download(self, name: str, file: StoredFile) -> None:
        target = self.path / name
        make_folders(target.parent)
        if file.text is not None:
            write_atomically(target, file.text.encode())
            return
        with tempfile.TemporaryDirectory(prefix=".down-", dir=self.path) as folder:
            content = Path(folder) / "content"
            for number, part in enumerate(file.parts):
                piece = Path(folder) / f"{number}"
                self._store.download(self._files + part, piece if len(file.parts) > 1 else content)
                if len(file.parts) > 1:
                    with open(piece, "rb") as source, open(content, "ab") as joined:
                        shutil.copyfileobj(source, joined)
            with open(content, "ab") as joined:
                os.fsync(joined.fileno())
            if content.stat().st_size != file.bytes or sha256_file(content) != file.sha256:
                raise CheckpointError(f"{name} of run {self.path.name} is not in the store as it was stored")
            content.replace(target)
        fsync_folder(target.parent)

    def _keep(self, entry: Entry) -> None:
        """Make the entry the only one in the working copy: the checkpoints there are those that it names."""
        name = f"{entry.number:09d}"
        folder = self.path / FOLDER
        make_folders(folder)
        write_atomically(folder / name, dump(entry.to_json()))
        for other in folder.iterdir():
            if other.name != name:
                other.unlink(missing_ok=True)

    # -- up

    def upload(
        self, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        """Store what has changed since the last entry, and return all files; see `engine.lease.Upload`.

        Raises:
            OSError: A file cannot be stored.
        """
        committed = {
            *(f"checkpoints/{name}" for name in checkpoints),
            *(f"best/{name}" for name in best),
        }
        files: dict[str, StoredFile] = {}
        # The positions of trackers come before the journal that they point into, which grows meanwhile.
        for name in sorted(self._local_names(), key=lambda name: (not name.startswith("trackers/"), name)):
            is_checkpoint = name.startswith(tuple(f"{kind}/" for kind in _CHECKPOINTS))
            if is_checkpoint and name.rpartition("/")[0] not in committed:
                continue
            try:
                files[name] = self._upload_file(name, folder)
            except FileNotFoundError:
                if is_checkpoint:
                    raise
        return files

    def _upload_file(self, name: str, folder: str) -> StoredFile:
        path, before = self.path / name, self._stored.get(name)
        status = path.stat()
        if before is not None and self._seen.get(name) == (status.st_mtime_ns, status.st_size):
            return before
        if _APPENDED.fullmatch(name):
            file = self._upload_appended(name, folder, before)
        elif (size := status.st_size) <= _INLINE_BYTES and (text := _text(path, name)) is not None:
            file = StoredFile(bytes=len(text.encode()), sha256=sha256_bytes(text.encode()), text=text)
        elif before is not None and before.sha256 == sha256_file(path):
            file = before
        else:
            file = StoredFile(bytes=size, sha256=sha256_file(path), parts=(folder + name,))
            self._store.put(self._files + folder + name, path)
        self._stored[name], self._seen[name] = file, (status.st_mtime_ns, status.st_size)
        return file

    def _upload_appended(self, name: str, folder: str, before: StoredFile | None) -> StoredFile:
        """Store the lines that were appended to a segment of the journal since it was last stored."""
        if before is not None and name not in self._hashes:
            self._hashes[name] = self._hash_of_start(name, before.bytes)
        if before is None or self._hashes[name].hexdigest() != before.sha256:
            before = StoredFile(bytes=0, sha256="")
        hashed = self._hashes[name].copy() if before.bytes else hashlib.sha256()
        with open_regular(self.path / name, depth=2) as file:
            file.seek(before.bytes)
            lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            hashed.update(lines)
            if before.parts and not lines:
                return before
            size = before.bytes + len(lines)
            if len(before.parts) >= _MAX_PARTS:
                file.seek(0)
                before, lines = StoredFile(bytes=0, sha256=""), file.read(size)
        with tempfile.NamedTemporaryFile(prefix=".up-", dir=self.path) as part:
            part.write(lines)
            part.flush()
            self._store.put(self._files + folder + name, Path(part.name))
        self._hashes[name] = hashed
        return StoredFile(bytes=size, sha256=hashed.hexdigest(), parts=(*before.parts, folder + name))

    def _hash_of_start(self, name: str, size: int) -> hashlib._Hash:
        with open_regular(self.path / name, depth=2) as file:
            return hashlib.sha256(file.read(size))

    def published(self, entry: Entry) -> None:
        """Copy the entry here, and delete objects of this and earlier attempts that it does not name."""
        self._stored = dict(entry.files)
        try:
            self._keep(entry)
            if not entry.has_owner:
                (self.path / _OWNER_FILE).unlink(missing_ok=True)
            named = {part for file in entry.files.values() for part in file.parts}
            for key in self._store.list(self._files):
                part = key.removeprefix(self._files)
                attempt = part.partition("-")[0]
                if part not in named and attempt.isdecimal() and int(attempt) <= entry.attempt:
                    self._store.delete(key)
        except (OSError, CheckpointError) as error:
            log.debug("objects that no entry names are left in the store: %s", error)

    def remove(self) -> None:
        """Delete the run from its store: the log first, so that what is left is no run.

        Raises:
            OSError, CheckpointError: Something cannot be deleted.
        """
        self.log.remove()
        for prefix in (self._beats, self._files):
            for key in self._store.list(prefix):
                self._store.delete(key)

    def _local_names(self) -> Iterator[str]:
        """Yield the names of the files of the working copy that belong in the store."""
        for folder, folders, files in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for file in files:
                name = (Path(folder) / file).relative_to(self.path).as_posix()
                if _is_safe(name) and not (Path(folder) / file).is_symlink():
                    yield name


def has_owner(path: Path) -> bool:
    """Return whether a working copy says that a process trains the run elsewhere."""
    try:
        seen = float(json.loads(read_regular(path / _OWNER_FILE))["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return abs(time.time() - seen) < SILENCE


def may_have_owner(path: Path) -> bool:
    """Return whether the attempt that a working copy knows of has not ended."""
    return (path / _OWNER_FILE).exists()


def copied_entry(path: Path) -> Entry | None:
    """Return the entry that a working copy was made from, or None if there is none.

    Raises:
        CheckpointError: It is damaged.
    """
    return Log(registry.adapter("store", "file")(path)).head()


def is_record(name: str) -> bool:
    """Return whether a file is one of the records that a list of runs is made from."""
    return _RECORDS.fullmatch(name) is not None


def is_small(name: str) -> bool:
    """Return whether a file is no part of a checkpoint."""
    return not name.startswith(tuple(f"{kind}/" for kind in (*_CHECKPOINTS, INITIAL)))


def is_no_checkpoint(name: str) -> bool:
    """Return whether a file is no part of a checkpoint of the run's own; the initial state is none."""
    return not name.startswith(tuple(f"{kind}/" for kind in _CHECKPOINTS))


def is_any(name: str) -> bool:  # noqa: ARG001 - a filter, as the two above
    """Return True: all files are wanted."""
    return True


def _is_safe(name: str) -> bool:
    """Return whether a file with this name, or an object with this key, can be one of a run in a store."""
    parts = PurePosixPath(name).parts
    is_inside = bool(parts) and parts[0] != "/" and ".." not in parts
    return is_inside and name.isprintable() and not _LOCAL.fullmatch(name)


def _holds(path: Path, file: StoredFile) -> bool:
    try:
        with open_regular(path, depth=1) as opened:
            return (
                os.fstat(opened.fileno()).st_size == file.bytes
                and hashlib.file_digest(cast(Any, opened), "sha256").hexdigest() == file.sha256
            )
    except OSError:
        return False


def _text(path: Path, name: str) -> str | None:
    """Return the content of a small file as text, or None if it is not one."""
    try:
        return read_regular(path, depth=len(PurePosixPath(name).parts)).decode()
    except ValueError:
        return None
