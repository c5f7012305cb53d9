"""A checkpoint, read by nothing of ours.

Safetensors' own reader, and hashlib by the rule that `digest.py` documents.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scripted import checkpoints_of

from trainwright import digest
from trainwright.digest import FileRecord, array_buffer, write_tensors
from trainwright.types import NamedBuffer

ARRAYS: dict[str, Any] = {
    "b.weight": np.arange(40, dtype=np.float32).reshape(8, 5),
    "a.steps": np.array(7, dtype=np.int64),
    "flags": np.array([True, False, True]),
    "none": np.empty((0, 4), dtype=np.float32),
}
NAMES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}


class Snapshot:
    def write(self, folder: Path) -> list[FileRecord]:
        files = {"weights.safetensors": ["b.weight", "flags", "none"], "optimizer.safetensors": ["a.steps"]}
        return [
            write_tensors(folder / file, [array_buffer(name, ARRAYS[name]) for name in names])
            for file, names in files.items()
        ]

    def release(self) -> None:
        pass


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """Of sorted keys and no white space."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def tensor_hash(data: bytes, size: int) -> str:
    hashes = [sha256(piece) for piece in pieces(data, size)]
    return hashes[0] if len(hashes) == 1 else sha256_json(hashes)


@pytest.mark.parametrize("size", [1 << 20, 64])
def test_an_independent_reader_finds_what_was_saved(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "CHUNK_BYTES", size)
    commit = checkpoints_of(tmp_path, attempt=3).resume.commit(12, Snapshot(), {"step": 12, "loss": 0.25})  # type: ignore[arg-type]
    folder = tmp_path / "checkpoints" / "step-000000012-a0003"
    manifest = json.loads((folder / "manifest.json").read_text())
    claimed = manifest.pop("sha256")
    assert claimed == sha256_json(manifest)
    assert (manifest["format"], manifest["step"], manifest["attempt"]) == (2, 12, 3)
    assert json.loads((folder / "state.json").read_text()) == {"step": 12, "loss": 0.25}

    tensors: dict[str, list[Any]] = {}
    for file in ("weights", "optimizer"):
        for name, array in load_file(folder / f"{file}.safetensors").items():
            assert np.array_equal(array, ARRAYS[name])
            assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
            data = array.tobytes()
            dtype = NAMES[array.dtype.name]
            tensors[f"{file}.{name}"] = [f"{file}.{name}", dtype, list(array.shape), tensor_hash(data, size)]
    assert tensors.keys() == {f"weights.{n}" for n in ("b.weight", "flags", "none")} | {"optimizer.a.steps"}
    assert manifest["state_digest"] == commit.state_digest == sha256_json(sorted(tensors.values()))
    weights = sorted(record for name, record in tensors.items() if name.startswith("weights."))
    assert manifest["digest"] == commit.digest == sha256_json(weights)

    assert [file["name"] for file in manifest["files"]] == [
        "weights.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    for file in manifest["files"]:
        data, at = (folder / file["name"]).read_bytes(), 0
        assert file["bytes"] == len(data)
        for length, hashed in file["chunks"]:
            assert sha256(data[at : at + length]) == hashed
            assert 0 < length <= max(size, 1024)
            at += length
        assert at == len(data), "the chunks tile the file"
        hashes = [hashed for _, hashed in file["chunks"]]
        assert file["sha256"] == (hashes[0] if len(hashes) == 1 else sha256_json(file["chunks"]))


WIDTHS = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


def test_items_lie_at_multiples_of_their_size(tmp_path: Path) -> None:
    """Wide items first, then by name, behind a header whose length is a multiple of eight.

    Readers may map the file.
    """
    widths = {f"{i}.{dtype}": width for dtype, width in WIDTHS.items() for i in (1, 2)}
    buffers = [
        NamedBuffer(name, name.split(".")[1], (3,), memoryview(bytes(3 * width)))
        for name, width in widths.items()
    ]
    write_tensors(tmp_path / "t", buffers)
    data = (tmp_path / "t").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    compact = json.dumps(header, separators=(",", ":")).encode()
    assert data[8 : 8 + length] == compact + b" " * (-len(compact) % 8)
    offsets = {name: entry["data_offsets"] for name, entry in header.items()}
    assert sorted(offsets, key=offsets.__getitem__) == sorted(widths, key=lambda name: (-widths[name], name))
    for name, (begin, end) in offsets.items():
        assert begin % widths[name] == 0
        assert end - begin == 3 * widths[name]
    assert max(end for _, end in offsets.values()) == len(data) - 8 - length
