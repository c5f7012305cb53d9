"""Hash tensors and files, and write the files that hold tensors.

Bytes are hashed once, while they are written, in chunks that several threads share. A chunk never spans two
tensors, so the same chunk hashes give the hash of each tensor, of the file, and of the whole state:

    chunk    SHA-256 of at most 1 MiB
    tensor   SHA-256 over the chunks' hashes; for a tensor of one chunk, that chunk's hash
    file     SHA-256 over its chunks' hashes; for a file of one chunk, that chunk's hash (as by `sha256sum`)
    digest   SHA-256 over names, dtypes, shapes and hashes of the tensors, in the order of their names

Several processes may own blocks of one tensor. Its chunks are those of the whole tensor, in row-major order:
each process hashes the chunks that lie in its blocks, and hands out the bytes of those that it shares with
others. So no hash depends on how a tensor was divided, but for those of the files.

Tensor files are in the safetensors format (https://huggingface.co/docs/safetensors), readable by any of its
readers. The header of a file with blocks has their places as JSON, under `blocks` in `__metadata__`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from trainwright.safe_files import open_regular

if TYPE_CHECKING:  # bring NumPy, which readers of records do without
    from trainwright.types import Array, NamedBuffer

CHUNK_BYTES = 1 << 20  # part of what a digest means
_WRITE_BYTES = 16 << 20  # in one call of the system
# The file that holds the model's weights, under their own names. A state names a tensor FILE.TENSOR, so the
# tensors that a run's digest covers are named `weights.*`.
WEIGHTS_FILE = "weights.safetensors"
WEIGHTS = "weights."
BLOCKS = "blocks"  # the key in the metadata of a file of tensors
_THREADS = min(4, os.cpu_count() or 1)
_SMALL_BYTES = 1 << 16  # up to here, to ask a thread for a hash takes longer than to compute it
_DTYPES = {  # NumPy name -> safetensors name
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
ITEM_BYTES = {  # of an element; 1 for all others
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}


class Chunk(NamedTuple):
    """`bytes` bytes of a file, and their SHA-256."""

    bytes: int
    sha256: str


class TensorRecord(NamedTuple):
    """The identity of a tensor: name, dtype, shape and hash."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


class PartHashes(NamedTuple):
    """The hashes of a block that a process owns, and its bytes in shared chunks.

    Attributes:
        name: The name of the tensor.
        dtype: Its dtype.
        shape: The shape of the block.
        offset: The index of its first element.
        whole: The shape of the tensor.
        chunks: The SHA-256 of the chunks of the tensor that lie in the block, by their numbers.
        pieces: The bytes of the chunks that do not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]
    chunks: Mapping[int, str]
    pieces: Mapping[int, bytes]


@dataclass(frozen=True)
class FileRecord:
    """The entry of one file in a manifest.

    `chunks` tile the file. `tensors` are those in it; of those that are divided among several files, one of
    these has the record.
    """

    name: str
    bytes: int
    sha256: str
    chunks: Sequence[Chunk]
    tensors: Sequence[TensorRecord] = ()

    @property
    def stem(self) -> str:
        """The file's name up to the first dot.

        `optimizer.safetensors` and `optimizer.1.safetensors` hold parts of one state.
        """
        return self.name.split(".")[0]

    def state(self) -> list[TensorRecord]:
        """Return the tensors under the names that they have in a framework's state: `STEM.TENSOR`."""
        return [tensor._replace(name=f"{self.stem}.{tensor.name}") for tensor in self.tensors]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "chunks": [list(chunk) for chunk in self.chunks],
            "tensors": [[*tensor[:2], list(tensor.shape), tensor.sha256] for tensor in self.tensors],
        }

    @staticmethod
    def from_json(data: object) -> FileRecord:
        """Read what `to_json` returned.

        Raises:
            ValueError: It is something else.
        """
        return _FILE_RECORD.validate_python(data)


_FILE_RECORD = TypeAdapter(FileRecord)


def files_of(folder: Path, file: str) -> list[Path]:
    """Return the files with the tensors of a file of the state: itself, and those of other processes."""
    path = folder / file
    others = sorted(folder.glob(f"{path.stem}.*{path.suffix}"))
    return [path, *others] if path.exists() else others


def sha256_bytes(data: bytes | memoryview) -> str:
    """Return the SHA-256 (hex) of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 (hex) of a value's canonical JSON: sorted keys, no white space."""
    return sha256_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def sha256_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's bytes, as `sha256sum` prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(tensors: Iterable[TensorRecord]) -> str:
    """Return the digest of tensors; equal if and only if names, dtypes, shapes and bytes are equal."""
    return sha256_json(sorted(list(tensor) for tensor in tensors))


def array_buffer(name: str, array: Array) -> NamedBuffer:
    """Return an array's bytes under a name; a contiguous array is not copied.

    A dtype that the file format does not have keeps its NumPy name.
    """
    import numpy as np

    from trainwright.types import NamedBuffer

    flat = np.ascontiguousarray(array).reshape(-1)
    return NamedBuffer(
        name, _DTYPES.get(array.dtype.name, array.dtype.name), array.shape, flat.view(np.uint8).data
    )


