"""Framework state held in NumPy arrays: named tensors, snapshots, and reading them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from trainwright.digest import FileRecord, array_buffer, write_tensors
from trainwright.errors import ModelError
from trainwright.types import Array, DataInfo, NamedBuffer

Files = Mapping[str, Mapping[str, Array]]  # file name -> tensor name -> array


def bytes_array(data: bytes | bytearray | memoryview) -> Array:
    """Return serialized data as a (bytes,) uint8 array, without copying."""
    return np.frombuffer(data, dtype=np.uint8)


def named_buffer(name: str, array: Array) -> NamedBuffer:
    """Return an array as a named tensor; a contiguous array is not copied.

    Raises:
        ModelError: Safetensors has no such dtype.
    """
    buffer = array_buffer(name, array)
    if buffer.dtype == array.dtype.name:
        raise ModelError(
            f"array {name!r} of the model has dtype {array.dtype}, which a checkpoint "
            "cannot hold; convert it, such as to float32"
        )
    return buffer


def buffers(files: Files) -> Iterator[NamedBuffer]:
    """Yield every array as a tensor named FILE.TENSOR, as `Learner.state` does.

    Raises:
        ModelError: Safetensors cannot hold the dtype of an array.
    """
    for file, arrays in files.items():
        for name, array in arrays.items():
            yield named_buffer(f"{Path(file).stem}.{name}", array)


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a safetensors file by name.

    Raises:
        ModelError: The file is not a safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ModelError(f"this is not a safetensors file: {error}") from error


def read_model(path: Path, kind: str) -> bytes:
    """Return the serialized model that a safetensors file holds as its only tensor, `model`.

    Args:
        path: The file.
        kind: Whose model it should be, with its article, for the message: `an XGBoost`.

    Raises:
        ModelError: The file is not a safetensors file, or holds something else.
    """
    weights = read_arrays(path)
    if set(weights) != {"model"}:
        raise ModelError(
            f"these are not the weights of {kind} model: expected one tensor 'model', "
            f"got {', '.join(sorted(weights)[:5])}"
        )
    return weights["model"].tobytes()


def check_features(count: int, info: DataInfo) -> None:
    """Check that a stored model takes as many features as the data have.

    Raises:
        ModelError: It takes another number.
    """
    if count != (expected := int(np.prod(info.input_shape))):
        raise ModelError(
            f"these weights are a model of {count} features, but the data have {expected}; "
            "use weights of a model that was trained on the same columns"
        )


class StoredSnapshot:
    """A `Snapshot` of arrays; the caller must have copied those that training will change."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def write(self, folder: Path) -> list[FileRecord]:
        """Write one safetensors file per entry; see `Snapshot.write`."""
        return [
            write_tensors(folder / file, [named_buffer(name, array) for name, array in arrays.items()])
            for file, arrays in self._files.items()
        ]

    def release(self) -> None:
        """Drop the arrays."""
        self._files = {}
