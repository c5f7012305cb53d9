"""No file of a run directory is opened through a symbolic link, and nothing but regular files is waited for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import trainwright
from small_runs import SMALL, preempted
from trainwright.cli.boundary import run as command
from trainwright.digest import write_file
from trainwright.errors import TrainwrightError
from trainwright.reports.html import write_report
from trainwright.runs.run import Run
from trainwright.safe_files import open_regular, write_atomically
from trainwright.trackers.feed.state import State

LINK = "it is a symbolic link, which is not followed"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainwright.train(SMALL, {"training.max_steps": 7}, runs_dir=tmp_path_factory.mktemp("made")).path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preempted(tmp_path_factory.mktemp("begun"), at=7).path


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Run:
    path = tmp_path / "runs" / made.parent.name / made.name
    shutil.copytree(made, path)
    return Run(path)


def linked(file: Path, to: Path) -> Path:
    """Moves a file or folder out of its run, and leaves a link to it; returns where it is now."""
    outside = to / f"outside-{file.name}"
    shutil.move(file, outside)
    file.symlink_to(outside)
    return outside


def newest(run: Run) -> Path:
    return max((run.path / "checkpoints").iterdir())


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (path, *path.rglob("*")) if file.is_file()}


LOADED: dict[str, Callable[[Run], Path]] = {
    "config": lambda run: run.path / "config.yaml",
    "manifest": lambda run: run.path / "manifest.json",
    "data": lambda run: next(run.path.glob("data*.json")),
    "result": lambda run: run.path / "result.json",
}


@pytest.mark.parametrize("kind", LOADED)
@pytest.mark.parametrize("other", ["link", "pipe", "device"])
def test_what_a_prediction_needs_is_read_from_regular_files(
    kind: str, other: str, copy: Run, tmp_path: Path
) -> None:
    file = LOADED[kind](copy)
    if other == "link":
        linked(file, tmp_path)
    else:
        file.unlink()
        os.mkfifo(file) if other == "pipe" else file.symlink_to("/dev/zero")
    with pytest.raises(TrainwrightError, match=r"not a regular file|symbolic link"):
        trainwright.load(copy)


@pytest.mark.parametrize("what", ["weights", "manifest", "more", "folder", "all"])
def test_checkpoints_are_read_from_regular_files(what: str, begun: Path, tmp_path: Path) -> None:
    """A checkpoint with a link in it is damaged.

    An older one is resumed from, and where all are links, none.
    """
    path = tmp_path / "runs" / begun.parent.name / begun.name
    shutil.copytree(begun, path)
    run = Run(path)
    folder = newest(run)
    if what == "more":
        (folder / "extra.bin").symlink_to("/etc/passwd")
    else:
        names = {"weights": "weights.safetensors", "manifest": "manifest.json", "folder": "", "all": ".."}
        outside = linked((folder / names[what]).resolve(), tmp_path)
    if what == "all":
        kept = sorted(outside.iterdir())
        with pytest.raises(TrainwrightError, match=f"checkpoints: {LINK}"):
            trainwright.resume(run)
        assert sorted(outside.iterdir()) == kept, "nothing was pruned there"
        return
    assert trainwright.resume(run).status == "completed"
    if what == "weights":
        assert outside.exists()


@pytest.mark.parametrize("name", ["lock", "journal", "attempts", "evaluation"])
def test_nothing_is_written_through_a_link(name: str, begun: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs" / begun.parent.name / begun.name
    shutil.copytree(begun, path)
    if name == "evaluation":
        (path / name).mkdir()
    outside = linked(path / name, tmp_path)
    before = contents(outside)
    with pytest.raises((TrainwrightError, OSError), match=r"symbolic link|regular file"):
        trainwright.resume(Run(path))
    assert contents(outside) == before


def test_a_report_replaces_a_link_and_leaves_alone_what_it_leads_to(copy: Run, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    report = copy.path / "report.html"
    report.unlink()
    report.symlink_to(precious)
    (copy.path / f".report.html.{os.getpid()}.tmp").symlink_to(precious)
    with pytest.raises(OSError, match=LINK):
        write_report(copy.path)
    assert write_report(copy.path) == report
    assert not report.is_symlink()
    assert precious.read_text() == "mine"


def test_a_report_shows_nothing_through_a_link(copy: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"kind": "secret-of-mine"}\n')
    for name in ("config.yaml", "evaluation/test.json", "evaluation/explanation.json", "journal/0001.jsonl"):
        (copy.path / name).unlink(missing_ok=True)
        (copy.path / name).symlink_to(tmp_path / "secret")
    page = trainwright.report(copy, output=tmp_path / "report.html").read_text()
    assert "secret-of-mine" not in page
    assert page.count("symbolic link") >= 3


def test_trackers_write_nothing_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run" / "trackers").mkdir(parents=True)
    (tmp_path / "run" / "trackers" / "0-toy.tmp").symlink_to(precious)
    with pytest.raises(OSError, match=LINK):
        State().save(tmp_path / "run" / "trackers" / "0-toy.json")
    assert precious.read_text() == "mine"


def test_a_run_directory_may_itself_be_a_link(made: Path, tmp_path: Path) -> None:
    """As it is where runs are kept on a larger disk; so may each folder above it."""
    shutil.copytree(made.parent, tmp_path / "disk" / "small")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "small").symlink_to(tmp_path / "disk" / "small")
    (tmp_path / "runs" / "linked").mkdir()
    (tmp_path / "runs" / "linked" / made.name).symlink_to(made)
    for experiment in ("small", "linked"):
        run = tmp_path / "runs" / experiment / made.name
        assert "test_loss" in trainwright.evaluate(run)
        assert trainwright.report(run).is_file()


def test_a_listing_passes_over_a_run_with_links(
    made: Path, copy: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, copy.path.parent / "20200101-000000-aaaaaa")
    for name in ("lock", "manifest.json", "result.json", "attempts/0001.json"):
        linked(copy.path / name, tmp_path)
    assert command(["runs", "list", "--runs-dir", str(copy.path.parents[1])]) == 0
    assert "20200101-000000-aaaaaa" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["rb", "wb", "xb", "ab", "r+b"])
@pytest.mark.parametrize("where", ["file", "folder"])
def test_open_regular(mode: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"mine")
    path = tmp_path / "inside" / "file"
    if where == "file":
        path.parent.mkdir()
        path.symlink_to(tmp_path / "real" / "file")
    else:
        path.parent.symlink_to(tmp_path / "real")
        if mode == "xb":
            path = path.with_name("new")
    with pytest.raises(OSError, match=LINK) as caught:
        open_regular(path, mode, depth=2)
    assert caught.value.filename == str(path)
    assert (tmp_path / "real" / "file").read_bytes() == b"mine"
    assert len(list((tmp_path / "real").iterdir())) == 1


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "r+b"])
def test_a_pipe_is_not_waited_for(mode: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"not a regular file|No such device"):
        open_regular(tmp_path / "pipe", mode)


def test_open_regular_says_what_is_missing(tmp_path: Path) -> None:
    for path, depth in ((tmp_path / "a", 1), (tmp_path / "a" / "b", 2), (tmp_path / "a" / "b", 1)):
        with pytest.raises(FileNotFoundError):
            open_regular(path, depth=depth)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path / "folder")


def test_writers_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=LINK):
        write_file(tmp_path / "link", b"new")
    write_atomically(tmp_path / "link", b"new")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "link").read_bytes()) == (False, b"new")
    assert (tmp_path / "mine").read_bytes() == b"mine"
    (tmp_path / "inside").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(OSError, match=LINK):
        write_atomically(tmp_path / "inside" / "file", b"new", depth=2)
    assert not list((tmp_path / "elsewhere").iterdir())
