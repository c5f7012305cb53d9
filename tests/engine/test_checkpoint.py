"""Commit and verification: only what is whole exists, and nothing takes the last good state away."""

import errno
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright.digest import FileRecord, sha256_json, write_tensors
from trainwright.engine.checkpoint import Checkpoints, StoredCommit
from trainwright.errors import CheckpointError
from trainwright.stores.local import LocalStore
from trainwright.types import NamedBuffer


class FakeSnapshot:
    def __init__(self, value: int, error: OSError | None = None) -> None:
        self._array = np.full(1000, value, dtype=np.float32)
        self._error = error

    def write(self, folder: Path) -> list[FileRecord]:
        if self._error:
            (folder / "weights.safetensors").write_bytes(b"half")
            if self._error.errno == errno.ESTALE:  # all that was written is gone
                shutil.rmtree(folder)
            raise self._error
        buffer = NamedBuffer("w", "F32", (1000,), memoryview(self._array.view(np.uint8)))
        return [write_tensors(folder / "weights.safetensors", [buffer])]

    def release(self) -> None:
        pass


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    kept = Checkpoints(LocalStore(tmp_path), "checkpoints", attempt=1)
    for step in (10, 20):
        kept.commit(step, FakeSnapshot(step), {"step": step})
    return kept


def newest_folder(checkpoints: Checkpoints, tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / checkpoints.names()[0]


def test_the_newest_comes_back_whole(checkpoints: Checkpoints) -> None:
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert (commit.step, complaints, checkpoints.state(commit)) == (20, [], {"step": 20})
    assert [tensor.name for tensor in commit.tensors] == ["weights.w"]
    assert commit.digest == commit.state_digest


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_step(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 21}))


