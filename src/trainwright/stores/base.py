"""The contract of stores: objects by key, under a URL.

A store is constructed with its URL (`s3://bucket/runs`), and registered under the URL's scheme. A key is a
relative path with `/` as separator. Each call is atomic (an object exists completely or not at all) and
durable once it returns. No rename, link, lock or append is assumed. Methods may be called from any thread. A
store retries the requests that its service asks to retry. Other failures are raised, with the operation, the
key and the reason: `CheckpointError` when reading, `OSError` when writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol


class Store(Protocol):
    """Objects that are addressed by key."""

    def put(self, key: str, source: Path) -> None:
        """Store the content of a file as the object `key`, replacing any earlier one; the file is kept.

        Raises:
            OSError: It cannot be stored. The earlier object is either untouched or completely replaced.
        """

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object unless it exists; of several concurrent writers, at most one gets True.

        False means only that the object exists. This call may have created it, if the answer to a first
        request was lost and the request was retried. The caller reads the object to see who created it.

        Raises:
            OSError: It is unknown whether the object was created.
        """

    def get(self, key: str) -> bytes:
        """Return the object's content.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """

    def download(self, key: str, target: Path) -> None:
        """Write the object's content into a new file, without holding all of it in memory.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
            OSError: The file cannot be written.
        """

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components.

        An object is listed as soon as the call that stored it has returned, and no longer once it is deleted.

        Raises:
            CheckpointError: The store cannot be read.
        """

    def delete(self, key: str) -> None:
        """Delete the object; do nothing if it does not exist.

        Raises:
            OSError: It cannot be deleted.
        """


class Version(NamedTuple):
    """The identity of an object's content: a tag that changes with it (such as an ETag), and its size."""

    tag: str
    bytes: int


class DataStore(Store, Protocol):
    """A store that can also hold data: it knows the versions of its objects."""

    def version(self, key: str) -> Version:
        """Return the version of the object.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """


class FileStore(Store, Protocol):
    """A store whose objects are files on the local disk, where every checkpoint is written first."""

    def publish(self, folder: Path, prefix: str, last: str) -> bool:
        """Make the files of a folder that `staging` returned the objects `prefix/NAME`; they were fsynced.

        All are durable once the call returns. The file `last` never becomes an object before the others have,
        durably; as in `put_if_absent`, False means that there is such an object already.

        Raises:
            OSError: Not all are stored. If `last` is, then all others are.
        """

    def folder(self, prefix: str) -> Path:
        """Return the folder with the objects under `prefix`; callers only read it."""

    def staging(self) -> Path:
        """Create and return an empty folder from which `publish` is cheap."""

    def sweep(self) -> None:
        """Delete all staging folders, which processes that died have left.

        Only a process that has the store to itself may call this: no other one may be writing.
        """
