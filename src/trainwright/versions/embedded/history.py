"""The names of data sets: for each, a log of its versions, tags and deletions, which only grows."""

from __future__ import annotations

import getpass
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from trainwright.config.words import nearest
from trainwright.errors import CheckpointError, DataError
from trainwright.records.document import Document
from trainwright.stores.base import Store

LATEST = "latest"
_NUMBER = re.compile(r"v?([0-9]{1,9})")
_KEY = re.compile(r"names/[^/]+/([0-9]{6,12})")  # of an entry
_LAST_TIME = 1e11  # seconds since the epoch, which `time.localtime` knows
_THREADS = 8
_TRIES = 100  # of an entry whose number another process takes
_PREFIX = "names/"


def _plain(value: Any) -> Any:
    """Return text without lone surrogates, which no output can encode."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_plain)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        return "an unknown user"


class Entry(Document):
    """One line of a data set's log: a version, a tag that is set, or a version that is deleted.

    `number` is that of the version. `content` is the hash of its files, `packs` are the packs that hold the
    small ones, and `file` is the name of the file; it is empty for a folder. `token` tells who wrote the
    entry. `user`, `host` and `time` (seconds since the epoch) say who made it when; `by` is the command that
    deleted a version. Anyone may have written an entry: no part of it is a path, or too large to show.
    """

    kind: Literal["version", "tag", "delete"]
    number: int = Field(ge=1, lt=10**9)
    token: _Text = Field(default_factory=lambda: secrets.token_hex(16))
    time: float = Field(default_factory=time.time, ge=0, le=_LAST_TIME)
    user: _Text = Field(default_factory=_user)
    host: _Text = Field(default_factory=socket.gethostname)
    content: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    packs: list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=list)
    file: str = Field(default="", pattern=r"^(data(\.[^/\x00]*)?)?$")
    files: _Count = 0
    bytes: _Count = 0
    message: _Text = ""
    tag: _Text = ""
    by: _Text = ""

    @property
    def deletion(self) -> str:
        """The deletion in words: by a user, on a host, at a time."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"was deleted by {self.user} on {self.host}, {when} ({self.by})"


class History(NamedTuple):
    """The log of a data set, read; `last` is the number of its newest entry."""

    name: str
    entries: list[Entry]
    last: int = 0

    @property
    def versions(self) -> dict[int, Entry]:
        """The versions that are there, by number."""
        gone = self.deleted
        return {one.number: one for one in self.entries if one.kind == "version" and one.number not in gone}

    @property
    def deleted(self) -> dict[int, Entry]:
        """The deletions, by the number of the version."""
        return {one.number: one for one in self.entries if one.kind == "delete"}

    @property
    def latest(self) -> Entry | None:
        """The newest version that is there."""
        return max(self.versions.values(), key=lambda one: one.number, default=None)

    @property
    def next_number(self) -> int:
        """The number of the next version; those of deleted ones are not used again."""
        return 1 + max((one.number for one in self.entries if one.kind == "version"), default=0)

    @property
    def tags(self) -> dict[str, int]:
        """The tags, with the numbers of their versions: the newest entry of a tag counts."""
        return {one.tag: one.number for one in self.entries if one.kind == "tag"}

    @property
    def revisions(self) -> list[str]:
        """The names of the versions that are there: their numbers, tags and `latest`."""
        there = self.versions
        tags = (tag for tag, tagged in self.tags.items() if tagged in there)
        return [*(f"v{one}" for one in sorted(there)), *tags, *([LATEST] if there else ())]

    @property
    def listed(self) -> str:
        """The names of the versions in words, those in the middle of a long list left out."""
        names = self.revisions
        return f"there are: {', '.join(_ends(names))}" if names else "there is none"

    def tags_of(self, number: int) -> list[str]:
        """Return the tags of a version."""
        return [tag for tag, tagged in self.tags.items() if tagged == number]

    def same_as(self, entry: Entry) -> list[Entry]:
        """Return the other versions that are there and have the same content, oldest first."""
        found = (self.versions[number] for number in sorted(self.versions) if number != entry.number)
        return [one for one in found if (one.content, one.file) == (entry.content, entry.file)]

    def version(self, revision: str) -> Entry:
        """Return the version that a number (`v3`), a tag or `latest` means.

        A deleted version is there as long as another one has the same content.

        Raises:
            DataError: There is none, or it was deleted.
        """
        if revision == LATEST:
            if self.latest is None:
                last = max(self.deleted.values(), key=lambda one: one.time, default=None)
                why = "" if last is None else f" any more: v{last.number} {last.deletion}"
                raise DataError(f"{self.name} has no version{why}")
            return self.latest
        match = _NUMBER.fullmatch(revision)
        number = int(match[1]) if match else self.tags.get(revision)
        if number is not None and (found := self.versions.get(number)) is not None:
            return found
        if number is not None and (deletion := self.deleted.get(number)) is not None:
            gone = next((one for one in self.entries if (one.kind, one.number) == ("version", number)), None)
            if gone is not None and (same := self.same_as(gone)):
                return gone.model_copy(update={"packs": same[-1].packs})
            raise DataError(f"{self.name}@v{number} {deletion.deletion}")
        raise DataError(
            f"{self.name} has no version {revision!r}; {self.listed}{nearest(revision, self.revisions)}"
        )


