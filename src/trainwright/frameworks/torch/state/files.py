"""Read the tensors of a snapshot, whoever saved which parts of them."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from operator import add, lt, sub
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from trainwright.digest import BLOCKS, files_of
from trainwright.errors import ModelError
from trainwright.frameworks.torch.state.layout import block_of, is_divided, local, with_block
from trainwright.frameworks.torch.state.snapshot import DTYPES, Tensors
from trainwright.types import Block

_PLACES = TypeAdapter(dict[str, Block])
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def load_tensors(
    folder: Path,
    file: str,
    like: Callable[[str], torch.Tensor | None] = lambda _: None,
    *,
    optional: bool = False,
    skip: Callable[[str], bool] = lambda _: False,
) -> Tensors:
    """Return the tensors of a file of the state by name.

    Args:
        folder: The folder of the snapshot.
        file: The name of the file, as a single process writes it.
        like: Returns the tensor whose layout a saved one gets, if it has its shape. If that is a `DTensor`,
            the block of this process alone is read.
        optional: Return none if no process has saved any.
        skip: Whether a tensor of this name is not read: it belongs to another stage of a pipeline.

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
                if skip(name):
                    continue
                live, shape = like(name), tuple(opened.get_slice(name).get_shape())
                if name in tensors:
                    raise ModelError(f"{name} is in {path}, and whole in another file beside it")
                if name in placed:
                    blocks.append(_Block(path, name, shape, placed[name]))
                elif live is not None and is_divided(live) and tuple(live.shape) == shape:
                    blocks.append(_Block(path, name, shape, Block((0,) * len(shape), shape)))
                else:
                    tensors[name] = opened.get_tensor(name)
    if twice := [block for block in blocks if block.name in tensors]:
        raise ModelError(f"{twice[0].name} is in {twice[0].path}, and whole in another file beside it")
    _check_whole(blocks)
    parts: dict[str, _Part] = {}
    for block in blocks:
        with safe_open(block.path, "pt") as opened:
            saved = opened.get_slice(block.name)
            if block.name not in parts:
                parts[block.name] = _Part.of(like(block.name), block.place.whole, saved.get_dtype())
            parts[block.name].read(saved, block)
    return tensors | {name: part.tensor() for name, part in parts.items()}


def shapes_of(folder: Path, file: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each whole tensor of a file of the state by name; as `load_tensors` raises."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files_of(folder, file):
        with safe_open(path, "pt") as opened:
            placed = _blocks_of(path, (opened.metadata() or {}).get(BLOCKS, "{}"))
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                whole = placed[name].whole if name in placed else opened.get_slice(name).get_shape()
                shapes[name] = tuple(whole)
    return shapes


class _Part(NamedTuple):
    """The part of a tensor that this process reads.

    Attributes:
        values: Its elements.
        first: The place of the first one in the tensor.
        live: The `DTensor` whose layout it gets; None: it is the whole tensor.
    """

    values: torch.Tensor
    first: tuple[int, ...]
    live: torch.Tensor | None

    @classmethod
    def of(cls, live: torch.Tensor | None, whole: tuple[int, ...], dtype: str) -> _Part:
        """Return the part of a saved tensor that a process with a live one needs."""
        if live is None or not is_divided(live) or tuple(live.shape) != whole:
            return cls(torch.empty(whole, dtype=_BY_NAME[dtype]), (0,) * len(whole), None)
        place = block_of(live)
        first = (0,) * len(whole) if place is None else place.offset
        return cls(torch.empty(local(live).shape, dtype=_BY_NAME[dtype]), first, live)

    def read(self, saved: Any, block: _Block) -> None:
        """Read the elements of a saved block that lie in this part."""
        begin = list(map(max, block.place.offset, self.first))
        end = [min(*ends) for ends in zip(block.stop, map(add, self.first, self.values.shape), strict=True)]
        if all(map(lt, begin, end)):
            into, of = (
                tuple(map(slice, map(sub, begin, origin), map(sub, end, origin)))
                for origin in (self.first, block.place.offset)
            )
            self.values[into] = saved[of]

    def tensor(self) -> torch.Tensor:
        """Return the whole tensor, or a `DTensor` with this block."""
        return self.values if self.live is None else with_block(self.values.to(self.live.device), self.live)


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
