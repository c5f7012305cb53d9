"""The content of versions: chunks of files by their SHA-256, in objects of their own or in packs.

    trees/<sha256>    the files of a version, compressed
    chunks/<sha256>   a chunk of a file, of 4 MiB at most
    packs/<sha256>    the contents of small files, one after the other
    index/<sha256>    the hashes and sizes of the chunks in the pack of this name

All are named by their content, so that two writers of one object write the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from trainwright.digest import sha256_bytes
from trainwright.errors import CheckpointError, DataError
from trainwright.stores.base import Store
from trainwright.versions.embedded.tree import TreeFile, decode

PACK_BYTES = 16 << 20
_THREADS = 8  # requests at a time
TREES, CHUNKS, PACKS, INDEX = "trees/", "chunks/", "packs/", "index/"


class Slot(NamedTuple):
    """The place of a chunk in a pack."""

    pack: str
    start: int
    end: int


class Chunks:
    """The objects of a store that hold the content of versions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def stored(self) -> set[str]:
        """The chunks that have an object of their own; read once, and kept with those that are put."""
        return {key.rpartition("/")[2] for key in self._store.list(CHUNKS)}

    @cached_property
    def packed(self) -> dict[str, Slot]:
        """The chunks in packs; read once, and kept with those that are put."""
        packs = self.stored_packs()
        indexes = [key.removeprefix(INDEX) for key in self._store.list(INDEX)]
        return self.slots(pack for pack in indexes if pack in packs)

    def stored_packs(self) -> set[str]:
        """Return the names of the packs that are in the store."""
        return {key.removeprefix(PACKS) for key in self._store.list(PACKS)}

    def slots(self, packs: Iterable[str]) -> dict[str, Slot]:
        """Return the places of the chunks in some packs.

        Raises:
            DataError: An index is damaged or missing.
        """
        found: dict[str, Slot] = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for some in pool.map(self._slots, packs):
                found |= some
        return found

    def _slots(self, pack: str) -> dict[str, Slot]:
        """Return the places of the chunks in a pack."""
        try:
            chunks: list[tuple[str, int]] = json.loads(self._store.get(f"{INDEX}{pack}"))
            if not all(type(sha256) is str and type(size) is int and size >= 0 for sha256, size in chunks):
                raise TypeError("a chunk needs a hash and a size")
            ends = accumulate(size for _, size in chunks)
            return {
                sha256: Slot(pack, end - size, end) for (sha256, size), end in zip(chunks, ends, strict=True)
            }
        except (CheckpointError, ValueError, TypeError, RecursionError) as error:
            raise DataError(f"the index of pack {pack[:12]} is damaged or missing: {error}") from error

    def put_chunk(self, sha256: str, data: bytes) -> None:
        """Store a chunk as an object of its own, unless it is there."""
        if sha256 not in self.stored:
            self._store.put_if_absent(chunk_key(sha256), data)
            self.stored.add(sha256)

    def put_pack(self, chunks: dict[str, bytes]) -> None:
        """Store chunks together; the index comes last, and without it the pack does not count."""
        data = b"".join(chunks.values())
        pack = sha256_bytes(data)
        self._store.put_if_absent(f"{PACKS}{pack}", data)
        sizes = [[sha256, len(chunk)] for sha256, chunk in chunks.items()]
        self._store.put_if_absent(f"{INDEX}{pack}", json.dumps(sizes, separators=(",", ":")).encode())
        start = 0
        for sha256, chunk in chunks.items():
            self.packed[sha256] = Slot(pack, start, start := start + len(chunk))

    def put_tree(self, content: str, stored: bytes) -> None:
        """Store the list of a version's files."""
        self._store.put_if_absent(f"{TREES}{content}", stored)

    def tree(self, content: str) -> list[TreeFile]:
        """Return the files of a version.

        Raises:
            DataError: The list is damaged or missing.
        """
        try:
            stored = self._store.get(f"{TREES}{content}")
        except CheckpointError as error:
            raise DataError(f"the list of files of the version is missing: {error}") from error
        return decode(content, stored)

    def chunk(self, sha256: str, of: str) -> bytes:
        """Return a chunk that has an object of its own.

        Args:
            sha256: Its hash.
            of: The file that it is of, for messages.

        Raises:
            DataError: It is damaged or missing.
        """
        data = self._get(chunk_key(sha256), of, "a chunk")
        if sha256_bytes(data) != sha256:
            raise DataError(f"{of}: the chunk {sha256[:12]} is damaged ({chunk_key(sha256)})")
        return data

    def pack(self, pack: str, of: str) -> bytes:
        """Return a pack, whose chunks the caller compares with their hashes; `of` as in `chunk`.

        Raises:
            DataError: It is missing.
        """
        return self._get(f"{PACKS}{pack}", of, "its pack")

    def _get(self, key: str, of: str, what: str) -> bytes:
        try:
            return self._store.get(key)
        except CheckpointError as error:
            raise DataError(f"{of}: {what} is missing: {error}") from error


def chunk_key(sha256: str) -> str:
    """Return the key of a chunk that has an object of its own."""
    return f"{CHUNKS}{sha256[:2]}/{sha256}"
