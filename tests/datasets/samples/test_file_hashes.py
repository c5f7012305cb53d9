"""Hashes of files, and copies of what is made of them, are right whatever becomes of the cache and of the files."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import trainwright
from trainwright.callbacks.base import Callback
from trainwright.datasets.samples.cache import DataCache
from trainwright.datasets.samples.file_hashes import FilesRead, hashes_of, reading_again
from trainwright.datasets.samples.shards import keep_in_cache, kept_in_cache
from trainwright.process import file_stamps
from trainwright.records.run_dir import RunDir


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache, in which the hashes of new files in memory are remembered, too."""
    monkeypatch.setattr(file_stamps, "_SETTLED_NS", -(10**18))
    monkeypatch.setattr(file_stamps, "_is_in_memory", lambda device: False)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def written_through_a_map(file: Path, content: bytes) -> None:
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[: len(content)] = content


def test_a_changed_digit_in_the_cache_of_hashes_changes_no_hash(remembering: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(file.name.encode() * 9)
    names = list(map(str, files))
    assert hashes_of(names) == hashes_of(names) == list(map(sha256, files))
    (record,) = (remembering / "hashes").glob("*.json")
    written = record.read_text()
    for digit in re.finditer('[0-9a-f](?="\\])', written):
        other = "0" if digit[0] != "0" else "1"
        record.write_text(f"{written[: digit.start()]}{other}{written[digit.end() :]}")
        assert hashes_of(names) == list(map(sha256, files))
        assert record.read_text() == written


def test_what_times_do_not_show_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows"  # in memory, as all files of tests
    file.write_bytes(b"before")
    monkeypatch.setattr(file_stamps, "_SETTLED_NS", -(10**18))
    if not file_stamps._is_in_memory(file.stat().st_dev):
        pytest.skip("the temporary folder is on a disk")
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[:1] = b"B"
        hashes_of([str(file)])
        before = file.stat()
        mapped[:] = b"after!"
        assert file.stat().st_ctime_ns == before.st_ctime_ns  # or this tests nothing
        assert hashes_of([str(file)]) == [sha256(file)]


def test_a_file_that_changed_within_a_minute_is_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stamps, "_is_in_memory", lambda device: False)
    file = tmp_path / "rows"
    file.write_bytes(b"before")
    past = time.time() - 86400
    os.utime(file, (past, past))  # its other time stays that of the change
    hashes_of([str(file)])
    written_through_a_map(file, b"after!")
    os.utime(file, (past, past))
    assert hashes_of([str(file)]) == [sha256(file)]


def test_before_a_reuse_all_files_are_read(remembering: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"before")
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[:1] = b"b"
        (old,) = hashes_of([str(file)])
        mapped[:] = b"after!"  # on a page that is dirty already: no time changes
        with reading_again(), ThreadPoolExecutor() as threads:
            assert threads.submit(hashes_of, [str(file)]).result() == [old]  # another thread remembers
            assert hashes_of([str(file)]) == [sha256(file)] != [old]


def test_swapped_copies_are_made_again(tmp_path: Path) -> None:
    cache = DataCache(tmp_path / "data", 1 << 20)
    paths = {
        name: cache.made(name, name, 9, lambda new, name=name: new.write_text(name))
        for name in ("one", "other")
    }
    one, other = (path.parent for path in paths.values())
    shutil.move(one, tmp_path / "aside")
    shutil.move(other, one)
    shutil.move(tmp_path / "aside", other)
    assert cache.found("one") is None
    assert cache.made("other", "other", 9, lambda new: new.write_text("again")).read_text() == "again"


def test_swapped_and_changed_indexes_of_shards_are_made_again(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    keep_in_cache(one, b"of one")
    keep_in_cache(other, b"of the other")
    assert kept_in_cache(one) == b"of one"
    one.write_bytes(other.read_bytes())
    assert kept_in_cache(one) is None
    other.write_bytes(other.read_bytes()[:-1] + b"!")
    assert kept_in_cache(other) is None


def test_files_that_were_changed_and_put_back_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    files = FilesRead([str(folder / name) for name in "abc"])
    (tmp_path / "more").touch()  # beside the folder, as others may
    tmp_path.chmod(0o750)
    folder.chmod(0o700)
    assert files.changed() == []
    times = (folder / "b").stat()
    (folder / "b").write_text("x")
    (folder / "b").write_text("b")
    os.utime(folder / "b", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files.changed() == [str(folder / "b")]
    again = FilesRead([str(folder / name) for name in "abc"])
    folder.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "aside", folder)
    shutil.rmtree(folder)
    (tmp_path / "aside").rename(folder)
    assert again.changed() == [str(folder)]


def test_a_link_that_led_elsewhere_for_a_while_is_named(tmp_path: Path) -> None:
    """Neither the files nor their folders show that: they were left alone."""
    for version in ("first", "second"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "rows").write_text(version)
    data, inner = tmp_path / "data", tmp_path / "inner"
    inner.symlink_to(tmp_path / "first")
    data.symlink_to(inner)
    files = FilesRead([str(data / "rows")])
    assert files.changed() == []
    inner.rename(tmp_path / "aside")
    inner.symlink_to(tmp_path / "second")
    assert str(inner) in files.changed()
    inner.unlink()
    (tmp_path / "aside").rename(inner)
    assert files.changed() == [str(inner)]


class ChangesAndPutsBack(Callback):
    """Lets the model learn one step from other features."""

    def __init__(self, file: Path) -> None:
        self.file, self.before = file, file.read_bytes()

    def on_log(self, step: int, metrics: object) -> None:
        content = self.before if step != 2 else self.before[:-64] + bytes(64)
        with self.file.open("r+b") as file:
            file.write(content)


@pytest.mark.slow
def test_a_run_says_that_its_features_were_changed_and_put_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.save(tmp_path / "X.npy", random.normal(size=(64, 4)).astype(np.float32))
    np.save(tmp_path / "y.npy", random.integers(0, 2, 64))
    config = {
        "data": {"type": "npy", "path": str(tmp_path), "task": "classification"},
        "model": {"type": "mlp"},
        "training": {"max_steps": 4, "batch_size": 16},
        "logging": {"every_n_steps": 1},
    }
    calm = trainwright.train(config, runs_dir=tmp_path / "runs")
    changed = trainwright.train(
        config, runs_dir=tmp_path / "runs", callbacks=[ChangesAndPutsBack(tmp_path / "X.npy")]
    )
    tiers = [RunDir(run.path).require_manifest().determinism for run in (calm, changed)]
    assert tiers[0].tier == "bitwise"
    assert tiers[1].tier == "statistical"
    assert "X.npy" in tiers[1].reason
