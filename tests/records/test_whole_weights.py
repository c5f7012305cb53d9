"""Weights that several processes have saved, as the file of a single one."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from trainwright.digest import array_buffer, files_of, write_parts, write_tensors
from trainwright.frameworks.base import WEIGHTS_FILE
from trainwright.records.whole_weights import files_in_index, write_several, write_whole
from trainwright.types import Block, NamedBuffer

ARRAYS = {
    "rows": np.arange(70, dtype=np.float32).reshape(7, 10),
    "columns": np.arange(60, dtype=np.int64).reshape(4, 5, 3),
    "whole": np.arange(5, dtype=np.float16),
    "empty": np.zeros((0, 3), np.uint8),
    "other": np.array(3.5),
}


def block(name: str, axis: int, first: int, last: int) -> NamedBuffer:
    array = ARRAYS[name]
    offset = tuple(first if one == axis else 0 for one in range(array.ndim))
    part = np.take(array, range(first, last), axis)
    return array_buffer(name, part)._replace(block=Block(offset, array.shape))


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    folder = tmp_path / "divided"
    folder.mkdir()
    own = [block("rows", 0, 0, 3), block("columns", 1, 0, 4), array_buffer("whole", ARRAYS["whole"])]
    write_parts(folder / "weights.safetensors", [*own, array_buffer("empty", ARRAYS["empty"])])
    others = [block("rows", 0, 3, 7), block("columns", 1, 4, 5), array_buffer("other", ARRAYS["other"])]
    write_parts(folder / "weights.1.safetensors", others)
    return folder


def test_the_file_is_that_of_one_process(divided: Path, tmp_path: Path) -> None:
    expected = write_tensors(
        tmp_path / "weights.safetensors", [array_buffer(name, array) for name, array in ARRAYS.items()]
    )
    target = tmp_path / "target"
    target.mkdir()
    assert write_whole(divided, target / "weights.safetensors") == expected
    assert (target / "weights.safetensors").read_bytes() == (tmp_path / "weights.safetensors").read_bytes()
    assert [path.name for path in target.iterdir()] == ["weights.safetensors"], "nothing else is left"


def test_blocks_that_are_missing_are_named(divided: Path, tmp_path: Path) -> None:
    (divided / "weights.1.safetensors").unlink()
    assert len(files_of(divided, WEIGHTS_FILE)) == 1
    with pytest.raises(ValueError, match=r"blocks of .* do not make up"):
        write_whole(divided, tmp_path / "weights.safetensors")


def test_several_files_have_an_index(divided: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    records = write_several(divided, target, 289)  # `columns` has 480 bytes, `rows` 280
    assert [sorted(tensor.name for tensor in one.tensors) for one in records] == [
        ["columns"],
        ["empty", "other", "rows"],
        ["whole"],
    ]
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 480 + 8 + 280 + 10}
    assert index["weight_map"]["rows"] == "model-00002-of-00003.safetensors"
    files = files_in_index(target / "model.safetensors.index.json")
    assert sorted(path.name for path in target.iterdir()) == [
        *(path.name for path in files),
        "model.safetensors.index.json",
    ]
    read = {name: array for path in files for name, array in load_file(path).items()}
    assert read.keys() == ARRAYS.keys()
    assert all(np.array_equal(read[name], array) for name, array in ARRAYS.items())
    assert [one.name for one in write_several(divided, target, 10_000)] == ["model.safetensors"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": 3}', "no JSON"])
def test_an_index_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index|Expecting value"):
        files_in_index(tmp_path / "x.safetensors.index.json")


def test_an_index_leads_to_no_other_folder(tmp_path: Path) -> None:
    index = tmp_path / "x.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../other/a.safetensors"}}))
    assert files_in_index(index) == [tmp_path / "a.safetensors"]