DAMAGES: dict[str, Any] = {
    "a flipped bit in the weights": lambda folder: flip(folder / "weights.safetensors"),
    "truncated weights": lambda folder: os.truncate(folder / "weights.safetensors", 100),
    "missing weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "a flipped bit in the state": lambda folder: flip(folder / "state.json"),
    "a missing manifest": lambda folder: (folder / "manifest.json").unlink(),
    "a truncated manifest": lambda folder: os.truncate(folder / "manifest.json", 50),
    "an empty manifest": lambda folder: os.truncate(folder / "manifest.json", 0),
    "a manifest that says another step": lambda folder: edit_step(folder / "manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_an_older_one_is_used(
    damage: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = newest_folder(checkpoints, tmp_path)
    DAMAGES[damage](folder)
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert commit.step == 10
    assert len(complaints) == 1
    assert folder.name in complaints[0]


def first_chunk(manifest: dict[str, Any], value: Any) -> None:
    manifest["files"][0]["chunks"][0][0] = value


ODD: dict[str, Any] = {
    "a chunk's size": lambda manifest: first_chunk(manifest, []),
    "chunks": lambda manifest: manifest["files"][0].update(chunks=3),
    "a file's size": lambda manifest: manifest["files"][0].update(bytes={}),
    "a file": lambda manifest: manifest.update(files=[None]),
    "files": lambda manifest: manifest.update(files=1.5),
    "the step": lambda manifest: manifest.update(step=[]),
    "the attempt": lambda manifest: manifest.update(attempt=None),
    "the best models": lambda manifest: manifest.update(best=5),
    "the run's files": lambda manifest: manifest.update(run_files=[1]),
    "a file above it": lambda manifest: manifest["files"][-1].update(name="../../../elsewhere"),
    "a file elsewhere": lambda manifest: manifest["files"][-1].update(name="/tmp/elsewhere"),
    "a file that is a folder": lambda manifest: manifest["files"][-1].update(name=".."),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_manifest_of_other_types_is_damaged(odd: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Also one whose own hash is right."""
    path = newest_folder(checkpoints, tmp_path) / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    ODD[odd](manifest)
    path.write_text(json.dumps(manifest | {"sha256": sha256_json(manifest)}))
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert (commit.step, len(complaints)) == (10, 1)
    assert "is damaged" in complaints[0]


def test_a_manifest_that_is_nested_too_deeply_is_damaged(checkpoints: Checkpoints, tmp_path: Path) -> None:
    (newest_folder(checkpoints, tmp_path) / "manifest.json").write_text("[" * 100_000)
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert commit.step == 10
    assert "nested too deeply" in complaints[0]


def test_what_lies_in_the_store_of_the_run_is_fetched_before_it_is_read(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Of the checkpoints in a store, only the names are known here, until one is wanted."""
    here, fetched = tmp_path / "here", list[str]()

    def fetch(path: str) -> None:
        fetched.append(path)
        shutil.copytree(tmp_path / path, here / path, dirs_exist_ok=True)

    for name in checkpoints.names():
        (here / "checkpoints" / name).mkdir(parents=True)
        (here / "checkpoints" / name / "manifest.json").touch()
    copies = Checkpoints(LocalStore(here), "checkpoints", fetch=fetch)
    commit, complaints = copies.newest()
    assert commit is not None
    assert (commit.step, complaints, copies.state(commit)) == (20, [], {"step": 20})
    assert fetched == [f"checkpoints/{commit.name}"]


def test_a_state_that_json_cannot_hold_is_refused(checkpoints: Checkpoints) -> None:
    with pytest.raises(ValueError, match="JSON"):
        checkpoints.commit(30, FakeSnapshot(30), {"loss": math.nan})
    commit, _ = checkpoints.newest()
    assert commit is not None
    assert commit.step == 20


def test_a_checkpoint_behind_a_link_is_damaged_but_the_run_may_be_one(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    link = tmp_path.parent / f"link-to-{tmp_path.name}"
    link.symlink_to(tmp_path)
    commit, complaints = Checkpoints(LocalStore(link), "checkpoints").newest()
    assert commit is not None
    assert (commit.step, complaints) == (20, [])
    folder = newest_folder(checkpoints, tmp_path)
    outside = tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert commit.step == 10
    folder.unlink()
    outside.rename(folder)
    (folder / "weights.safetensors").rename(outside)
    (folder / "weights.safetensors").symlink_to(outside)
    with pytest.raises(CheckpointError, match="symbolic link"):
        checkpoints.load(folder.name)


def test_what_dead_processes_left_in_staging_is_swept(checkpoints: Checkpoints, tmp_path: Path) -> None:
    LocalStore(tmp_path).staging()
    assert list(tmp_path.glob(".staging-*"))
    checkpoints.sweep()
    assert not list(tmp_path.glob(".staging-*"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE])
def test_a_save_that_fails_leaves_the_earlier_ones(
    code: int, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"step 30 cannot be written: .*{os.strerror(code)}"):
        checkpoints.commit(30, FakeSnapshot(30, OSError(code, os.strerror(code))), {"step": 30})
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert (commit.step, complaints) == (20, [])
    assert not list(tmp_path.glob(".staging-*")), "what was half written is still there"


def test_a_best_model_that_cannot_be_written_is_called_one(tmp_path: Path) -> None:
    full = FakeSnapshot(1, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    for kind, name in (("best", "best model"), ("checkpoints", "checkpoint")):
        with pytest.raises(CheckpointError, match=f"the {name} of step 7 cannot be written"):
            Checkpoints(LocalStore(tmp_path), kind, attempt=1).commit(7, full)  # type: ignore[arg-type]


def test_a_commit_that_another_process_made_first_is_not_taken_for_ours(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    other = Checkpoints(LocalStore(tmp_path), "checkpoints", attempt=1)
    other.commit(30, FakeSnapshot(31), {"step": 30})
    with pytest.raises(
        CheckpointError,
        match="checkpoint of step 30 cannot be written: step-000000030-a0001 is committed already",
    ):
        checkpoints.commit(30, FakeSnapshot(30), {"step": 30})


def test_a_commit_that_another_process_makes_in_the_meantime_is_not_taken_for_ours(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "publish", lambda *_: False)
    with pytest.raises(
        CheckpointError, match="another process committed step-000000030-a0001 in the meantime"
    ):
        checkpoints.commit(30, FakeSnapshot(30), {"step": 30})


def test_those_that_cover_files_of_the_run_are_the_same(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Checkpoints(store, "checkpoints", attempt=1).commit(10, FakeSnapshot(10))
    logged = Checkpoints(store, "checkpoints", attempt=2, committed=set())
    logged.commit(20, FakeSnapshot(20))
    assert logged.covering({}).names() == ["step-000000020-a0002"]
    without_log = Checkpoints(store, "checkpoints")
    assert without_log.covering({}).names() == ["step-000000020-a0002", "step-000000010-a0001"]


@pytest.mark.parametrize("way", ["as it is", "again"])
def test_a_copy_in_another_store_is_whole_and_durable(
    way: str, checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    store, synced, fsync = LocalStore(tmp_path / "other"), set[str](), os.fsync
    original, _ = checkpoints.newest()
    assert original is not None
    copies = Checkpoints(store, "checkpoints", attempt=1)

    def counted(descriptor: int) -> None:
        state = os.fstat(descriptor)
        synced.add(f"{state.st_ino} {state.st_size}")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    if way == "as it is":
        checkpoints.copy_to(original, store)
    else:
        copies.commit(20, StoredCommit(checkpoints.folder(original), original), {"step": 20})
    commit, complaints = copies.newest()
    assert commit is not None
    assert (commit.step, commit.digest, complaints) == (20, original.digest, [])
    assert copies.state(commit) == {"step": 20}
    for file in copies.folder(commit).iterdir():
        state = file.stat()
        assert f"{state.st_ino} {state.st_size}" in synced, f"{file.name} is not on the disk"


def test_what_a_kill_left_before_the_manifest_is_no_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    left = tmp_path / "checkpoints" / "step-000000030-a0001"
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half")
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert commit.step == 20
    assert "step-000000030-a0001" in complaints[0]


def test_a_real_full_disk(tmp_path: Path) -> None:
    """A file-size limit gives a real write the real error."""
    import resource
    import signal

    kept = Checkpoints(LocalStore(tmp_path), "checkpoints", attempt=1)
    kept.commit(1, FakeSnapshot(1), {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot be written"):
            kept.commit(2, FakeSnapshot(2), {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    commit, _ = kept.newest()
    assert commit is not None
    assert commit.step == 1


def test_pruning_deletes_the_manifest_first(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = tmp_path / "checkpoints" / "step-000000010-a0001" / "another.safetensors"
    extra.write_bytes(b"its name is before the manifest's")
    deleted: list[str] = []
    delete = LocalStore.delete
    monkeypatch.setattr(LocalStore, "delete", lambda store, key: (deleted.append(key), delete(store, key))[0])
    checkpoints.prune({checkpoints.names()[0]})
    assert deleted[0] == "checkpoints/step-000000010-a0001/manifest.json"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000020-a0001"]


def test_what_is_not_a_file_in_a_checkpoint_is_damage(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A framework may look for files that no record names, and would wait for a pipe."""
    os.mkfifo(newest_folder(checkpoints, tmp_path) / "optimizer.safetensors")
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert commit.step == 10
    assert "optimizer.safetensors: it is not a regular file" in complaints[0]


def test_a_file_of_tensors_that_no_record_names_is_damage(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A framework reads the shares of a state that it finds."""
    (newest_folder(checkpoints, tmp_path) / "optimizer.1.safetensors").write_bytes(b"rubbish")
    commit, complaints = checkpoints.newest()
    assert commit is not None
    assert commit.step == 10
    assert "optimizer.1.safetensors: no record names it" in complaints[0]


def test_a_manifest_of_a_later_format_is_not_read(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for name in checkpoints.names():
        path = tmp_path / "checkpoints" / name / "manifest.json"
        manifest = json.loads(path.read_text()) | {"format": 99}
        del manifest["sha256"]
        path.write_text(json.dumps(manifest | {"sha256": sha256_json(manifest)}))
    commit, complaints = checkpoints.newest()
    assert commit is None
    assert ["another version of Trainwright (format 99" in one for one in complaints] == [True, True]
    assert not any("damaged" in complaint for complaint in complaints)


def test_a_second_commit_under_one_name_changes_nothing(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """It used to overwrite the files of the first, whose manifest then described others."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = Checkpoints(LocalStore(tmp_path), "checkpoints", attempt=1)
    with pytest.raises(
        CheckpointError, match="step 20 cannot be written: step-000000020-a0001 is committed already"
    ):
        other.commit(20, FakeSnapshot(21), {"step": 20})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_only_what_the_log_names_exists(checkpoints: Checkpoints, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    known = Checkpoints(store, "checkpoints", attempt=2, committed=["step-000000010-a0001"])
    commit, complaints = known.newest()
    assert commit is not None
    assert (commit.step, complaints) == (10, [])
    own = known.commit(20, FakeSnapshot(20), {"step": 20})
    assert known.names(published=True) == [own.name, "step-000000010-a0001"]
    known.prune({own.name})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [own.name]


def test_an_attempt_deletes_nothing_of_later_ones(checkpoints: Checkpoints, tmp_path: Path) -> None:
    later = Checkpoints(LocalStore(tmp_path), "checkpoints", attempt=2)
    later.commit(30, FakeSnapshot(30), {"step": 30})
    checkpoints.prune(())
    assert later.names() == ["step-000000030-a0002"]
