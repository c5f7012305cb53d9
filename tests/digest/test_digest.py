"""Hashing while writing: the same hashes as in memory, and every flipped bit found."""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from trainwright import digest as module
from trainwright.digest import (
    FileRecord,
    damage,
    digest,
    sha256_file,
    sha256_json,
    tensor_records,
    write_file,
    write_tensors,
)
from trainwright.safe_files import fsync_folder, write_atomically
from trainwright.types import NamedBuffer


def buffer(name: str, array: np.ndarray) -> NamedBuffer:
    dtype = {"float32": "F32", "int64": "I64", "uint8": "U8"}[array.dtype.name]
    return NamedBuffer(name, dtype, array.shape, memoryview(array.reshape(-1).view(np.uint8)))


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "a": generator.integers(0, 255, 1000).astype(np.uint8),
        "b.w": generator.normal(size=(100, 30)).astype(np.float32),
        "b.n": np.array(7, dtype=np.int64),
        "empty": np.empty((0, 4), dtype=np.float32),
    }


@pytest.fixture(params=[16 << 20, 128])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "CHUNK_BYTES", request.param)
    return int(request.param)


def test_any_reader_of_safetensors_reads_the_file(
    arrays: dict[str, np.ndarray], chunk_bytes: int, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    write_tensors(tmp_path / "t.safetensors", [buffer(name, array) for name, array in arrays.items()])
    loaded = load_file(tmp_path / "t.safetensors")
    assert loaded.keys() == arrays.keys()
    assert all(
        np.array_equal(loaded[name], array) and loaded[name].shape == array.shape
        for name, array in arrays.items()
    )


def test_hashes_made_while_writing_are_those_of_memory(
    arrays: dict[str, np.ndarray], chunk_bytes: int, tmp_path: Path
) -> None:
    buffers = [buffer(name, array) for name, array in arrays.items()]
    record = write_tensors(tmp_path / "t.safetensors", buffers)
    assert digest(record.tensors) == digest(tensor_records(buffers))
    assert {t.name for t in record.state()} == {f"t.{name}" for name in arrays}


def test_every_flipped_bit_is_found(arrays: dict[str, np.ndarray], chunk_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    record = FileRecord.from_json(write_tensors(path, [buffer(n, a) for n, a in arrays.items()]).to_json())
    assert damage(path, record) is None
    whole = path.read_bytes()
    for at in range(0, len(whole), 997):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "are not those that were written" in (damage(path, record) or "")
    path.write_bytes(whole[:-1])
    assert damage(path, record) == f"t.safetensors: {len(whole) - 1} bytes instead of {len(whole)}"
    path.unlink()
    assert "No such file" in (damage(path, record) or "")


def test_a_flipped_bit_of_a_large_file_is_found_in_its_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads hash large chunks."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 100_000)
    path, data = tmp_path / "t.safetensors", np.arange(250_000, dtype=np.uint8)
    record = write_tensors(path, [buffer("a", data)])
    assert damage(path, record) is None
    header, *sizes = (chunk.bytes for chunk in record.chunks)
    assert sizes == [100_000, 100_000, 50_000]
    whole = path.read_bytes()
    for at, (start, end) in {
        0: (0, 100_000),
        150_000: (100_000, 200_000),
        249_999: (200_000, 250_000),
    }.items():
        flipped = header + at
        path.write_bytes(whole[:flipped] + bytes([whole[flipped] ^ 1]) + whole[flipped + 1 :])
        where = f"bytes {header + start} to {header + end}"
        assert damage(path, record) == f"t.safetensors: {where} are not those that were written"


def test_the_digest_sees_name_dtype_shape_and_bytes_but_not_the_order(arrays: dict[str, np.ndarray]) -> None:
    base = [buffer(name, array) for name, array in arrays.items()]
    changed = [
        base[:-1],
        [base[0]._replace(name="z"), *base[1:]],
        [base[0]._replace(shape=(10, 100)), *base[1:]],
        [base[0]._replace(dtype="I8"), *base[1:]],
        [buffer("a", arrays["a"] ^ 1), *base[1:]],
    ]
    digests = {digest(tensor_records(some)) for some in [base, *changed]}
    assert len(digests) == 1 + len(changed)
    assert digest(tensor_records(base)) == digest(tensor_records(base[::-1]))


def test_chunks_have_1_mib() -> None:
    """Their size is part of what a digest means."""
    data = np.arange((1 << 20) + 3, dtype=np.uint8)
    (record,) = tensor_records([buffer("a", data)])
    parts = [hashlib.sha256(part).hexdigest() for part in (data[: 1 << 20], data[1 << 20 :])]
    assert record.sha256 == hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def test_json_is_hashed_sorted_compact_and_in_utf_8() -> None:
    text = '{"a":[1,2.5],"ä":"é"}'
    assert sha256_json({"ä": "é", "a": [1, 2.5]}) == hashlib.sha256(text.encode()).hexdigest()


def test_a_small_file_has_the_hash_of_sha256sum(tmp_path: Path) -> None:
    record = write_file(tmp_path / "f", b"hello")
    assert record.sha256 == sha256_file(tmp_path / "f") == hashlib.sha256(b"hello").hexdigest()


def test_links_are_followed_outside_of_the_run_only(tmp_path: Path) -> None:
    """`depth` counts the names that are inside the run directory."""
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    record = write_file(real / "file", b"content")
    assert damage(link / "file", record) is None
    assert "symbolic link" in (damage(link / "file", record, depth=2) or "")
    write_atomically(link / "file", b"newer")
    with pytest.raises(OSError, match="symbolic link"):
        write_atomically(link / "file", b"newest", depth=2)
    (real / "inner").mkdir()
    write_atomically(link / "inner" / "file", b"inner", depth=2)
    assert (real / "file").read_bytes() == b"newer"


def test_tensors_begin_where_readers_can_map_them(tmp_path: Path) -> None:
    """The header of a safetensors file ends at a multiple of 8 bytes."""
    for length in range(1, 20):
        write_tensors(tmp_path / "file", [buffer("n" * length, np.zeros(3, np.float32))])
        size = int.from_bytes((tmp_path / "file").read_bytes()[:8], "little")
        assert size % 8 == 0


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails says why, but not where."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=r"No space left on device: '.*report\.html'"):
        write_atomically(tmp_path / "report.html", b"page")
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        fsync_folder(tmp_path)