def _ends(names: list[str]) -> list[str]:
    """Return the names, those in the middle of a long list left out."""
    return names if len(names) <= 10 else [*names[:4], "...", *names[-5:]]


class Histories:
    """The logs of all data sets in a store.

    Each entry is an object of its own, numbered, and made only if there is none of that number: of two
    processes that write at once, one writes the next number.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names of the data sets, sorted.

        Raises:
            DataError: The store cannot be read.
        """
        return sorted({key.split("/")[1] for key in self._keys(_PREFIX)})

    def histories(self) -> Iterator[History]:
        """Yield the logs of all data sets.

        Raises:
            DataError: An entry is damaged, or cannot be read.
        """
        yield from map(self.history, self.names())

    def known(self, name: str) -> History:
        """Return the log of a data set that has one.

        Raises:
            DataError: It has none, or an entry is damaged.
        """
        if (history := self.history(name)).entries:
            return history
        names = self.names()
        there = (
            f"there are: {', '.join(_ends(names))}"
            if names
            else "there is none yet: trainwright data add FILE"
        )
        raise DataError(f"there is no data set {name!r}; {there}{nearest(name, names)}")

    def history(self, name: str) -> History:
        """Return the log of a data set; it is empty where there is none.

        Raises:
            DataError: An entry is damaged, or cannot be read.
        """
        keys = self._keys(f"{_PREFIX}{name}/")
        if not keys:
            return History(name, [])
        for key in keys:
            if _KEY.fullmatch(key) is None:
                raise DataError(f"{key} in the store of data is no entry of a log: delete this object")
        with ThreadPoolExecutor(_THREADS) as pool:
            return History(name, [*pool.map(self._read, keys)], int(keys[-1].rpartition("/")[2]))

    def _keys(self, prefix: str) -> list[str]:
        try:
            return [*self._store.list(prefix)]
        except CheckpointError as error:
            raise DataError(str(error)) from error

    def write(self, name: str, make: Callable[[History], Entry | None]) -> Entry | None:
        """Write the next entry of a log, and return it.

        Args:
            name: The data set.
            make: Makes the entry, given the log; None: nothing is to be written. It is called again if
                another process has written an entry meanwhile.

        Raises:
            DataError: Other processes write all the time.
            OSError: It is unknown whether the entry was written.
        """
        for _ in range(_TRIES):
            history = self.history(name)
            if (entry := make(history)) is None:
                return None
            key = f"{_PREFIX}{name}/{history.last + 1:06d}"
            # The answer to a first request may have been lost.
            if self._store.put_if_absent(key, entry.encoded()) or self._read(key).token == entry.token:
                return entry
        raise DataError(f"could not append to the log of {name}: other processes kept writing; try again")

    def _read(self, key: str) -> Entry:
        try:
            return Entry.parse(self._store.get(key))
        except CheckpointError as error:
            raise DataError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{key} in the store of data is damaged: {error}") from error
