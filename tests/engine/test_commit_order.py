"""What reaches the disk before what, recorded call by call.

A power cut between any two leaves nothing that looks whole.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import Bench
from test_loop import saved_state

from small_runs import Crash, CrashAt

Event = tuple[
    str, Path, Any
]  # ("fsync" of a file or a folder, "move", "link" or "delete"; what; its size, or whence it came)
MANIFEST = re.compile(r"(checkpoints|best)/step-(\d+)-a\d+/manifest\.json")
VALIDATION = [3, 2, 4]  # of the evaluations after the steps 7, 14 and 21
BEST = {
    0: set[int](),
    5: set[int](),
    10: {7},
    15: {14},
    20: {14},
    23: {14},
}  # by the step of a checkpoint, by hand


class Disk:
    """Records what a process asks of the disk, in the order in which it asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self._record(monkeypatch, "fsync", lambda fd: [self._fsync(fd)])
        for name in ("link", "replace", "rename"):
            kind = "link" if name == "link" else "move"
            self._record(monkeypatch, name, lambda a, b, kind=kind, **_: _placed(kind, Path(b), Path(a)))
        for name in ("unlink", "remove"):
            self._record(monkeypatch, name, lambda *a, **k: [self._delete(*a, **k)])

    def _record(self, monkeypatch: pytest.MonkeyPatch, name: str, events: Any) -> None:
        real = getattr(os, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self.events += events(*args, **kwargs)
            return result

        monkeypatch.setattr(os, name, recorded)

    def _fsync(self, fd: int) -> Event:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        size = None if stat.S_ISDIR(os.fstat(fd).st_mode) else os.fstat(fd).st_size
        return "fsync", path, size

    def _delete(self, path: Any, *, dir_fd: int | None = None) -> Event:
        folder = Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        return "delete", folder / path, None

    def at(self, kind: str, path: Path, before: int) -> int | None:
        """Return when something last happened to a path before the event with this number."""
        times = [i for i in range(before) if self.events[i][:2] == (kind, path)]
        return times[-1] if times else None

    def published(self) -> Iterator[tuple[int, str, int, Path]]:
        """Yield (number of the event, kind, step, folder) of each checkpoint that was published."""
        for i, (kind, path, _) in enumerate(self.events):
            if (match := MANIFEST.search(str(path))) and kind in ("link", "move"):
                yield i, match[1], int(match[2]), path.parent


def _placed(kind: str, path: Path, source: Path) -> list[Event]:
    """Return the events of a file or a folder that was moved or linked: those of the files in it, too."""
    inside = [(kind, file, source / file.name) for file in path.iterdir()] if path.is_dir() else []
    return [(kind, path, source), *inside]


@pytest.fixture(params=["in one piece", "resumed"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """What a run of 23 steps asked of the disk; a resumed one died after step 12."""
    bench = Bench(tmp_path, VALIDATION, waits=True, checkpoint={"keep_last": 1})
    disk = Disk(monkeypatch)
    state = None
    if request.param == "resumed":
        with pytest.raises(Crash):
            bench.run(callbacks=[CrashAt(12)])
        assert bench.saver is not None
        bench.saver.drain()
        bench.saver.close()
        state = saved_state(tmp_path)
    bench.run(state)
    assert [step for _, kind, step, _ in disk.published() if kind == "checkpoints"] == [5, 10, 15, 20, 23]
    return disk


def test_every_file_is_durable_before_it_is_put_in_place(disk: Disk, tmp_path: Path) -> None:
    moved = [event for event in disk.events if event[0] in ("move", "link")]
    assert len(moved) >= 5 * 3, "weights, state and manifest of each checkpoint"
    for i, (kind, path, source) in enumerate(disk.events):
        if kind in ("move", "link"):
            size = path.stat().st_size if path.is_file() else None
            assert source.is_relative_to(tmp_path), "another file system: neither a rename nor a link reaches"
            synced = disk.at("fsync", source, i)
            assert synced is not None, f"{path} was put in place before it was on the disk"
            assert size in (None, disk.events[synced][2]), f"{path} grew after it was brought to the disk"


def test_a_checkpoint_appears_whole_and_is_durable_before_anything_else_is_done(disk: Disk) -> None:
    for i, _, _, folder in disk.published():
        staging = disk.events[i][2].parent
        inside = [
            n
            for n, (kind, path, _) in enumerate(disk.events)
            if kind in ("move", "link") and path.parent == folder
        ]
        moved = inside[0] - 1
        assert disk.events[moved] == ("move", folder, staging)
        assert inside == [moved + 1 + n for n in range(len(inside))], "something was put into it later"
        assert len(inside) >= 2, "the manifest, and what it names"
        files = [disk.at("fsync", disk.events[n][2], moved) for n in inside]
        names = disk.at("fsync", staging, moved)
        assert names is not None
        assert all(one is not None and one < names for one in files), "a file is not on the disk yet"
        assert disk.events[inside[-1] + 1][:2] == ("fsync", folder.parent), "its name is not on the disk"
        assert disk.at("fsync", folder.parent.parent, moved) is not None, "nor is that of its folder"


def test_the_journal_is_durable_up_to_the_step_of_a_checkpoint(disk: Disk, tmp_path: Path) -> None:
    for i, kind, step, folder in disk.published():
        if kind == "checkpoints":
            segment = tmp_path / "journal" / f"{folder.name.split('-a')[1]}.jsonl"
            synced = disk.at("fsync", segment, i)
            assert synced is not None
            durable = segment.read_bytes()[: disk.events[synced][2]].decode()
            records = [json.loads(line) for line in durable.splitlines()]
            last = max(r["first"] + len(r["values"]) - 1 for r in records if r["kind"] == "losses")
            assert last >= step, "a resume would have a gap in its journal"


def test_a_checkpoint_never_stands_without_the_best_models_that_it_knows_of(disk: Disk) -> None:
    there: dict[str, set[int]] = {"checkpoints": set(), "best": set()}
    for kind, path, _ in disk.events:
        if match := MANIFEST.search(str(path)):
            steps = there[match[1]]
            (steps.discard if kind == "delete" else steps.add)(int(match[2]))
            newest = max(there["checkpoints"], default=0)
            assert BEST[newest] <= there["best"], f"the best models of step {newest} are not there"
    assert 14 in there["best"]


def test_an_older_checkpoint_goes_after_a_newer_one_is_durable_and_its_manifest_goes_first(
    disk: Disk,
) -> None:
    deleted = [
        (i, path)
        for i, (kind, path, _) in enumerate(disk.events)
        if kind == "delete" and path.parent.parent.name == "checkpoints"
    ]
    folders = {path.parent for _, path in deleted}
    assert len(folders) == 4, "keep_last is 1"
    for folder in folders:
        first = min(i for i, path in deleted if path.parent == folder)
        assert disk.events[first][1].name == "manifest.json"
        newer = [
            i
            for i, kind, _, other in disk.published()
            if kind == "checkpoints" and other.name > folder.name and i < first
        ]
        assert newer
        assert any(disk.events[i][:2] == ("fsync", folder.parent) for i in range(newer[-1], first))


def test_what_is_left_is_what_the_last_manifest_says(disk: Disk, tmp_path: Path) -> None:
    (folder,) = (tmp_path / "checkpoints").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        *(f["name"] for f in manifest["files"]),
    }
    assert not list(tmp_path.glob(".staging-*"))
