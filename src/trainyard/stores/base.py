"""The contract of stores: objects by key, in a place that a URL names.

A store is constructed with its URL (`s3://bucket/runs`), and registered under the URL's scheme. A key is a
relative path with `/` as separator. Each call is atomic (an object exists completely or not at all) and
durable once it returns. No rename, link, lock or append is assumed. Methods may be called from any thread. A
store retries the requests that its service asks to retry. Other failures are raised, with the operation, the
key and the reason: `CheckpointError` when reading, `OSError` when writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Objects that are addressed by key."""

    def put(self, key: str, source: Path) -> None:
        """Store the content of a file as the object `key`, replacing any earlier one; the file stays.

        Raises:
            OSError: It cannot be stored. The earlier object is untouched, or replaced completely.
        """

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object unless it exists; of several concurrent writers, at most one gets True.

        False means only that the object exists: this call may have created it, if it had to be retried
        because an answer was lost. The caller reads the object to see whose it is.

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


class FileStore(Store, Protocol):
    """A store whose objects are files of the local disk; checkpoints are written there first."""

    def move(self, key: str, source: Path) -> None:
        """Store the fsynced file as the object `key`, as `put` does, and take the file away."""

    def folder(self, prefix: str) -> Path:
        """Return the folder with the objects under `prefix`; callers only read it."""

    def staging(self) -> Path:
        """Create and return an empty folder from which `move` is cheap."""

    def sweep(self) -> None:
        """Delete the staging folders of dead processes; only the owner of the run may call this."""
