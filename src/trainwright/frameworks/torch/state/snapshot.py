"""Copies of tensors on the host, which are written to files while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from trainwright.digest import FileRecord, PartHashes, write_parts
from trainwright.errors import ModelError
from trainwright.frameworks.base import WEIGHTS_FILE
from trainwright.types import Block, NamedBuffer

OPTIMIZER_FILE = "optimizer.safetensors"
_MUCH, _PAGE = 16 << 20, 4096  # bytes
Tensors = dict[str, torch.Tensor]
Files = dict[str, Tensors]  # tensors by file and by name


class Owned(NamedTuple):
    """The parts of the state that a process owns.

    Attributes:
        files: The tensors, and blocks of tensors, by the file that they are saved in and by name.
        blocks: The places of the blocks, by file and by name.
    """

    files: Files
    blocks: Mapping[str, Mapping[str, Block]] = MappingProxyType({})


def owner_of(file: str, name: str) -> str:
    """Return the name of the parameter or buffer that a tensor of the state belongs to.

    Outside of the file of the weights, it is `PARAMETER.KEY`, `trained/PARAMETER` or `buffers/NAME`.
    """
    if file == WEIGHTS_FILE:
        return name
    return name.partition("/")[2] if "/" in name else name.rpartition(".")[0]


DTYPES = {  # and what safetensors calls them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def has_dtype(tensor: torch.Tensor) -> bool:
    """Return whether a checkpoint can hold a tensor of this dtype."""
    return tensor.dtype in DTYPES


def check_dtype(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor of a dtype that no checkpoint can hold, such as a complex one.

    Raises:
        ModelError: It is of such a dtype.
    """
    if not has_dtype(tensor):
        raise ModelError(
            f"tensor {name!r} of the model is of {tensor.dtype}, which a checkpoint cannot "
            "hold; convert it, such as to float32"
        )


def named_buffer(name: str, tensor: torch.Tensor) -> NamedBuffer:
    """Return a tensor's bytes on the host; a contiguous tensor that is there already is not copied."""
    check_dtype(name, tensor)
    if tensor.layout != torch.strided:
        raise ModelError(
            f"tensor {name!r} of the model is sparse, which a checkpoint cannot hold; keep a dense one"
        )
    host = tensor.detach()
    if host.device.type != "cpu" or host.is_neg() or not host.is_contiguous():
        host = host.to("cpu").resolve_neg().contiguous()
    data = host.reshape(-1).view(torch.uint8).numpy().data  # (bytes,)
    return NamedBuffer(name, DTYPES[tensor.dtype], tuple(tensor.shape), memoryview(data))


class Written(NamedTuple):
    """The files of a snapshot that a process has written, and what else its manifest needs.

    Attributes:
        files: The files.
        parts: The hashes of the blocks in each.
        names: The names of the tensors that this process has of the state, as `FileRecord.state` makes them.
    """

    files: list[FileRecord]
    parts: list[list[PartHashes]]
    names: set[str]


class TorchSnapshot:
    """Parts of the state on the host, which training does not touch.

    `release` makes their memory spare again.

    Args:
        owned: The copies.
        spare: Where their memory goes.
        names: The names of all tensors that this process has; see `Written`.
    """

    def __init__(self, owned: Owned, spare: list[Files], names: Collection[str] = ()) -> None:
        self._files, self._blocks = owned
        self._spare = spare
        self._names = names

    def write(self, folder: Path) -> list[FileRecord]:
        """Write the files of a process that owns no blocks; see `frameworks.base.Snapshot`."""
        files, parts, _ = self.write_parts(folder)
        assert not any(parts), "the process that gathers the hashes of all blocks makes the records"
        return files

    def write_parts(self, folder: Path) -> Written:
        """Write the files, hashing them on the way."""
        written = Written([], [], set(self._names))
        for file, tensors in self._files.items():
            blocks = self._blocks.get(file, {})
            record, parts = write_parts(
                folder / file,
                [
                    named_buffer(name, tensor)._replace(block=blocks.get(name))
                    for name, tensor in tensors.items()
                ],
            )
            written.files.append(record)
            written.parts.append(parts)
        return written

    def release(self) -> None:
        """Give the memory to a later snapshot."""
        if self._files:
            self._spare.append(self._files)
            self._files = {}


class SnapshotMemory:
    """Memory on the host, which later snapshots take over from those that are released."""

    def __init__(self) -> None:
        self._spare: dict[bool, list[Files]] = {True: [], False: []}  # by `weights_only`
        self._reserving: threading.Thread | None = None

    def copy(self, owned: Owned, names: Collection[str] = (), *, weights_only: bool) -> TorchSnapshot:
        """Copy tensors to the host, into a released snapshot's memory if there is one: 5 times faster.

        Args:
            owned: The live tensors.
            names: See `TorchSnapshot`.
            weights_only: Whether the optimizer's are left out.
        """
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None
        spare = self._spare[weights_only]
        buffers = spare.pop() if spare else {}
        copied = {
            file: {name: _copy(tensor, buffers.get(file, {}).get(name)) for name, tensor in tensors.items()}
            for file, tensors in owned.files.items()
        }
        if any(tensor.is_cuda for tensors in owned.files.values() for tensor in tensors.values()):
            torch.cuda.synchronize()
        return TorchSnapshot(Owned(copied, owned.blocks), spare, names)

    def reserve(self, live: Mapping[bool, Files]) -> None:
        """Allocate the memory of the first snapshots in another thread, if it is much.

        Pages that the system has not handed out yet make a copy 10 times slower.

        Args:
            live: The tensors of these snapshots, by `weights_only`.
        """
        tensors = [one for files in live.values() for file in files.values() for one in file.values()]
        if sum(one.nbytes for one in tensors) < _MUCH:
            return

        def allocate() -> None:
            for weights_only, files in live.items():
                self._spare[weights_only].append(
                    {
                        file: {name: _touched(tensor) for name, tensor in tensors.items()}
                        for file, tensors in files.items()
                    }
                )

        self._reserving = threading.Thread(target=allocate, name="trainwright-reserve", daemon=True)
        self._reserving.start()


def _copy(tensor: torch.Tensor, spare: torch.Tensor | None) -> torch.Tensor:
    """Copy a tensor to the host, into spare memory if that has its shape and dtype."""
    if spare is None or spare.shape != tensor.shape or spare.dtype != tensor.dtype:
        spare = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return spare.copy_(tensor, non_blocking=True)


def _touched(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory on the host for a tensor, with all its pages there."""
    memory = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    if memory.nbytes:
        content = torch.empty(0, dtype=torch.uint8).set_(memory.untyped_storage())
        content.numpy()[::_PAGE] = 0  # not by torch, which would use as many threads as the step
    return memory
