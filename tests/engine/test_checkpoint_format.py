"""A checkpoint, read by nothing of ours: safetensors' own reader, and hashlib by the rule that `digest.py` documents."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scripted import checkpoints_of

from trainyard import digest
from trainyard.digest import FileRecord, array_buffer, write_tensors

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


@pytest.mark.parametrize("size", [16 << 20, 64])
def test_an_independent_reader_finds_what_was_saved(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "CHUNK_BYTES", size)
    commit = checkpoints_of(tmp_path, attempt=3).resume.commit(12, Snapshot(), {"step": 12, "loss": 0.25})  # type: ignore[arg-type]
    folder = tmp_path / "checkpoints" / "step-000000012-a0003"
    manifest = json.loads((folder / "manifest.json").read_text())
    claimed = manifest.pop("sha256")
    assert claimed == sha256_json(manifest)
    assert (manifest["format"], manifest["step"], manifest["attempt"]) == (1, 12, 3)
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


def test_items_lie_at_multiples_of_their_size(tmp_path: Path) -> None:
    """Wide items first, behind a header whose length is a multiple of eight: readers may map the file."""
    arrays = {
        "a": np.zeros(3, np.uint8), "b": np.zeros(3, np.int64), "c": np.zeros(5, np.float16),
        "d": np.zeros(3, np.float32), "e": np.zeros(1, np.int32), "f": np.zeros(2, np.uint16),
        "g": np.zeros(1, np.float64), "h": np.zeros(1, np.uint64), "i": np.zeros(1, np.uint32),
    }  # fmt: skip
    write_tensors(tmp_path / "t", [array_buffer(name, array) for name, array in arrays.items()])
    data = (tmp_path / "t").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    for name, array in arrays.items():
        begin, end = header[name]["data_offsets"]
        assert begin % array.itemsize == 0
        assert end - begin == array.nbytes
    assert sorted(h["data_offsets"] for h in header.values())[-1][1] == len(data) - 8 - length
