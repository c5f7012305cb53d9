"""Write the files of a version: every chunk is compared with its hash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.versions.embedded.chunks import Chunks
from trainwright.versions.embedded.threads import in_order
from trainwright.versions.embedded.tree import TreeFile


def write_files(files: Sequence[TreeFile], packs: Sequence[str], chunks: Chunks, folder: Path) -> None:
    """Write files into an empty folder.

    Args:
        files: The files.
        packs: The packs with the small ones.
        chunks: The store of their contents.
        folder: The folder.

    Raises:
        DataError: A chunk is damaged or missing; it is named.
        OSError: A file cannot be written.
    """
    for parent in sorted({(folder / one.path).parent for one in files}):
        parent.mkdir(parents=True, exist_ok=True)
    for one in files:
        if not one.is_small:
            _write_large(one, chunks, folder)
    _write_small([one for one in files if one.is_small], packs, chunks, folder)


def _write_large(file: TreeFile, chunks: Chunks, folder: Path) -> None:
    """Write a file chunk by chunk, while threads read the next ones."""
    with open(folder / file.path, "xb") as target:
        for _, data in in_order(lambda sha256: chunks.chunk(sha256, file.path), file.chunks):
            target.write(data)
        if target.tell() != file.bytes:
            raise DataError(f"{file.path}: its chunks are of another size than the file")


def _write_small(files: Sequence[TreeFile], packs: Sequence[str], chunks: Chunks, folder: Path) -> None:
    """Write the files that lie in packs, pack by pack."""
    # The content of a pack that is gone may have been added again: it is in another one then.
    slots = chunks.slots(packs) if files and chunks.stored_packs().issuperset(packs) else chunks.packed
    by_pack: dict[str, list[TreeFile]] = {}
    for one in files:
        if not one.bytes:
            (folder / one.path).touch(exist_ok=False)
        elif (slot := slots.get(one.chunks[0])) is None:
            raise DataError(f"{one.path}: no pack of the version has the chunk {one.chunks[0][:12]}")
        else:
            by_pack.setdefault(slot.pack, []).append(one)

    def write(pack: str) -> None:
        data = memoryview(chunks.pack(pack, by_pack[pack][0].path))
        for one in by_pack[pack]:
            _, start, end = slots[one.chunks[0]]
            if end - start != one.bytes or sha256_bytes(data[start:end]) != one.chunks[0]:
                raise DataError(f"{one.path}: the chunk {one.chunks[0][:12]} is damaged (packs/{pack})")
            (folder / one.path).write_bytes(data[start:end])

    for _ in in_order(write, by_pack):
        pass
