"""State that lies in NumPy arrays: as named tensors, copied aside, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from trainyard.digest import FileRecord, array_buffer, write_tensors
from trainyard.errors import ModelError
from trainyard.types import Array, NamedBuffer

Files = Mapping[str, Mapping[str, Array]]  # file name -> tensor name -> array


def bytes_array(data: bytes | bytearray | memoryview) -> Array:
    """(bytes,) uint8: a library's own serialisation as a tensor; not copied."""
    return np.frombuffer(data, dtype=np.uint8)


def named_buffer(name: str, array: Array) -> NamedBuffer:
    """An array's bytes under a name; a contiguous array is not copied.

    Raises:
        ModelError: a checkpoint cannot hold its dtype.
    """
    buffer = array_buffer(name, array)
    if buffer.dtype == array.dtype.name:
        raise ModelError(f"array {name!r} of the model is of {array.dtype}, which a checkpoint cannot hold")
    return buffer


def buffers(files: Files) -> Iterator[NamedBuffer]:
    """What `Framework.state` yields: every array under FILE.TENSOR."""
    for file, arrays in files.items():
        for name, array in arrays.items():
            yield named_buffer(f"{Path(file).stem}.{name}", array)


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a safetensors file.

    Raises:
        ModelError: it is none.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ModelError(f"this is no safetensors file: {error}") from error


class StoredSnapshot:
    """Arrays that training does not touch any more: the caller has copied what it goes on changing."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def write(self, folder: Path) -> list[FileRecord]:
        return [
            write_tensors(folder / file, [named_buffer(name, array) for name, array in arrays.items()])
            for file, arrays in self._files.items()
        ]

    def release(self) -> None:
        self._files = {}
