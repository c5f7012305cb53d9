"""Hash tensors and files, and write the files that hold tensors.

Bytes are hashed once, while they are written, in chunks that several threads share. A chunk never spans two
tensors, so the same chunk hashes give the hash of each tensor, of the file, and of the whole state:

    chunk    SHA-256 of at most 16 MiB
    tensor   SHA-256 over the chunks' hashes; for a tensor of one chunk, that chunk's hash
    file     SHA-256 over its chunks' hashes; for a file of one chunk, that chunk's hash (as by `sha256sum`)
    digest   SHA-256 over names, dtypes, shapes and hashes of the tensors, in the order of their names

Tensor files are in the safetensors format (https://huggingface.co/docs/safetensors), readable by any of its
readers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from trainwright.safe_open import open_regular, refuse_links

if TYPE_CHECKING:  # bring NumPy, which readers of records do without
    from trainwright.types import Array, NamedBuffer

CHUNK_BYTES = 16 << 20
TEMPORARY_SUFFIX = ".tmp"  # of files that replace another one when they are whole
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
_ITEM_BYTES = {
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


@dataclass(frozen=True)
class FileRecord:
    """The entry of one file in a manifest: `chunks` tile the file; `tensors` are the tensors in it."""

    name: str
    bytes: int
    sha256: str
    chunks: Sequence[Chunk]
    tensors: Sequence[TensorRecord] = ()

    def state(self) -> list[TensorRecord]:
        """Return the tensors under the names that they have in a framework's state: `FILE.TENSOR`.

        FILE is the file's name up to the first dot: `optimizer.safetensors` and `optimizer.1.safetensors`
        hold parts of one state.
        """
        return [tensor._replace(name=f"{self.name.split('.')[0]}.{tensor.name}") for tensor in self.tensors]

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
    """Return the records of tensors in memory."""
    with _Hashing() as pool:
        pending = [(buffer, [pool.hash(part) for part in _parts(buffer.buffer)]) for buffer in buffers]
        return [_tensor_record(buffer, [sha256() for sha256 in hashes]) for buffer, hashes in pending]


def _tensor_record(buffer: NamedBuffer, chunks: Sequence[str]) -> TensorRecord:
    sha256 = chunks[0] if len(chunks) == 1 else sha256_json(chunks)
    return TensorRecord(buffer.name, buffer.dtype, tuple(buffer.shape), sha256)


def _parts(buffer: memoryview | bytes) -> list[memoryview]:
    view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES)]


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
    """Write and fsync tensors as a safetensors file, and hash them on the way. Empty tensors are kept."""
    # Wide items come first, as in the format's own writer, so that each tensor is aligned to its item size.
    ordered = sorted(buffers, key=lambda buffer: (-_ITEM_BYTES.get(buffer.dtype, 1), buffer.name))
    header = _safetensors_header(ordered)
    parts = [_parts(buffer.buffer) for buffer in ordered]
    written = _write_parts(path, [memoryview(header)] + [part for some in parts for part in some])
    hashes = iter([chunk.sha256 for chunk in written[1:]])
    tensors = [
        _tensor_record(buffer, [next(hashes) for _ in some])
        for buffer, some in zip(ordered, parts, strict=True)
    ]
    return _file_record(path.name, written, tensors)


def _safetensors_header(buffers: Sequence[NamedBuffer]) -> bytes:
    entries: dict[str, Any] = {}
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


def _write_parts(path: Path, parts: Sequence[memoryview]) -> list[Chunk]:
    """Write and fsync in this thread while others hash, so that disk and processors work at the same time."""
    with _Hashing() as pool, open(path, "wb", buffering=0) as file:
        hashes = [pool.hash(part) for part in parts]
        for part in parts:
            done = 0
            while done < len(part):
                done += file.write(part[done:]) or 0
        os.fsync(file.fileno())
        return [Chunk(len(part), sha256()) for part, sha256 in zip(parts, hashes, strict=True)]


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


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        os.close(fd)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, and make all their names durable."""
    if folder.is_dir():
        return
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        fsync_folder(path.parent)


def write_atomically(path: Path, data: bytes, *, depth: int = 1, mode: int = 0o666) -> None:
    """Replace a file's content durably: after a crash there is the old or the new content, whole.

    A symbolic link at the path is replaced, too; what it leads to is left alone.

    Args:
        path: The file.
        data: Its new content.
        depth: How many names of the path are inside the run directory; see `open_regular`.
        mode: Its permissions, which the umask narrows further.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    write_together({path: data}, depth=depth, modes={path: mode})


def write_together(
    files: Mapping[Path, bytes], *, depth: int = 1, modes: Mapping[Path, int] | None = None
) -> None:
    """Replace the contents of files of one folder, as `write_atomically` does for one.

    Each is replaced by itself. All are written before the first is fsynced: most file systems write them to
    the disk at once then.
    """
    modes = modes or {}
    asides = {path: path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}") for path in files}
    path = folder = next(iter(files)).parent
    try:
        refuse_links(folder, depth=depth - 1)
        with ExitStack() as opened:
            written = []
            for path, aside in asides.items():
                if (mode := modes.get(path, 0o666)) != 0o666:
                    aside.touch(mode, exist_ok=False)
                file = opened.enter_context(open_regular(aside, "wb"))
                file.write(files[path])
                file.flush()
                written.append(file)
            for file in written:
                os.fsync(file.fileno())
        for path, aside in asides.items():
            aside.replace(path)
    except OSError as error:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # a full disk is reported without one
        raise
    fsync_folder(folder)
