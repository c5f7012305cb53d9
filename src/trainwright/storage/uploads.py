"""Store what has changed in the working copy of a run."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from trainwright.digest import sha256_bytes, sha256_file
from trainwright.safe_files import open_regular, read_regular
from trainwright.storage import compression
from trainwright.storage.log import Entry, StoredFile
from trainwright.storage.run_files import MANIFEST, is_appended, is_of_checkpoint, is_safe
from trainwright.stores.base import Store

TEMPORARY = ".up-"  # begins the names of files that are uploaded and then deleted
_INLINE_BYTES = 2000  # a smaller text is in the entry itself
_MAX_PARTS = 32  # of a journal segment; then it is stored in one part again


class Uploads:
    """The content of a store that belongs to a run, and the upload of what has changed since.

    Args:
        path: The working copy.
        store: The store.
        prefix: The beginning of the keys of the run's objects.
        compresses: Whether files of checkpoints are compressed.
    """

    def __init__(self, path: Path, store: Store, prefix: str, *, compresses: bool = False) -> None:
        self._path = path
        self._store = store
        self._prefix = prefix
        self._compresses = compresses
        self.named: Mapping[str, StoredFile] = {}  # by name: the files that the newest entry names
        self._stored: dict[str, StoredFile] = {}  # by name: each file as it was last stored
        self._seen: dict[str, tuple[int, int]] = {}  # by name: its modification time and size then
        self._hashes: dict[str, hashlib._Hash] = {}  # by name: of the stored part of a journal segment

    def begin(self, entry: Entry) -> None:
        """Go on from the files that an entry names."""
        self.named, self._stored = entry.files, dict(entry.files)

    def upload(
        self, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        """Store what has changed since the last entry, and return all files; see `engine.lease.Upload`.

        A checkpoint that the last entry names is taken from there: it does not change, and need not be in
        the working copy but for its manifest.

        Raises:
            OSError: A file cannot be stored.
        """
        committed = {
            *(f"checkpoints/{name}" for name in checkpoints),
            *(f"best/{name}" for name in best),
        }
        files = {name: file for one in committed for name, file in self._files_of_known(one)}
        known = {name.rpartition("/")[0] for name in files}
        # The positions of trackers come before the journal that they point into, which grows meanwhile.
        names = sorted(local_names(self._path), key=lambda name: (not name.startswith("trackers/"), name))
        for name in names:
            is_checkpoint, parent = is_of_checkpoint(name), name.rpartition("/")[0]
            if is_checkpoint and (parent not in committed or parent in known):
                continue
            try:
                files[name] = self._upload_file(name, folder)
            except FileNotFoundError:
                if is_checkpoint:
                    raise
        # A segment that is lost stays named, so that the loss does.
        lost = {name: file for name, file in self.named.items() if is_appended(name) and name not in files}
        return files | lost

    def _files_of_known(self, checkpoint: str) -> Iterator[tuple[str, StoredFile]]:
        """Yield the files of a checkpoint that the last entry names, if it is the one in the working copy."""
        folder = f"{checkpoint}/"
        manifest = self.named.get(folder + MANIFEST)
        if manifest is not None and holds(self._path / folder / MANIFEST, manifest):
            yield from ((name, file) for name, file in self.named.items() if name.startswith(folder))

    def _upload_file(self, name: str, folder: str) -> StoredFile:
        path, before = self._path / name, self._stored.get(name)
        status = path.stat()
        if before is not None and self._seen.get(name) == (status.st_mtime_ns, status.st_size):
            return before
        if is_appended(name):
            file = self._upload_appended(name, folder, before)
        elif (size := status.st_size) <= _INLINE_BYTES and (text := _text(path, name)) is not None:
            file = StoredFile(bytes=len(text.encode()), sha256=sha256_bytes(text.encode()), text=text)
        elif before is not None and before.sha256 == sha256_file(path):
            file = before
        elif is_of_checkpoint(name) and (same := self._equal(path, size)) is not None:
            file = same
        elif self._compresses and is_of_checkpoint(name) and size >= compression.MIN_BYTES:
            file = self._upload_compressed(name, folder)
        else:
            file = StoredFile(bytes=size, sha256=sha256_file(path), parts=(folder + name,))
            self._store.put(self._prefix + folder + name, path)
        self._stored[name], self._seen[name] = file, (status.st_mtime_ns, status.st_size)
        return file

    def _equal(self, path: Path, size: int) -> StoredFile | None:
        """Return a file of another checkpoint that is stored already, and has the same content."""
        alike = [one for other, one in self._stored.items() if one.bytes == size and is_of_checkpoint(other)]
        sha256 = sha256_file(path) if any(one.parts for one in alike) else None
        return next((one for one in alike if one.parts and one.sha256 == sha256), None)

    def _upload_compressed(self, name: str, folder: str) -> StoredFile:
        path, part = self._path / name, f"{folder}{name}{compression.SUFFIX}"
        with tempfile.NamedTemporaryFile(prefix=TEMPORARY, dir=self._path) as compressed:
            compression.compress(path, Path(compressed.name))
            self._store.put(self._prefix + part, Path(compressed.name))
        size = path.stat().st_size
        return StoredFile(bytes=size, sha256=sha256_file(path), parts=(part,), codec=compression.ZSTD)

    def _upload_appended(self, name: str, folder: str, before: StoredFile | None) -> StoredFile:
        """Store the lines that were appended to a segment of the journal since it was last stored.

        One whose stored lines were changed here is left as it was stored, so that the change is named.
        """
        if before is not None and name not in self._hashes:
            self._hashes[name] = self._hash_of_start(name, before.bytes)
        if before is not None and self._hashes[name].hexdigest() != before.sha256:
            return before
        before = before or StoredFile(bytes=0, sha256="")
        hashed = self._hashes[name].copy() if before.bytes else hashlib.sha256()
        with open_regular(self._path / name, depth=2) as file:
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
        with tempfile.NamedTemporaryFile(prefix=TEMPORARY, dir=self._path) as part:
            part.write(lines)
            part.flush()
            self._store.put(self._prefix + folder + name, Path(part.name))
        self._hashes[name] = hashed
        return StoredFile(bytes=size, sha256=hashed.hexdigest(), parts=(*before.parts, folder + name))

    def _hash_of_start(self, name: str, size: int) -> hashlib._Hash:
        with open_regular(self._path / name, depth=2) as file:
            return hashlib.sha256(file.read(size))


def local_names(path: Path) -> Iterator[str]:
    """Yield the names of the files of a working copy that belong in its store."""
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            name = (Path(folder) / file).relative_to(path).as_posix()
            if is_safe(name) and not (Path(folder) / file).is_symlink():
                yield name


def holds(path: Path, file: StoredFile) -> bool:
    """Return whether a local file has the content of a stored one."""
    try:
        with open_regular(path, depth=1) as opened:
            return (
                os.fstat(opened.fileno()).st_size == file.bytes
                and hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256  # type: ignore[arg-type]
            )
    except OSError:
        return False


def _text(path: Path, name: str) -> str | None:
    """Return the content of a small file as text, or None if it is not one."""
    try:
        return read_regular(path, depth=len(PurePosixPath(name).parts)).decode()
    except ValueError:
        return None
