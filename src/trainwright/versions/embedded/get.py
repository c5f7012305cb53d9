"""Write the files of a version: every piece is compared with its hash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.versions.embedded.add import in_order
from trainwright.versions.embedded.pieces import Pieces
from trainwright.versions.embedded.tree import TreeFile


def write_files(files: Sequence[TreeFile], packs: Sequence[str], pieces: Pieces, folder: Path) -> None:
    """Write files into an empty folder.

    Args:
        files: The files.
        packs: The packs with the small ones.
        pieces: The store of their contents.
        folder: The folder.

    Raises:
        DataError: A piece is damaged or missing; it is named.
        OSError: A file cannot be written.
    """
    for parent in sorted({(folder / one.path).parent for one in files}):
        parent.mkdir(parents=True, exist_ok=True)
    for one in files:
        if not one.is_small:
            _write_large(one, pieces, folder)
    _write_small([one for one in files if one.is_small], packs, pieces, folder)


def _write_large(file: TreeFile, pieces: Pieces, folder: Path) -> None:
    """Write a file piece by piece, while threads read the next ones."""
    with open(folder / file.path, "xb") as target:
        for _, data in in_order(lambda sha256: pieces.chunk(sha256, file.path), file.pieces):
            target.write(data)
        if target.tell() != file.bytes:
            raise DataError(f"{file.path}: its pieces are of another size than the file")


def _write_small(files: Sequence[TreeFile], packs: Sequence[str], pieces: Pieces, folder: Path) -> None:
    """Write the files that lie in packs, pack by pack."""
    # The content of a pack that is gone may have been added again: it is in another one then.
    slots = pieces.slots(packs) if files and pieces.stored_packs().issuperset(packs) else pieces.packed
    by_pack: dict[str, list[TreeFile]] = {}
    for one in files:
        if not one.bytes:
            (folder / one.path).touch(exist_ok=False)
        elif (slot := slots.get(one.pieces[0])) is None:
            raise DataError(f"{one.path}: no pack of the version has the chunk {one.pieces[0][:12]}")
        else:
            by_pack.setdefault(slot.pack, []).append(one)

    def write(pack: str) -> None:
        data = memoryview(pieces.pack(pack, by_pack[pack][0].path))
        for one in by_pack[pack]:
            _, start, end = slots[one.pieces[0]]
            if end - start != one.bytes or sha256_bytes(data[start:end]) != one.pieces[0]:
                raise DataError(f"{one.path}: the chunk {one.pieces[0][:12]} is damaged (packs/{pack})")
            (folder / one.path).write_bytes(data[start:end])

    for _ in in_order(write, by_pack):
        pass
