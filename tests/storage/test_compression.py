"""Checkpoints that are compressed on their way to a store, read back with the library alone."""

import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

import trainwright
from small_runs import SMALL, assert_same, crashed
from trainwright.errors import CheckpointError, MissingExtraError
from trainwright.runs.run import Run
from trainwright.storage import compression
from trainwright.storage.remote import RemoteRun
from trainwright.storage.urls import open_store

WIDE = {"model.params.hidden": [128, 128], "checkpoint.compression": "zstd"}  # 60 KiB of moments each


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {**WIDE, "checkpoint.compression": "none"}
    return trainwright.train(SMALL, settings, runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that crashed at step 13, its URL, and its compressed objects; another machine goes on."""
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "first"))
    url = (tmp_path / "store").as_uri()
    run = crashed(url, WIDE, at=13)  # type: ignore[arg-type]
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "second"))
    return run, url, [key for key in open_store(url).list() if key.endswith(".zst")]


def test_a_resume_elsewhere_has_the_bits_of_a_run_that_was_never_compressed(stored: Any, whole: Run) -> None:
    run, url, keys = stored
    assert any("/best/" in key for key in keys)
    for key in keys:
        name = key.split("/", 4)[4].removesuffix(".zst")
        content = zstandard.ZstdDecompressor().decompress(open_store(url).get(key))
        assert content == (run.path / name).read_bytes()
    resumed = trainwright.resume(run.id, runs_dir=url)
    assert_same(resumed, whole)
    assert trainwright.load(trainwright.get(run.id, runs_dir=url)).run.id == run.id


@pytest.mark.parametrize("damage", ["cut", "no zstd", "more", "lost"])
def test_a_damaged_object_is_never_loaded(stored: Any, whole: Run, damage: str, caplog: Any) -> None:
    """The run goes on from the checkpoint before, of which all is there."""
    run, url, keys = stored
    key = max(key for key in keys if "/checkpoints/" in key)
    path = Path(url.removeprefix("file://")) / key
    content = path.read_bytes()
    other = {"cut": content[:-100], "no zstd": b"x" * 100, "more": zstandard.compress(bytes(1 << 20))}
    path.unlink()
    if damage in other:
        path.write_bytes(other[damage])
    assert_same(trainwright.resume(run.id, runs_dir=url), whole)
    said = key if damage == "lost" else "is not in the store as it was stored"
    assert said in caplog.text


def test_a_bomb_does_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(zstandard.compress(bytes(1 << 28)))
    with pytest.raises(CheckpointError, match="bomb holds more than the 1000 bytes that were stored"):
        compression.decompress(tmp_path / "bomb", tmp_path / "plain", 1000)
    assert (tmp_path / "plain").stat().st_size <= 1000


def test_an_unknown_codec_is_named(stored: Any) -> None:
    run, url, _ = stored
    remote = RemoteRun(run.path, open_store(url))
    entry = remote.head()
    assert entry is not None
    files = {name: file.model_copy(update={"codec": "lzma"}) for name, file in entry.files.items()}
    for name in files:
        (run.path / name).unlink()
    with pytest.raises(
        CheckpointError, match="was stored as 'lzma', which this version of Trainwright cannot"
    ):
        remote.download(entry.model_copy(update={"files": files}), lambda name: name.startswith("best/"))


def test_the_library_is_asked_for_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtraError("zstandard is not installed: run `pip install zstandard`")

    monkeypatch.setattr(compression, "check_codec", missing)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingExtraError, match="pip install zstandard"):
        trainwright.train(SMALL, WIDE, runs_dir=(tmp_path / "store").as_uri())
    trainwright.train(SMALL, {**WIDE, "training.max_steps": 2}, runs_dir=tmp_path / "local")  # nothing to do


def test_the_content_survives(tmp_path: Path) -> None:
    content = os.urandom(3 << 20) + bytes(3 << 20)
    (tmp_path / "a").write_bytes(content)
    compression.compress(tmp_path / "a", tmp_path / "b")
    compression.decompress(tmp_path / "b", tmp_path / "c", len(content))
    assert (tmp_path / "c").read_bytes() == content
    assert (tmp_path / "b").stat().st_size < len(content) * 0.51
