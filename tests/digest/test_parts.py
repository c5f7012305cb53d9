"""Parts of tensors: whoever owns which blocks, the records are those of the whole tensors."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from trainwright import digest as module
from trainwright.digest import array_buffer, damage, hashed, join_parts, tensor_records, write_parts
from trainwright.digest.parts import Runs
from trainwright.types import Block, NamedBuffer


def blocks_of(name: str, array: np.ndarray, cuts: list[list[int]]) -> list[NamedBuffer]:
    """Return the blocks between the cuts of each axis."""
    edges = [sorted({0, size, *some}) for size, some in zip(array.shape, cuts, strict=True)]
    found = []
    for spans in itertools.product(*(itertools.pairwise(some) for some in edges)):
        block = np.ascontiguousarray(array[tuple(slice(*span) for span in spans)])
        place = Block(tuple(first for first, _ in spans), array.shape)
        found.append(array_buffer(name, block)._replace(block=place))
    return found


@st.composite
def divided(draw: st.DrawFn) -> tuple[np.ndarray, list[NamedBuffer], int]:
    """Return an array, its blocks, and the bytes of a chunk."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    dtype = draw(st.sampled_from(["u1", "<i2", "<f4", "<f8"]))
    array = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    cuts = [draw(st.lists(st.integers(1, size), max_size=2)) for size in shape]
    return array, blocks_of("w", array, cuts), draw(st.integers(1, 99))


@given(divided())
def test_a_record_does_not_depend_on_how_its_tensor_is_divided(case: Any) -> None:
    array, blocks, chunk_bytes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        whole = tensor_records([array_buffer("w", array)])
        records, parts = hashed(blocks)
        assert records == []
        assert join_parts(parts) == whole
        assert join_parts(reversed(parts)) == whole


@given(divided())
def test_pieces_are_the_bytes_of_the_block_at_their_places(case: Any) -> None:
    array, blocks, chunk_bytes = case
    content, again = array.tobytes(), bytearray(array.nbytes)
    for buffer in blocks:
        assert buffer.block is not None
        runs = Runs.of(buffer.shape, buffer.block, array.itemsize)
        for chunk, start, stop in runs.pieces(chunk_bytes):
            positions = runs.positions(chunk, chunk_bytes)
            assert len(positions) == stop - start
            for at, byte in zip(positions.tolist(), buffer.buffer[start:stop], strict=True):
                again[chunk * chunk_bytes + at] = byte
    assert bytes(again) == content


def test_blocks_are_written_with_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    array, other = np.arange(60, dtype=np.float32).reshape(6, 10), np.arange(5)
    upper, lower = blocks_of("w", array, [[4], []])
    record, (told,) = write_parts(tmp_path / "one.safetensors", [upper, array_buffer("v", other)])
    rest, (also,) = write_parts(tmp_path / "two.safetensors", [lower])
    assert [*record.tensors, *join_parts([also, told])] == tensor_records(
        [array_buffer("v", other), array_buffer("w", array)]
    )
    assert rest.tensors == []
    assert damage(tmp_path / "one.safetensors", record) is None
    assert damage(tmp_path / "two.safetensors", rest) is None
    assert load_file(tmp_path / "two.safetensors")["w"].tolist() == array[4:].tolist()
    with safe_open(tmp_path / "two.safetensors", "np") as file:
        assert json.loads(file.metadata()["blocks"]) == {"w": {"offset": [4, 0], "whole": [6, 10]}}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda parts: parts[1:],
        lambda parts: [*parts, parts[0]],
        lambda parts: [parts[0]._replace(offset=(1, 0)), *parts[1:]],
        lambda parts: [parts[0]._replace(whole=(7, 10)), *parts[1:]],
        lambda parts: [parts[0]._replace(offset=(6, 0)), *parts[1:]],
    ],
)
@pytest.mark.parametrize("chunk_bytes", [7, 64, 4096])
def test_blocks_that_do_not_fit_together_have_no_record(
    wrong: Any, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    _, parts = hashed(blocks_of("w", np.arange(60, dtype=np.float32).reshape(6, 10), [[2, 4], []]))
    with pytest.raises(ValueError, match="block"):
        join_parts(wrong(parts))
