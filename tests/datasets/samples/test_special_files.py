"""Files that are not ordinary, or can never be read to their end, are refused at once."""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rows import config, load

from trainwright.cli.main import main
from trainwright.datasets.csv import CsvDataset
from trainwright.datasets.npy import NpyDataset
from trainwright.datasets.samples import files
from trainwright.datasets.samples.files import existing_file, read_bytes
from trainwright.datasets.tables.frames import read_table
from trainwright.errors import DataError
from trainwright.process.machine import available_memory

TERABYTE = 1 << 40


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def listener(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(path.name)  # a path may be 108 bytes long at most


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


def sparse_after_a_header(path: Path) -> None:
    path.write_bytes(b"a,y\n1,0\n")
    os.truncate(path, TERABYTE)


SPECIAL: dict[Callable[[Path], None], str] = {
    fifo: "is a pipe",
    zeros: "is a device",
    folder: "is a folder",
    listener: "is a socket",
    sparse: r"1,024\.0 GiB.*sparse",
    sparse_after_a_header: r"1,024\.0 GiB.*sparse",
}
# The file's name, and how a command is given it.
USES = {
    "csv": ("x.csv", "data={type: csv, path: x.csv, target: y}"),
    "validation": ("x.csv", "data={type: csv, train_path: rows.csv, val_path: x.csv, target: y}"),
    "parquet": ("x.parquet", "data={type: parquet, path: x.parquet, target: y}"),
    "npz": ("x.npz", "data={type: npz, path: x.npz, target: y}"),
    "tfrecord": ("x.tfrecord", "data={type: tfrecord, path: x.tfrecord, target: y}"),
    "pattern": ("x.tfrecord", "data={type: tfrecord, path: 'x.*', target: y}"),
    "init": ("x.csv", ""),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a,y\n" + "1,0\n2,1\n" * 20, encoding="utf-8")
    Path("c.yaml").write_text("model: mlp\n", encoding="utf-8")
    return tmp_path


@contextmanager
def time_limit(seconds: float = 60) -> Iterator[None]:
    """Ends the tests where something waits for a FIFO for ever: it cannot be interrupted otherwise."""
    timer = threading.Timer(seconds, os._exit, (99,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.mark.parametrize("make", SPECIAL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("use", USES)
def test_special_files_are_wrong_input(
    make: Callable[[Path], None], use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change = USES[use]
    make(Path(name))
    words = ["train", "c.yaml", change] if change else ["init", name, "--target", "y", "-o", "out.yaml"]
    with time_limit():
        assert main(words) == 2
    message = capsys.readouterr().err
    assert re.search(rf"error: {name}.*{SPECIAL[make]}", message)
    assert not list(Path().glob("runs/*/*"))


@pytest.mark.parametrize("make", SPECIAL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_special_files_to_predict(make: Callable[[Path], None], name: str) -> None:
    make(Path(name))
    with time_limit(), pytest.raises(DataError, match=f"{name}.*{SPECIAL[make]}"):
        read_table(name)


@pytest.mark.parametrize("make", SPECIAL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("letter", "Xy")
def test_special_files_in_a_folder_of_npy_files(make: Callable[[Path], None], letter: str) -> None:
    Path("data").mkdir()
    for name in {"X", "y"} - {letter}:
        np.save(f"data/{name}.npy", np.zeros((20, 2)))
    os.chdir("data")
    make(Path(f"{letter}.npy"))
    os.chdir("..")
    with time_limit(), pytest.raises(DataError, match=SPECIAL[make]):
        load(NpyDataset, config(type="npy", path="data"))


@pytest.mark.parametrize("make", SPECIAL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["x.safetensors", "x"])
def test_special_files_as_initial_weights(
    make: Callable[[Path], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(Path(name))
    with time_limit():
        assert main(["train", "c.yaml", "data=iris", f"model.init_from={name}"]) == 2
    said = f"model.init_from: {name}" if name.endswith(".safetensors") else f"no run '{name}'"
    if Path(name).is_dir() and not name.endswith(".safetensors"):
        said = f"the folder {name} is no run"
    assert said in capsys.readouterr().err


def test_a_file_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "available_memory", lambda: 10 << 30)
    monkeypatch.setattr(files, "_has_hole", lambda *_: False)  # full, as far as anybody can tell
    sparse(Path("x.csv"))
    with pytest.raises(DataError, match=r"x.csv is 1,024.0 GiB, but only 10.0 GiB of memory .*npy"):
        load(CsvDataset, config(type="csv", path="x.csv"))
    assert existing_file("x.csv", mapped=True).stat().st_size == TERABYTE  # not refused


def test_a_file_that_is_half_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole alone is no reason: database dumps and downloads have some."""
    monkeypatch.setattr(files, "_LARGE", 1 << 12)
    Path("x").write_bytes(b"x" * (1 << 16))
    os.truncate("x", 1 << 18)
    assert len(read_bytes("x")) == 1 << 18


def test_available_memory() -> None:
    memory = available_memory()
    assert memory is not None
    assert 1 << 20 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("path", ["a\0b", "~nobody-of-this-name/x", "x" * 300, "loop"])
def test_paths_that_lead_nowhere(path: str) -> None:
    Path("loop").symlink_to("loop")
    with pytest.raises(DataError, match="cannot be read"):
        existing_file(path)