class _Hashing:
    """Compute hashes in threads; small ones, for which that takes longer, in the thread that asks.

    The threads, and what they need, are made when the first large one is begun.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> _Hashing:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def begin(self, compute: Callable[[], str], size: int) -> Callable[[], str]:
        """Begin to compute the hash of `size` bytes; return what waits for it."""
        if size <= _SMALL_BYTES:
            sha256 = compute()
            return lambda: sha256
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS)
        return self._pool.submit(compute).result

    def hash(self, part: memoryview) -> Callable[[], str]:
        """Begin to compute the SHA-256 of bytes; return what waits for it."""
        return self.begin(partial(sha256_bytes, part), len(part))


def tensor_records(buffers: Iterable[NamedBuffer]) -> list[TensorRecord]:
    """Return the records of whole tensors in memory."""
    records, parts = hashed(buffers)
    assert not parts, "blocks have no records of their own"
    return records


def hashed(buffers: Iterable[NamedBuffer]) -> tuple[list[TensorRecord], list[PartHashes]]:
    """Return the records of the whole tensors in memory, and the hashes of the blocks."""
    with _Hashing() as pool:
        pending = [
            (buffer, pieces, [pool.hash(piece.bytes) for piece in pieces])
            for buffer, pieces in ((one, _pieces(one)) for one in buffers)
        ]
        return _by_kind(
            (buffer, pieces, [sha256() for sha256 in hashes]) for buffer, pieces, hashes in pending
        )


def join_parts(parts: Iterable[PartHashes]) -> list[TensorRecord]:
    """Return the records of the tensors that blocks make up.

    Args:
        parts: The blocks of all processes.

    Raises:
        ValueError: The blocks of a tensor do not cover it, or overlap.
    """
    by_name: dict[str, list[PartHashes]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    return [_joined(some) for some in by_name.values()]


def _joined(parts: Sequence[PartHashes]) -> TensorRecord:
    import numpy as np

    from trainwright.digest.parts import Runs
    from trainwright.types import Block

    name, dtype, whole = parts[0].name, parts[0].dtype, parts[0].whole
    if any((part.dtype, part.whole) != (dtype, whole) for part in parts):
        raise ValueError(f"the blocks of {name} are of different tensors")
    runs = [Runs.of(part.shape, Block(part.offset, part.whole), ITEM_BYTES.get(dtype, 1)) for part in parts]
    wrong = ValueError(f"the blocks of {name} do not cover it, each element once")
    chunks: dict[int, str] = {}
    shared: dict[int, tuple[Array, Array]] = {}  # bytes, and whether they are there
    for part, own in zip(parts, runs, strict=True):
        if chunks.keys() & part.chunks.keys():
            raise wrong
        chunks |= part.chunks
        for chunk, piece in part.pieces.items():
            size = own.chunk_size(chunk, CHUNK_BYTES)
            content, known = shared.setdefault(chunk, (np.empty(size, np.uint8), np.zeros(size, np.bool_)))
            positions = own.positions(chunk, CHUNK_BYTES)
            if len(positions) != len(piece) or known[positions].any():
                raise wrong
            content[positions], known[positions] = np.frombuffer(piece, np.uint8), True
    for chunk, (content, known) in shared.items():
        if chunk in chunks or not known.all():
            raise wrong
        chunks[chunk] = sha256_bytes(content.data)
    if set(chunks) != set(range(-(-runs[0].size // CHUNK_BYTES))):
        raise wrong
    return TensorRecord(name, dtype, whole, _sha256_of([chunks[chunk] for chunk in sorted(chunks)]))


class _Piece(NamedTuple):
    """The bytes of a tensor or block that lie in one chunk of the tensor; `is_whole`: all of that chunk."""

    chunk: int
    bytes: memoryview
    is_whole: bool


def _pieces(buffer: NamedBuffer) -> list[_Piece]:
    view = memoryview(buffer.buffer).cast("B") if buffer.buffer.nbytes else memoryview(b"")
    if buffer.block is None:
        starts = range(0, len(view), CHUNK_BYTES)
        return [_Piece(i, view[at : at + CHUNK_BYTES], True) for i, at in enumerate(starts)]
    from trainwright.digest.parts import Runs

    runs = Runs.of(buffer.shape, buffer.block, ITEM_BYTES.get(buffer.dtype, 1))
    return [
        _Piece(chunk, view[start:stop], stop - start == runs.chunk_size(chunk, CHUNK_BYTES))
        for chunk, start, stop in runs.pieces(CHUNK_BYTES)
    ]


def _by_kind(
    buffers: Iterable[tuple[NamedBuffer, Sequence[_Piece], Sequence[str]]],
) -> tuple[list[TensorRecord], list[PartHashes]]:
    """Return the records of whole tensors, and the hashes of blocks, given those of their pieces."""
    records, parts = [], []
    for buffer, pieces, hashes in buffers:
        name, dtype, shape, _, block = buffer
        if block is None:
            records.append(TensorRecord(name, dtype, tuple(shape), _sha256_of(hashes)))
            continue
        pairs = list(zip(pieces, hashes, strict=True))
        chunks = {piece.chunk: sha256 for piece, sha256 in pairs if piece.is_whole}
        shared = {piece.chunk: bytes(piece.bytes) for piece in pieces if not piece.is_whole}
        parts.append(PartHashes(name, dtype, tuple(shape), block.offset, block.whole, chunks, shared))
    return records, parts


def _sha256_of(chunks: Sequence[str]) -> str:
    """Return the hash of a tensor from those of its chunks."""
    return chunks[0] if len(chunks) == 1 else sha256_json(list(chunks))


def _file_record(name: str, chunks: Sequence[Chunk], tensors: Sequence[TensorRecord]) -> FileRecord:
    sha256 = chunks[0].sha256 if len(chunks) == 1 else sha256_json([list(chunk) for chunk in chunks])
    return FileRecord(name, sum(chunk.bytes for chunk in chunks), sha256, chunks, tensors)


def write_file(path: Path, data: bytes) -> FileRecord:
    """Write, hash and fsync a small file."""
    with open_regular(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return _file_record(path.name, [Chunk(len(data), sha256_bytes(data))], [])


def write_tensors(path: Path, buffers: Iterable[NamedBuffer]) -> FileRecord:
    """Write and fsync whole tensors as a safetensors file, and hash them on the way; see `write_parts`."""
    record, parts = write_parts(path, buffers)
    assert not parts, "blocks have no records of their own"
    return record


def write_parts(path: Path, buffers: Iterable[NamedBuffer]) -> tuple[FileRecord, list[PartHashes]]:
    """Write and fsync tensors, or blocks of such, as a safetensors file, and hash them on the way.

    Empty tensors are kept.

    Returns:
        The record of the file, with those of the whole tensors in it; and the hashes of the blocks.
    """
    # Wide items come first, as in the format's own writer, so that each tensor is aligned to its item size.
    ordered = sorted(buffers, key=lambda buffer: (-ITEM_BYTES.get(buffer.dtype, 1), buffer.name))
    header = _safetensors_header(ordered)
    pieces = [_pieces(buffer) for buffer in ordered]
    contents = [memoryview(buffer.buffer).cast("B") for buffer in ordered if buffer.buffer.nbytes]
    pieces_of_all = [one.bytes for some in pieces for one in some]
    written = _written(path, [memoryview(header), *contents], [memoryview(header), *pieces_of_all])
    hashes = iter([chunk.sha256 for chunk in written[1:]])
    tensors, parts = _by_kind(
        (buffer, some, [next(hashes) for _ in some]) for buffer, some in zip(ordered, pieces, strict=True)
    )
    return _file_record(path.name, written, tensors), parts


def _safetensors_header(buffers: Sequence[NamedBuffer]) -> bytes:
    entries: dict[str, Any] = {}
    blocks = {one.name: one.block._asdict() for one in buffers if one.block is not None}
    if blocks:
        entries["__metadata__"] = {BLOCKS: json.dumps(blocks, separators=(",", ":"))}
    offset = 0
    for buffer in buffers:
        end = offset + buffer.buffer.nbytes
        entries[buffer.name] = {
            "dtype": buffer.dtype,
            "shape": list(buffer.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _written(path: Path, contents: Sequence[memoryview], pieces: Sequence[memoryview]) -> list[Chunk]:
    """Write and fsync contents, while other threads hash the pieces that these consist of."""
    with _Hashing() as pool, open(path, "wb", buffering=0) as file:
        hashes = [pool.hash(piece) for piece in pieces]
        for content in contents:
            for start in range(0, len(content), _WRITE_BYTES):
                part = content[start : start + _WRITE_BYTES]
                done = 0
                while done < len(part):
                    done += file.write(part[done:]) or 0
        os.fsync(file.fileno())
        return [Chunk(len(piece), sha256()) for piece, sha256 in zip(pieces, hashes, strict=True)]


def damage(path: Path, record: FileRecord, *, depth: int = 1) -> str | None:
    """Return what is wrong with a file on disk, or None if it holds the recorded bytes exactly.

    Args:
        path: The file.
        record: What was written.
        depth: How many names of the path are inside the run directory; see `open_regular`.
    """
    try:
        return _damage(path, record, depth)
    except OSError as error:
        return f"{record.name}: {error.strerror}"


def _damage(path: Path, record: FileRecord, depth: int) -> str | None:
    with open_regular(path, depth=depth) as file, _Hashing() as pool:
        fd, offset, pending = file.fileno(), 0, []
        size = os.fstat(fd).st_size
        if size != record.bytes:
            return f"{record.name}: {size} bytes instead of {record.bytes}"
        for chunk in record.chunks:
            read = partial(_read_sha256, fd, offset, chunk.bytes)
            pending.append((offset, chunk, pool.begin(read, chunk.bytes)))
            offset += chunk.bytes
        for start, chunk, sha256 in pending:
            if sha256() != chunk.sha256:
                return (
                    f"{record.name}: bytes {start} to {start + chunk.bytes} are not those that were written"
                )
    return None


def _read_sha256(fd: int, offset: int, size: int) -> str:
    return sha256_bytes(os.pread(fd, size, offset))
