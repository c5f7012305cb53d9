"""Read the tensors of a snapshot, whoever saved which parts of them."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from trainwright.digest import BLOCKS, files_of
from trainwright.errors import ModelError
from trainwright.frameworks.torch.state.snapshot import Tensors
from trainwright.types import Block

_PLACES = TypeAdapter(dict[str, Block])


def load_tensors(folder: Path, file: str, *, optional: bool = False) -> Tensors:
    """Return the tensors of a file of the state by name.

    Args:
        folder: The folder of the snapshot.
        file: The name of the file, as a single process writes it.
        optional: Return none if no process has saved any.

    Raises:
        FileNotFoundError: No process has.
        ModelError: The blocks of a tensor do not make up the whole.
        SafetensorError: A file is not in the safetensors format.
    """
    tensors: Tensors = {}
    blocks: list[_Block] = []
    paths = files_of(folder, file)
    if not paths and not optional:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / file))
    for path in paths:
        with safe_open(path, "pt") as opened:
            placed = _blocks_of(path, (opened.metadata() or {}).get(BLOCKS, "{}"))
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                if name in placed:
                    shape = opened.get_slice(name).get_shape()
                    blocks.append(_Block(path, name, tuple(shape), placed[name]))
                else:
                    tensors[name] = opened.get_tensor(name)
    _check_whole(blocks)
    for block in blocks:
        with safe_open(block.path, "pt") as opened:
            value = opened.get_tensor(block.name)
        target = tensors.setdefault(block.name, torch.empty(block.place.whole, dtype=value.dtype))
        target[tuple(map(slice, block.place.offset, block.stop))] = value
    return tensors


class _Block(NamedTuple):
    """A block of a tensor in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    place: Block

    @property
    def stop(self) -> tuple[int, ...]:
        """The index after its last element, on each axis."""
        return tuple(first + size for first, size in zip(self.place.offset, self.shape, strict=True))


def _blocks_of(path: Path, text: str) -> dict[str, Block]:
    try:
        return _PLACES.validate_json(text)
    except ValidationError as error:
        raise ModelError(f"{path} does not say where the blocks of its tensors lie") from error


def _check_whole(blocks: Sequence[_Block]) -> None:
    """Check that the blocks lie in their tensors, and have as many elements as these.

    Raises:
        ModelError: They do not.
    """
    left: dict[str, int] = {}
    for path, name, shape, place in blocks:
        is_inside = len(shape) == len(place.offset) == len(place.whole) and all(
            first >= 0 and first + size <= most
            for first, size, most in zip(place.offset, shape, place.whole, strict=True)
        )
        if not is_inside:
            raise ModelError(f"a block of {name} in {path} does not lie in its tensor")
        left[name] = left.get(name, math.prod(place.whole)) - math.prod(shape)
    if parted := [name for name, count in left.items() if count]:
        raise ModelError(f"the blocks of {parted[0]} beside {blocks[0].path} do not make up the tensor")
