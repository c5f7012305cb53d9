"""Files are replaced whole and durably."""

import os
from pathlib import Path

import pytest

from trainwright import safe_files
from trainwright.safe_files import fsync_folder, make_folders, write_atomically, write_together


def test_making_names_durable_keeps_no_file_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        fsync_folder(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_writing_atomically_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", b"old")
    write_atomically(tmp_path / "f", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_file_with_permissions_of_its_own_is_new(tmp_path: Path) -> None:
    """Another one of that name may be open to others, who would read what is written next."""
    aside = tmp_path / f".f.{os.getpid()}{safe_files.TEMPORARY_SUFFIX}"
    aside.touch(0o644)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "f", b"secret", mode=0o600)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_written_over(tmp_path: Path) -> None:
    """In a container, process ids come again."""
    (tmp_path / f".f.{os.getpid()}{safe_files.TEMPORARY_SUFFIX}").write_bytes(b"half of an older one")
    write_atomically(tmp_path / "f", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"new")]


def test_what_is_written_atomically_has_a_durable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bytes]] = []
    monkeypatch.setattr(
        safe_files, "fsync_folder", lambda folder: synced.append((folder, (folder / "f").read_bytes()))
    )
    write_atomically(tmp_path / "f", b"new")
    assert synced == [(tmp_path, b"new")]


def test_new_folders_and_their_parents_have_durable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(safe_files, "fsync_folder", synced.append)
    make_folders(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path, tmp_path / "a"}
    synced.clear()
    make_folders(tmp_path / "a" / "b")
    assert synced == []


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("open_regular", "refuse_links"):  # before the new file is there, and after
        with monkeypatch.context() as broken:
            broken.setattr(safe_files, name, full)
            with pytest.raises(OSError, match="No space left"):
                write_atomically(path, b"new")
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"old")]


def test_files_that_are_written_together_are_durable_and_each_is_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").write_bytes(b"old")
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        done.append(("fsync", "." if path == tmp_path else path.name.split(".")[1]))
        assert path == tmp_path or path.read_bytes() == b"new " + path.name.split(".")[1].encode()
        fsync(fd)

    def replaced(aside: Path, path: Path) -> Path:
        done.append(("replace", path.name))
        return replace(aside, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_together({tmp_path / name: b"new " + name.encode() for name in ("a", "b")})
    files = [("fsync", "a"), ("fsync", "b"), ("replace", "a"), ("replace", "b")]
    assert done == [*files, ("fsync", ".")], "what is seen is not on the disk yet"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new a", "b": b"new b"}


def test_who_may_read_a_file(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "public", b"")
        write_atomically(tmp_path / "private", b"", mode=0o600)
        (tmp_path / "linked").symlink_to(tmp_path)  # a folder of the user's own may be a link
        write_together({tmp_path / "linked" / "together": b""})
    finally:
        os.umask(umask)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("public", "private", "together")}
    assert modes == {"public": 0o644, "private": 0o600, "together": 0o644}
