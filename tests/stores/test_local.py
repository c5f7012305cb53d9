"""The contract suite for the local store, and file systems: atomicity, durability, full disks."""

import errno
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from trainwright import safe_files
from trainwright.errors import CheckpointError, InputError, RunGoneError
from trainwright.process.machine import machine_id
from trainwright.stores import local
from trainwright.stores.local import LocalStore
from trainwright.testing.faults import kill
from trainwright.testing.store_suite import StoreSuite


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of fsynced folders."""
    seen: list[Path] = []
    for module in (safe_files, local):
        monkeypatch.setattr(module, "fsync_folder", seen.append)
    return seen


class TestLocal(StoreSuite):
    def make(self, root: Path) -> LocalStore:
        return LocalStore(root)

    def test_a_folder_holds_the_objects_under_a_prefix(self, store: LocalStore) -> None:
        for name in ("manifest.json", "weights"):
            self.put(store, f"best/x/{name}", name.encode())
        self.put(store, "best/y/weights", b"other")
        folder = store.folder("best/x")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            "manifest.json": b"manifest.json",
            "weights": b"weights",
        }

    def test_what_is_staged_is_no_object_and_is_swept(self, store: LocalStore, root: Path) -> None:
        left = store.staging()
        (left / "half").write_bytes(b"half")
        assert list(store.list()) == []
        assert not any(store.staging().iterdir())
        self.put(store, "a/key", b"kept")
        (root / ".staging-0123abcd-7-file").write_bytes(b"half of what was to be put if absent")
        assert list(store.list()) == ["a/key"]
        self.make(root).sweep()
        assert not list(root.glob(".staging-*"))
        assert store.get("a/key") == b"kept"

    def test_a_put_does_not_bring_back_a_root_that_is_gone(self, store: LocalStore, root: Path) -> None:
        source = root.parent / "file"
        source.write_bytes(b"new")
        root.rename(root.with_name("elsewhere"))
        with pytest.raises(FileNotFoundError):
            store.put("a/b/key", source)
        assert not root.exists()

    def test_a_put_that_fails_leaves_the_old_object(
        self, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(store, "a/key", b"old")
        source = store.staging() / "file"
        source.write_bytes(b"new")
        monkeypatch.setattr(Path, "replace", _raise(errno.EROFS))
        with pytest.raises(OSError, match="Read-only"):
            store.put("a/key", source)
        assert store.get("a/key") == b"old"

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_publishes_nothing(
        self, code: int, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(store, "a/other", b"the folder is there")
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", _raise(code))
            with pytest.raises(OSError, match=f"{os.strerror(code)}: '.*/a/manifest'"):
                store.put_if_absent("a/manifest", b"{}")
        assert list(store.list()) == ["a/other"]
        assert not list(root.glob(".staging-*")), "its staging folder is left behind"
        assert store.put_if_absent("a/manifest", b"{}")

    def test_an_object_whose_name_may_not_be_durable_is_not_published(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(store, "a/other", b"the folder is there, and its own name is durable")
        with monkeypatch.context() as broken:
            broken.setattr(local, "fsync_folder", _raise(errno.EIO))
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                store.put_if_absent("a/manifest", b"first")
        assert store.put_if_absent("a/manifest", b"second")
        assert store.get("a/manifest") == b"second"

    def test_objects_are_fsynced_before_they_can_be_seen(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[list[str]] = []
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(list(store.list("a/m"))), fsync(fd))[1])
        store.put_if_absent("a/manifest", b"{}")
        assert seen[0] == [], "the bytes are published before they are durable"
        assert seen[-1] == ["a/manifest"], "the name is not made durable"

    def test_a_copy_is_staged_in_the_store_and_durable_before_it_is_published(
        self, store: LocalStore, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a kill leaves behind is swept, and a rename does not cross file systems."""
        events: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def synced(fd: int) -> None:
            events.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}")
            fsync(fd)

        def replaced(source: Path, target: Path) -> Path:
            assert source.parent.parent == root
            store.sweep()
            assert not source.exists(), "it is left behind by a kill"
            source.parent.mkdir()
            source.write_bytes(b"new")
            events.append(f"rename {source.name}")
            return replace(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", replaced)
        (tmp_path / "given").write_bytes(b"new")
        store.put("weights", tmp_path / "given")
        assert events[:3] == ["fsync given", "rename given", f"fsync {root.name}"]

    def test_objects_of_deep_folders_are_reached_through_no_link(
        self, store: LocalStore, root: Path, tmp_path: Path
    ) -> None:
        self.put(store, "a/b/c", b"1")
        store.download("a/b/c", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"1"
        (root / "a").rename(tmp_path / "elsewhere")
        (root / "a").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CheckpointError):
            store.download("a/b/c", tmp_path / "other")
        assert list(store.list()) == ["a"], "a link is a name, not a folder to walk into"

    def test_a_folder_in_place_of_an_object_is_an_error_not_a_traceback(
        self, store: LocalStore, root: Path
    ) -> None:
        (root / "a" / "manifest").mkdir(parents=True)
        with pytest.raises(CheckpointError, match="Is a directory"):
            store.get("a/manifest")

    def test_a_folder_behind_a_link_is_not_the_stores(self, store: LocalStore, root: Path) -> None:
        """The store itself may be one."""
        self.put(store, "a/b/key", b"1")
        link = root.parent / "link"
        link.symlink_to(root)
        through = self.make(link)
        assert through.get("a/b/key") == b"1"
        assert list(through.list("a/b/")) == ["a/b/key"]
        assert through.folder("a/b") == link / "a" / "b"
        assert through.put_if_absent("a/b/more", b"2")
        through.delete("a/b/more")
        (root / "a").rename(root.parent / "outside")
        (root / "a").symlink_to(root.parent / "outside")
        refused = (
            lambda: store.get("a/b/key"),
            lambda: list(store.list("a/b/")),
            lambda: store.delete("a/b/key"),
            lambda: store.folder("a/b"),
            lambda: store.put_if_absent("a/b/more", b"2"),
            lambda: self.put(store, "a/b/key", b"2"),
        )
        for act in refused:
            with pytest.raises((CheckpointError, OSError), match="symbolic link"):
                act()
        assert (root.parent / "outside" / "b" / "key").read_bytes() == b"1"

    def test_a_store_that_is_gone_is_not_made_again(self, store: LocalStore, root: Path) -> None:
        root.rename(root.parent / "elsewhere")
        with pytest.raises(RunGoneError):
            store.staging()
        assert not root.exists()

    def test_the_last_object_takes_its_folder_along(self, store: LocalStore, root: Path) -> None:
        self.put(store, "checkpoints/step-1/w", b"1")
        store.delete("checkpoints/step-1/w")
        assert not (root / "checkpoints" / "step-1").exists()

    def test_every_new_folder_gets_a_durable_name(
        self, store: LocalStore, root: Path, synced: list[Path]
    ) -> None:
        store.put_if_absent("checkpoints/step-1/manifest", b"{}")
        assert {root, root / "checkpoints", root / "checkpoints" / "step-1"} <= set(synced)

    def test_deep_folders_are_made_from_the_outside(
        self, store: LocalStore, root: Path, synced: list[Path]
    ) -> None:
        store.put_if_absent("a/b/c/key", b"{}")
        assert synced == [root, root / "a", root / "a" / "b", root / "a" / "b" / "c"]

    def test_a_folder_is_published_whole(self, store: LocalStore, root: Path, synced: list[Path]) -> None:
        staging = staged(store)
        inode = staging.stat().st_ino
        assert store.publish(staging, "best/step-1", "manifest")
        assert (root / "best" / "step-1").stat().st_ino == inode
        assert synced == [staging, root, root / "best"], "a name is not durable"
        assert contents(store) == {"best/step-1/manifest": b"manifest", "best/step-1/weights": b"weights"}
        (root / "other").mkdir()
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (root / "other", root / "best/step-1")}
        assert len(modes) == 1

    def test_what_an_attempt_that_failed_has_left_is_replaced_and_the_last_comes_last(
        self, store: LocalStore, root: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(store, "best/step-1/weights", b"half")
        synced.clear()
        seen, link = [], os.link
        monkeypatch.setattr(
            os, "link", lambda *names: (seen.append(([*synced], contents(store))), link(*names))
        )
        staging = staged(store)
        assert store.publish(staging, "best/step-1", "manifest")
        names_durable = [staging, root / "best" / "step-1"]
        assert seen == [(names_durable, {"best/step-1/weights": b"weights"})]
        assert synced == [*names_durable, root / "best" / "step-1"]
        assert contents(store) == {"best/step-1/manifest": b"manifest", "best/step-1/weights": b"weights"}

    def test_what_is_published_is_not_published_again(self, store: LocalStore) -> None:
        assert store.publish(staged(store), "best/step-1", "manifest")
        published = contents(store)
        assert not store.publish(staged(store, "other "), "best/step-1", "manifest")
        assert contents(store) == published

    def test_a_folder_whose_name_may_not_be_durable_is_not_published(
        self, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(store, "best/other", b"the folder is there, and its own name is durable")
        with monkeypatch.context() as broken:
            broken.setattr(
                local, "fsync_folder", lambda path: _raise(errno.EIO)() if path == root / "best" else None
            )
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                store.publish(staged(store), "best/step-1", "manifest")
        assert "best/step-1/manifest" not in contents(store)
        assert store.publish(staged(store, "again "), "best/step-1", "manifest")
        assert contents(store)["best/step-1/weights"] == b"again weights"

    def test_a_deletion_is_durable(self, store: LocalStore, root: Path, synced: list[Path]) -> None:
        for name in ("manifest", "weights"):
            store.put_if_absent(f"checkpoints/step-1/{name}", b"{}")
        for name, folder in (
            ("manifest", "checkpoints/step-1"),
            ("weights", "checkpoints"),
            ("weights", None),
        ):
            synced.clear()
            store.delete(f"checkpoints/step-1/{name}")
            assert synced == ([root / folder] if folder else []), name

    def test_a_run_directory_is_swept_by_its_owner_only(self, store: LocalStore, root: Path) -> None:
        dead = _make_old(root / f".staging-0123abcd-{os.getpid()}-x")
        store.staging()
        assert dead.is_dir()

    def test_a_sweep_passes_over_what_another_one_has_deleted(
        self, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = store.staging()
        _list_first(monkeypatch, root / ".staging-0123abcd-7-gone")
        store.sweep()
        assert not left.exists()

    def test_other_files_of_the_run_are_untouched_by_a_sweep(self, store: LocalStore, root: Path) -> None:
        (root / "journal").mkdir()
        (root / "journal" / "0001.jsonl").write_text("{}\n")
        store.sweep()
        assert (root / "journal" / "0001.jsonl").exists()


class TestUrl(StoreSuite):
    def make(self, root: Path) -> LocalStore:
        return LocalStore((root / "made of it").as_uri())


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
def test_a_new_process_sweeps_what_dead_ones_have_left(operation: str, tmp_path: Path) -> None:
    """A process is killed in the middle of a put, and another one is in the middle of one."""
    root, source = tmp_path / "store", tmp_path / "weights"
    source.write_bytes(b"new")
    killed = os.fork()
    if killed == 0:
        try:
            shutil.copyfile = os.link = lambda *_: kill()  # type: ignore[assignment]
            store = LocalStore(root.as_uri())
            store.put("a/key", source) if operation == "put" else store.put_if_absent("a/key", b"new")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(killed, 0)[1]) == signal.SIGKILL
    (left,) = root.glob(".staging-*")
    mine = LocalStore(root.as_uri()).staging()
    assert not left.exists()
    names = [f".staging-{machine}-{killed}-{x}" for machine in ("0123abcd", "4567cdef") for x in "xy"]
    elsewhere, its_file, old, old_file = (root / name for name in names)
    for folder in (elsewhere, old):
        folder.mkdir()
        (folder / "weights").write_bytes(b"new")
    its_file.write_bytes(b"new")
    old_file.write_bytes(b"new")
    for path in (old / "weights", old, old_file):
        os.utime(path, (0, 0))
    LocalStore(root.as_uri()).put("a/key", source)
    assert set(root.glob(".staging-*")) == {mine, elsewhere, its_file}


def test_what_other_machines_have_left_is_a_day_old_by_the_clock_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs and ours differ: here, by a year."""
    mkdir, made, now = os.mkdir, list[str](), 1_900_000_000.0

    def make_there(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if Path(path).parent == tmp_path:
            made.append(Path(path).name)
            os.utime(path, (now, now))

    young, old = (_make_old(tmp_path / f".staging-0123abcd-7-{age}", now - age) for age in (86400.0, 86400.5))
    monkeypatch.setattr(os, "mkdir", make_there)
    assert LocalStore(tmp_path.as_uri()).staging().name == made[-1]
    assert young.is_dir()
    assert not old.exists()
    assert len(made) == 2
    assert made[0].startswith(f".staging-{machine_id('pid')}-{os.getpid()}-"), "a kill leaves it for ever"


def test_what_another_process_sweeps_at_once_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    left = _make_old(tmp_path / f".staging-{machine_id('pid')}-{ended}-x")
    for gone in (f"{machine_id('pid')}-{ended}", "0123abcd-7"):
        _list_first(monkeypatch, tmp_path / f".staging-{gone}-gone")
    LocalStore(tmp_path.as_uri()).staging()
    assert not left.exists()


def test_a_store_looks_once_for_what_dead_processes_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing a folder over the network takes time."""
    swept: list[Path] = []
    monkeypatch.setattr(local, "_sweep_dead", swept.append)
    store = LocalStore(tmp_path.as_uri())
    for key in ("a", "b"):
        store.put_if_absent(key, b"1")
    assert swept == [tmp_path]


@pytest.mark.parametrize("url", ["file:runs", "file://host/runs", "file:", "s3://bucket"])
def test_a_url_must_name_a_folder_here(url: str) -> None:
    with pytest.raises(InputError, match="write file:///path"):
        LocalStore(url)


def test_reading_makes_no_folder(tmp_path: Path) -> None:
    store = LocalStore((tmp_path / "none").as_uri())
    assert list(store.list("log/")) == []
    with pytest.raises(CheckpointError):
        store.get("log/1")
    store.delete("log/1")
    assert not (tmp_path / "none").exists()


def test_a_folder_that_another_process_makes_at_once_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, made = Path.mkdir, list[Path]()

    def meanwhile(folder: Path, *args: Any, **kwargs: Any) -> None:
        mkdir(folder)
        made.append(folder)
        mkdir(folder, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", meanwhile)
    assert LocalStore(tmp_path).put_if_absent("a/b/key", b"data")
    assert made == [tmp_path / "a", tmp_path / "a" / "b"]


@pytest.mark.parametrize("operation", ["put_if_absent", "put"])
@pytest.mark.parametrize("times", [1, 9, 10])
def test_a_folder_that_another_process_deletes_is_made_again(
    operation: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has deleted the last object there, just before the new one is linked; but that is no endless game."""
    store, deleted = LocalStore(tmp_path), list[Path]()
    link, replace = os.link, Path.replace

    def meanwhile(target: Path) -> None:
        if len(deleted) < times:
            deleted.append(target.parent)
            target.parent.rmdir()

    monkeypatch.setattr(os, "link", lambda source, target: (meanwhile(target), link(source, target)))
    monkeypatch.setattr(Path, "replace", lambda source, target: (meanwhile(target), replace(source, target)))
    source = store.staging() / "file"
    source.write_bytes(b"data")

    def act() -> object:
        return (
            store.put_if_absent("probe/x", b"data")
            if operation == "put_if_absent"
            else store.put("probe/x", source)
        )

    if times == 10:
        with pytest.raises(FileNotFoundError):
            act()
    else:
        assert act() in (True, None)
        assert store.get("probe/x") == b"data"
    assert deleted == [tmp_path / "probe"] * times


def staged(store: LocalStore, text: str = "") -> Path:
    """A staging folder with two files."""
    folder = store.staging()
    for name in ("manifest", "weights"):
        (folder / name).write_text(text + name)
    return folder


def contents(store: LocalStore) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list() if "other" not in key}


def _make_old(folder: Path, changed: float = 0.0) -> Path:
    folder.mkdir()
    os.utime(folder, (changed, changed))
    return folder


def _list_first(monkeypatch: pytest.MonkeyPatch, gone: Path) -> None:
    """Let `glob` find a file, too, that is deleted before anybody looks at it."""
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter([gone, *glob(folder, pattern)]))


def _raise(code: int):  # type: ignore[no-untyped-def]
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail
