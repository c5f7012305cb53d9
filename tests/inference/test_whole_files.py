"""Files and folders that are there only when they are whole."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trainwright.errors import InputError
from trainwright.inference.whole_files import write_whole

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from trainwright.inference.whole_files import write_whole

    def write(made):
        made.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    write_whole(Path(sys.argv[1]), write)
"""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def text(content: str) -> object:
    return lambda made: made.write_text(content)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path, other = tmp_path / "out[1].csv", tmp_path / "out[1].csv.more"
    path.write_text("old")
    command = [sys.executable, "-c", textwrap.dedent(KILLED)]
    for one in (path, other):
        assert subprocess.run([*command, str(one)], check=False).returncode == -9
    assert path.read_text() == "old"
    assert len(names_in(tmp_path)) == 3
    write_whole(path, text("new"))
    assert path.read_text() == "new"
    (left,) = set(names_in(tmp_path)) - {path.name}
    assert left.startswith(f".{other.name}."), "that of another file is another's business"


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    def write(made: Path) -> None:
        made.write_text("first")
        write_whole(tmp_path / "out.csv", text("second"))
        assert (tmp_path / "out.csv").read_text() == "second"

    write_whole(tmp_path / "out.csv", write)
    assert (tmp_path / "out.csv").read_text() == "first"
    assert names_in(tmp_path) == ["out.csv"]


def test_a_folder_takes_the_place_of_a_folder_alone(tmp_path: Path) -> None:
    def folder(made: Path) -> None:
        made.mkdir()
        (made / "new").touch()

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    write_whole(tmp_path / "model", folder)
    assert names_in(tmp_path / "model") == ["new"]
    with pytest.raises(InputError, match="model cannot be written: Is a directory"):
        write_whole(tmp_path / "model", text("file"))
    assert names_in(tmp_path) == ["model"]
    assert names_in(tmp_path / "model") == ["new"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("old")

    def fail(made: Path) -> None:
        made.write_text("half")
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        write_whole(tmp_path / "out.csv", fail)
    assert (tmp_path / "out.csv").read_text() == "old"
    assert names_in(tmp_path) == ["out.csv"]
