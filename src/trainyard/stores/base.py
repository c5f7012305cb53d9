"""The contract of stores: named objects, for checkpoints.

A key is a relative path with `/`. Each call is atomic (an object is there whole, or not at all) and durable when it
returns. Methods may be called from any thread. A store retries what its service asks to retry, and raises
`CheckpointError` for the rest, saying what could not be done and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Objects by key."""

    def put(self, key: str, source: Path) -> None:
        """Makes the file `source` the object `key`; takes the file (it is gone afterwards)."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Creates the object unless it exists; of several writers exactly one gets True."""

    def get(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            CheckpointError: there is no such object.
        """

    def list(self, prefix: str = "") -> Iterator[str]:
        """The keys that begin with `prefix`, sorted."""

    def delete(self, key: str) -> None:
        """Removes the object; one that is not there is no error."""

    def folder(self, prefix: str) -> Path:
        """A local folder that holds the objects under `prefix`; to be read only."""

    def staging(self) -> Path:
        """A new empty folder from which `put` is cheap."""

    def sweep(self) -> None:
        """Removes the staging folders of processes that died; only the owner of the run calls it."""
