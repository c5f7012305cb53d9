"""The weights of a model in one file, also where several processes have saved parts of them."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainwright.digest import BLOCKS, ITEM_BYTES, WEIGHTS_FILE, FileRecord, files_of, write_tensors
from trainwright.records.commit import DEPTH
from trainwright.safe_files import open_regular
from trainwright.types import Block, NamedBuffer

if TYPE_CHECKING:
    from trainwright.types import Array


class _Stored(NamedTuple):
    """A tensor in a file, or a block of one, as (bytes,) uint8 that are read when they are needed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Array
    block: Block | None


def write_whole(folder: Path, target: Path) -> FileRecord:
    """Write the weights of a checkpoint as the file that a single process would have saved.

    Args:
        folder: The folder of the checkpoint, whose files have been verified.
        target: The file to write.

    Raises:
        ValueError: The blocks of a tensor do not make up the whole.
        OSError: A file cannot be read or written.
    """
    stored = [one for path in files_of(folder, WEIGHTS_FILE) for one in _tensors_in(path)]
    whole = [one for one in stored if one.block is None]
    blocks: dict[str, list[_Stored]] = {}
    for one in stored:
        if one.block is not None:
            blocks.setdefault(one.name, []).append(one)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        joined = [_joined(some, Path(scratch) / str(i)) for i, some in enumerate(blocks.values())]
        return write_tensors(
            target,
            [NamedBuffer(one.name, one.dtype, one.shape, one.content.data) for one in (*whole, *joined)],
        )


def _tensors_in(path: Path) -> Iterator[_Stored]:
    import numpy as np

    with open_regular(path, depth=DEPTH) as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    blocks = json.loads(header.pop("__metadata__", {}).get(BLOCKS, "{}"))
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        content: Array = np.zeros(0, np.uint8)
        if end > begin:
            content = np.memmap(path, np.uint8, "r", 8 + size + begin, (end - begin,))
        place = blocks.get(name)
        block = None if place is None else Block(tuple(place["offset"]), tuple(place["whole"]))
        yield _Stored(name, entry["dtype"], tuple(entry["shape"]), content, block)


def _joined(blocks: list[_Stored], scratch: Path) -> _Stored:
    """Return the tensor that blocks make up, whose bytes are in a file of its own."""
    import numpy as np

    name, dtype, _, _, first = blocks[0]
    assert first is not None
    item = ITEM_BYTES.get(dtype, 1)
    if sum(math.prod(one.shape) for one in blocks) != math.prod(first.whole):
        raise ValueError(f"the blocks of {name} do not make up the tensor")
    content = np.memmap(scratch, np.uint8, "w+", 0, (math.prod(first.whole) * item,))
    whole: Array = np.ndarray(first.whole, np.dtype((np.void, item)), content.data)
    for _, _, shape, part, place in blocks:
        assert place is not None
        spans = tuple(slice(start, start + count) for start, count in zip(place.offset, shape, strict=True))
        whole[spans] = np.ndarray(shape, whole.dtype, part.data)
    return _Stored(name, dtype, first.whole, content, None)
