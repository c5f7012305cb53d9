"""A process that is killed at any change of the disk while it adds, gets or deletes data leaves all or nothing."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.errors import InputError
from trainwright.testing.version_suite import FIRST, SECOND, read, written
from trainwright.versions.embedded.tree import CHUNK_BYTES

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]
CHANGES = ("fsync", "link", "unlink", "rename", "replace", "mkdir", "rmdir", "chmod")
LARGE = {"large.bin": bytes(range(256)) * (CHUNK_BYTES // 256) + b"the rest"}


def in_child(act: Callable[[], object], *, die_at: int | None = None, after: bool = False) -> int:
    """Call a function in a process that is killed at the n-th change of the disk.

    Returns:
        The number of changes that it made; -1: it was killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == die_at and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                number = count
                result = call(*args, **kwargs)
                if number == die_at and after:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return wrapper

        for name in CHANGES:
            setattr(os, name, counted(getattr(os, name)))
        try:
            act()
        finally:
            os.write(writing, str(count).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) == (not said)
    return int(said or -1)


def each_kill(act: Callable[[], object], prepare: Callable[[], None], check: Callable[[], None]) -> int:
    """Kill a function before and after each change of the disk, each time from the same beginning."""
    prepare()
    points = in_child(act)
    assert points > 3
    kills = 0
    for after in (False, True):
        for number in range(1, points + 1):
            prepare()
            kills += in_child(act, die_at=number, after=after) == -1
            check()
    return kills


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    Path("rows").mkdir()
    written(Path("rows"), FIRST | LARGE)
    trainwright.data_add("rows")
    shutil.copytree("runs", "before")
    written(Path("rows"), SECOND | LARGE)
    trainwright.data_add("rows")
    shutil.copytree("runs", "both")
    return tmp_path


def restored(name: str) -> Callable[[], None]:
    """Return a function that makes the store what it was."""

    def restore() -> None:
        shutil.rmtree("runs")
        shutil.copytree(name, "runs")

    return restore


def objects() -> set[str]:
    """Return the keys of all objects but those of the log."""
    found = (path for path in Path("runs/.data").rglob("*") if path.is_file())
    keys = {path.relative_to("runs/.data").as_posix() for path in found}
    return {key for key in keys if not key.startswith("names/")}


def content(version: str) -> dict[str, bytes]:
    shutil.rmtree("out", ignore_errors=True)
    return read(trainwright.data_get(version, "out"))


def test_killed_adds(here: Path) -> None:
    wanted = objects()

    def check() -> None:
        versions = [one["version"] for one in trainwright.data_log("rows")]
        assert versions in (["rows@v1"], ["rows@v2", "rows@v1"])
        assert content("rows@v1") == FIRST | LARGE
        if len(versions) == 2:
            assert content("rows@v2") == SECOND | LARGE
        trainwright.data_gc()
        assert len(versions) == 2 or content("rows@v1") == FIRST | LARGE
        assert trainwright.data_add("rows")["version"] == "rows@v2"
        assert content("rows@v2") == SECOND | LARGE
        trainwright.data_gc()
        assert objects() == wanted

    assert each_kill(lambda: trainwright.data_add("rows"), restored("before"), check) > 20


def test_killed_gets(here: Path) -> None:
    def prepare() -> None:
        for left in here.glob("got*"):
            shutil.rmtree(left)

    def check() -> None:
        if Path("got").exists():
            assert read(Path("got")) == FIRST | LARGE
        else:
            assert read(trainwright.data_get("rows@v1", "got")) == FIRST | LARGE

    assert each_kill(lambda: trainwright.data_get("rows@v1", "got"), prepare, check) >= 8


def test_killed_deletions(here: Path) -> None:
    def delete() -> None:
        trainwright.data_delete("rows@v1")
        trainwright.data_gc()

    restored("both")()
    delete()
    wanted = objects()

    def check() -> None:
        assert content("rows@v2") == SECOND | LARGE
        if trainwright.data_log("rows")[1]["deleted"] is None:
            assert content("rows@v1") == FIRST | LARGE
            trainwright.data_delete("rows@v1")
        with pytest.raises(InputError, match="was deleted by"):
            content("rows@v1")
        trainwright.data_gc()
        assert objects() == wanted
        assert content("rows@v2") == SECOND | LARGE

    assert each_kill(delete, restored("both"), check) > 20
