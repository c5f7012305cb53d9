"""Versions of data that are kept beside the runs, in their store: `churn@v3`.

`data add` cuts files into chunks that are named by their hashes and stored once; a log of each data set has
its versions, tags and deletions.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path, PurePath

from trainwright.config.file_types import ending_of
from trainwright.config.versions import EMBEDDED, NAME, REFERENCE
from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.process.file_stamps import FileRecord
from trainwright.records.pins import Pin
from trainwright.redact import redacted
from trainwright.storage.urls import cache_folder, check_store, open_store
from trainwright.stores.base import Store
from trainwright.versions.base import Description, Reference
from trainwright.versions.embedded.add import store_files
from trainwright.versions.embedded.chunks import Chunks
from trainwright.versions.embedded.get import write_files
from trainwright.versions.embedded.history import LATEST, Entry, Histories, History
from trainwright.versions.embedded.sweep import adding
from trainwright.versions.embedded.tree import FILE_STEM, sources

FOLDER = ".data"  # below the folder of the runs
_NAMES = 1000  # that a description has
_LONGEST = 100  # characters of a reference that a message repeats
log = logging.getLogger("trainwright")


class EmbeddedVersion:
    """The versions of data beside runs; see `versions.base.Version`.

    Args:
        runs: The folder of the runs, as a URL.
    """

    def __init__(self, runs: str) -> None:
        self.url = runs.rstrip("/")
        self.store: Store = open_store(f"{self.url}/{FOLDER}")
        self.histories = Histories(self.store)

    def resolve(self, reference: Reference) -> Pin:
        """Return the pin of `{path: NAME@REVISION}`; the revision is `v3`, a tag or `latest`."""
        text = reference["path"] or ""
        if re.fullmatch(NAME, text) and (named := self.histories.history(text)).entries:
            raise DataError(f"{text} is a data set; name a version as {text}@VERSION: {named.listed}")
        if (match := REFERENCE.fullmatch(text)) is None:
            raise DataError(
                f"{text[:_LONGEST]!r} names no version of data; write NAME@VERSION, such as churn@v3"
            )
        history = self.histories.known(match["name"])
        return self.pin(history.name, history.version(match["revision"]))

    def pin(self, name: str, entry: Entry) -> Pin:
        """Return the pin of a version."""
        exact = f"{name}@v{entry.number}"
        file = f"{name}{entry.file.removeprefix(FILE_STEM)}" if entry.file else ""
        return Pin(
            kind=EMBEDDED,
            source=redacted(self.url),
            revision=exact,
            content=entry.content,
            reference={"path": exact},
            file=file,
        )

    def materialise(self, pin: Pin, folder: Path) -> Path:
        """Write the files of a version; see `Version.materialise`."""
        history, entry = self._find(pin)
        if (deletion := history.deleted.get(entry.number)) is not None:
            same = f"{history.name}@v{history.same_as(entry)[-1].number}"
            log.info("%s %s, but %s has the same content", pin.revision, deletion.deletion, same)
        chunks, name = Chunks(self.store), history.name
        try:
            files = chunks.tree(entry.content)
            if entry.file and [one.path for one in files] != [entry.file]:
                raise DataError(
                    f"the list of files {entry.content[:12]} is not that of the file {entry.file}"
                )
            if not entry.file:
                (folder / name).mkdir()
                write_files(files, entry.packs, chunks, folder / name)
                return folder / name
            write_files(files, entry.packs, chunks, folder)
        except DataError as error:
            raise DataError(f"{pin.revision}: {error}") from error
        return (folder / entry.file).rename(folder / pin.file)

    def describe(self, pin: Pin) -> Description:
        """Return the numbers of a version."""
        history, entry = self._find(pin)
        files = () if pin.file else Chunks(self.store).tree(entry.content)
        names = [pin.file] if pin.file else [one.path for one in files[:_NAMES]]
        tags = history.tags_of(entry.number)
        return Description(entry.files, entry.bytes, names, entry.time, entry.user, entry.message, tags)

    def _find(self, pin: Pin) -> tuple[History, Entry]:
        name, _, revision = pin.revision.partition("@")
        history = self.histories.known(name)
        entry = history.version(revision)
        if pin.content is not None and entry.content != pin.content:
            raise DataError(
                f"{pin.revision} in {self.url} has the content {entry.content[:12]}, not {pin.content[:12]}, "
                "which the run recorded: it is the version of another folder of runs"
            )
        return history, entry

    def add(self, path: Path, name: str, message: str = "") -> tuple[Entry, bool]:
        """Store a file or folder as the next version of a data set, unless its newest one is the same.

        Returns:
            The version, and whether it is new.

        Raises:
            InputError: The files cannot be read, or another process deletes at the moment.
            OSError: The store cannot be written.
        """
        files = sources(path, _endings(path))
        with adding(self.store) as mark:
            check_store(self.store, self.url)
            known, chunks = _known(path), Chunks(self.store)
            added = store_files(files, chunks, known)
            known.save()
            file = "" if path.is_dir() else files[0].path

            def version(history: History) -> Entry | None:
                latest = history.latest
                is_same = latest is not None and (latest.content, latest.file) == (added.content, file)
                if latest is not None and is_same and chunks.stored_packs().issuperset(latest.packs):
                    return None  # with packs that are lost, a new version holds the content
                number = history.next_number
                return Entry(kind="version", number=number, message=message, file=file, **added._asdict())

            mark.check()
            if (entry := self.histories.write(name, version)) is not None:
                return entry, True
        return self.histories.history(name).version(LATEST), False


def _known(path: Path) -> FileRecord:
    """Return what the user's cache knows of the chunks of the files that are added."""
    name = sha256_bytes(str(path.resolve()).encode(errors="surrogateescape"))[:32]
    return FileRecord(cache_folder() / "hashes" / f"chunks-{name}.json")


def _endings(path: Path) -> str:
    """Return the ending of a file, with that of its compression: `.csv.gz`."""
    inner, outer = ending_of(path.name), path.suffix
    return outer if outer.lower() == inner else f"{PurePath(path.stem).suffix}{outer}"
