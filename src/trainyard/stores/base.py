"""The contract of stores: objects by key, for checkpoints.

A key is a relative path with `/` as separator. Each call is atomic (an object exists completely or not at
all) and durable once it returns. Methods may be called from any thread. A store retries
the requests that its service asks to retry. Other failures are raised, with the operation and the reason:
`CheckpointError` when reading, `OSError` when writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """A place for the objects of a run, addressed by key."""

    def put(self, key: str, source: Path) -> None:
        """Store the file `source` as the object `key`, replacing any earlier one; the file is moved away."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object unless it exists; of several concurrent writers, exactly one gets True.

        If it raises, the object was not created: the caller may try again.
        """

    def get(self, key: str) -> bytes:
        """Return the object's content.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
        """

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components."""

    def delete(self, key: str) -> None:
        """Delete the object; do nothing if it does not exist."""

    def folder(self, prefix: str) -> Path:
        """Return a local folder with the objects under `prefix`; callers only read it."""

    def staging(self) -> Path:
        """Create and return an empty folder from which `put` is cheap."""

    def sweep(self) -> None:
        """Delete the staging folders of dead processes; only the owner of the run may call this."""
