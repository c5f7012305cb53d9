"""The weights of a model in one file, or a few, also where several processes have saved parts of them."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainwright.digest import (
    BLOCKS,
    ITEM_BYTES,
    WEIGHTS_FILE,
    FileRecord,
    TensorRecord,
    files_of,
    tensor_records,
    write_tensors,
)
from trainwright.records.commit import DEPTH
from trainwright.safe_files import open_regular
from trainwright.types import Block, NamedBuffer

if TYPE_CHECKING:
    from trainwright.types import Array


INDEX = ".safetensors.index.json"  # ends the name of a file that says which tensor is in which file
OF_TORCH = (".pt", ".pth", ".ckpt", ".bin")
ENDINGS = (".safetensors", INDEX, *OF_TORCH)  # of the names of files that stand for weights
_IN_FOLDERS = ("adapter_model.safetensors", "model.safetensors", f"model{INDEX}", "pytorch_model.bin")
_MODEL = "model"
_ROUNDED = 1 << 20  # elements at once
_FLOATS = {"F16": "float16", "F32": "float32", "F64": "float64"}  # that are rounded


class _Stored(NamedTuple):
    """A tensor in a file, or a block of one, as (bytes,) uint8 that are read when they are needed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Array
    block: Block | None


def write_whole(folder: Path, target: Path, *, rounds: bool = False) -> FileRecord:
    """Write the weights of a checkpoint as the file that a single process would have saved.

    Args:
        folder: The folder of the checkpoint, whose files have been verified.
        target: The file to write.
        rounds: Round floats to bfloat16.

    Raises:
        ValueError: The blocks of a tensor do not make up the whole.
        OSError: A file cannot be read or written.
    """
    return _write(_stored_in(folder).values(), target, rounds)


def write_several(folder: Path, target: Path, most: int, *, rounds: bool = False) -> list[FileRecord]:
    """Write the weights of a checkpoint as files of at most so many bytes, and an index of them.

    They have the names and the form that `save_pretrained` of transformers gives them: `model.safetensors`
    where one is enough. A tensor that is larger has a file of its own.

    Args:
        folder: The folder of the checkpoint, whose files have been verified.
        target: The folder to write into.
        most: The bytes of tensors in a file.
        rounds: Round floats to bfloat16.

    Raises:
        ValueError, OSError: As in `write_whole`.
    """
    files: list[list[list[_Stored]]] = [[]]
    left = most
    for some in _stored_in(folder).values():
        size = sum(_bytes(one, rounds) for one in some)
        if size > left and files[-1]:
            files.append([])
            left = most
        files[-1].append(some)
        left -= size
    if len(files) == 1:
        return [_write(files[0], target / f"{_MODEL}.safetensors", rounds)]
    records = [
        _write(some, target / f"{_MODEL}-{i + 1:05d}-of-{len(files):05d}.safetensors", rounds)
        for i, some in enumerate(files)
    ]
    total = sum(_bytes(one, rounds) for file in files for some in file for one in some)
    places = {tensor.name: record.name for record in records for tensor in record.tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (target / f"{_MODEL}{INDEX}").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return records


def is_weights(source: str | Path) -> bool:
    """Return whether a source of initial weights is a file of weights, or a folder of them: no run."""
    path = Path(source)
    return path.name.endswith(ENDINGS) or (path.is_dir() and file_in_folder(path) is not None)


def file_in_folder(folder: Path) -> Path | None:
    """Return the file of weights in a folder of save_pretrained; None of others, such as runs."""
    if (folder / "config.yaml").is_file():
        return None
    return next((folder / name for name in _IN_FOLDERS if (folder / name).is_file()), None)


def files_in_index(index: Path) -> list[Path]:
    """Return the files beside an index that have the tensors that it names.

    Raises:
        ValueError: It is no such index.
        OSError: It cannot be read.
    """
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [index.parent / name for name in sorted({Path(name).name for name in places.values()})]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of safetensors files") from error


def records_of(files: Iterable[Path]) -> list[TensorRecord]:
    """Return the records of the whole tensors in safetensors files.

    Raises:
        ValueError: One is no such file.
        OSError: One cannot be read.
    """
    tensors: list[TensorRecord] = []
    for path in files:
        try:
            some = [*_tensors_in(path, depth=1)]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} is no safetensors file") from error
        tensors += tensor_records(
            [NamedBuffer(one.name, one.dtype, one.shape, one.content.data) for one in some]
        )
    return tensors


def _bytes(one: _Stored, rounds: bool) -> int:
    return (
        one.content.nbytes * 2 // ITEM_BYTES[one.dtype]
        if rounds and one.dtype in _FLOATS
        else one.content.nbytes
    )


def _stored_in(folder: Path) -> dict[str, list[_Stored]]:
    """Return the tensors of a checkpoint by name, each as itself or as blocks."""
    tensors: dict[str, list[_Stored]] = {}
    for path in files_of(folder, WEIGHTS_FILE):
        for one in _tensors_in(path):
            tensors.setdefault(one.name, []).append(one)
    return dict(sorted(tensors.items()))


def _write(tensors: Iterable[list[_Stored]], target: Path, rounds: bool) -> FileRecord:
    """Write tensors to a file, and put those that are in blocks together beside it first."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        whole = [
            _joined(some, Path(scratch) / str(i)) if some[0].block else some[0]
            for i, some in enumerate(tensors)
        ]
        if rounds:
            whole = [_rounded(one, Path(scratch) / f"{i}.rounded") for i, one in enumerate(whole)]
        return write_tensors(
            target, [NamedBuffer(one.name, one.dtype, one.shape, one.content.data) for one in whole]
        )


def _tensors_in(path: Path, depth: int = DEPTH) -> Iterator[_Stored]:
    import numpy as np

    with open_regular(path, depth=depth) as file:
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


def _rounded(one: _Stored, scratch: Path) -> _Stored:
    """Return a tensor of floats rounded to bfloat16, the even one of two that are equally near."""
    import numpy as np

    if one.dtype not in _FLOATS or not one.content.size:
        return one._replace(dtype="BF16") if one.dtype in _FLOATS else one
    given = one.content.view(_FLOATS[one.dtype])
    content = np.memmap(scratch, np.uint16, "w+", 0, given.shape)
    for start in range(0, len(given), _ROUNDED):
        part = given[start : start + _ROUNDED].astype(np.float32)
        bits = part.view(np.uint32)
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        content[start : start + _ROUNDED] = np.where(np.isnan(part), 0x7FC0, upper)
    return one._replace(dtype="BF16", content=content.view(np.uint8))
