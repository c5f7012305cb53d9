"""Versions of data that are kept beside the runs, in their store: `churn@v3`.

`data add` cuts files into pieces that are named by their hashes and stored once; a log of each data set has
its versions, tags and deletions.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from trainwright.config.file_types import ending_of
from trainwright.config.versions import REFERENCE
from trainwright.errors import CheckpointError, DataError
from trainwright.records.pins import Pin
from trainwright.storage.urls import check_store, open_store
from trainwright.stores.base import Store
from trainwright.versions.base import Description, Reference
from trainwright.versions.embedded.add import store_files
from trainwright.versions.embedded.get import write_files
from trainwright.versions.embedded.history import LATEST, Entry, Histories, History
from trainwright.versions.embedded.known_files import KnownFiles
from trainwright.versions.embedded.pieces import Pieces
from trainwright.versions.embedded.sweep import adding
from trainwright.versions.embedded.tree import FILE_STEM, sources

FOLDER = ".data"  # below the folder of the runs
_NAMES = 1000  # that a description has


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
        if (match := REFERENCE.fullmatch(text)) is None:
            raise DataError(f"{text!r} names no version of data; write NAME@VERSION, such as churn@v3")
        try:
            history = self.histories.known(match["name"])
        except CheckpointError as error:
            raise DataError(str(error)) from error
        return self.pin(history.name, history.version(match["revision"]))

    def pin(self, name: str, entry: Entry) -> Pin:
        """Return the pin of a version."""
        exact = f"{name}@v{entry.number}"
        file = f"{name}{entry.file.removeprefix(FILE_STEM)}" if entry.file else ""
        return Pin(
            kind="embedded",
            source=self.url,
            revision=exact,
            content=entry.content,
            reference={"path": exact},
            file=file,
        )

    def materialise(self, pin: Pin, folder: Path) -> Path:
        """Write the files of a version; see `Version.materialise`."""
        entry = self._entry(pin)
        pieces = Pieces(self.store)
        files = pieces.tree(entry.content)
        name = pin.revision.partition("@")[0]
        try:
            if not entry.file:
                (folder / name).mkdir()
                write_files(files, entry.packs, pieces, folder / name)
                return folder / name
            write_files(files, entry.packs, pieces, folder)
        except DataError as error:
            raise DataError(f"{pin.revision}: {error}") from error
        return (folder / entry.file).rename(folder / pin.file)

    def describe(self, pin: Pin) -> Description:
        """Return the numbers of a version."""
        history = self.histories.known(pin.revision.partition("@")[0])
        entry = self._entry(pin)
        files = Pieces(self.store).tree(entry.content)
        names = [pin.file] if pin.file else [one.path for one in files[:_NAMES]]
        tags = history.tags_of(entry.number)
        return Description(entry.files, entry.bytes, names, entry.time, entry.user, entry.message, tags)

    def _entry(self, pin: Pin) -> Entry:
        name, _, revision = pin.revision.partition("@")
        try:
            entry = self.histories.known(name).version(revision)
        except CheckpointError as error:
            raise DataError(str(error)) from error
        if pin.content is not None and entry.content != pin.content:
            raise DataError(
                f"{pin.revision} in {self.url} has the content {entry.content[:12]}, not {pin.content[:12]}, "
                "which the run recorded: it is the version of another folder of runs"
            )
        return entry

    def add(self, path: Path, name: str, message: str = "") -> tuple[Entry, bool]:
        """Store a file or folder as the next version of a data set, unless its newest one is the same.

        Returns:
            The version, and whether it is new.

        Raises:
            InputError: The files cannot be read, or another process deletes at the moment.
            OSError: The store cannot be written.
        """
        files = sources(path, _endings(path))
        with adding(self.store):
            check_store(self.store, self.url)
            known, pieces = KnownFiles(path), Pieces(self.store)
            added = store_files(files, pieces, known)
            known.save()
            file = "" if path.is_dir() else files[0].path

            def version(history: History) -> Entry | None:
                latest = history.latest
                is_same = latest is not None and latest.content == added.content
                if latest is not None and is_same and pieces.stored_packs().issuperset(latest.packs):
                    return None  # with packs that are lost, a new version holds the content
                number = history.next_number
                return Entry(kind="version", number=number, message=message, file=file, **added._asdict())

            if (entry := self.histories.write(name, version)) is not None:
                return entry, True
        return self.histories.history(name).version(LATEST), False


def _endings(path: Path) -> str:
    """Return the ending of a file, with that of its compression: `.csv.gz`."""
    inner, outer = ending_of(path.name), path.suffix
    return outer if outer.lower() == inner else f"{PurePath(path.stem).suffix}{outer}"
