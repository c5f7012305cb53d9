"""Weights that several processes have saved, as the file of a single one."""

from pathlib import Path

import numpy as np
import pytest

from trainwright.digest import array_buffer, files_of, write_parts, write_tensors
from trainwright.frameworks.base import WEIGHTS_FILE
from trainwright.records.whole_weights import write_whole
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
