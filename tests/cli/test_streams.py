"""A run outlives whoever reads its output, and its output cannot steer a terminal."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commandline import Command, write_run

from trainwright.api.documents import json_document
from trainwright.callbacks.progress import line
from trainwright.cli.output import table
from trainwright.redact import printable

TRAINWRIGHT = f"{sys.executable} -m trainwright"
EVIL = "a\x1b[31mred\x1b]0;title\x07\x9b2Jb\u202egnp\r\x08c\x1bPq#\x1b\\d\x85e"
SHOWN = "aredbgnpcde"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A config, and the digest of a run of it that was read to its end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    x = np.random.default_rng(0).normal(size=(150, 3))
    np.savez(folder / "rows.npz", X=x, y=(x[:, 0] + x[:, 1] > 0).astype(int))
    config = folder / "rows.yaml"
    config.write_text(
        f"data: {{path: '{folder}/rows.npz'}}\nmodel: xgboost\ntraining: {{epochs: 30, threads: 1}}\nlogging: {{every_n_steps: 1}}\n",
        encoding="utf-8",
    )
    done = shell(f"{TRAINWRIGHT} train rows.yaml --runs-dir runs", folder)
    assert done.returncode == 0, done.stdout
    return config, digest(folder / "runs")


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-o", "pipefail", "-c", command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def digest(runs: Path) -> str:
    (result,) = runs.glob("*/*/result.json")
    text = result.read_text(encoding="utf-8")
    assert '"completed"' in text
    assert (result.parent / "report.html").exists()
    found = re.search(r'"digest": ?"(\w+)"', text)
    assert found is not None, text
    return found[1]


SAID = ("trainwright: columns: ", "trainwright: positive class: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending",
    ["2>&1 | head -1", ">&-", "2>&-"],
)
def test_a_run_goes_on_when_nobody_reads(undisturbed: tuple[Path, str], tmp_path: Path, ending: str) -> None:
    config, expected = undisturbed
    done = shell(f"{TRAINWRIGHT} train {config} --runs-dir runs {ending}", tmp_path)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not line.startswith(SAID)] == []
    assert digest(tmp_path / "runs") == expected


@pytest.mark.slow
def test_what_libraries_print_does_not_end_up_in_the_files_of_a_run(
    undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    """With descriptor 1 closed, the first file that a process opens would be what C libraries print to."""
    (tmp_path / "noisy.py").write_text(
        "import os\nimport numpy as np\n"
        "class Noisy(tuple): pass\n"
        "def load():\n    os.write(1, b'NOISE'); os.write(2, b'NOISE')\n"
        "    x = np.arange(300.0).reshape(150, 2) % 7\n    return x, np.arange(150) % 2\n",
        encoding="utf-8",
    )
    words = f"train {undisturbed[0]} data.type=noisy:load data.path=null --runs-dir runs"
    done = shell(f"{TRAINWRIGHT} {words} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if b"NOISE" in path.read_bytes()] == []


@pytest.mark.slow
def test_a_terminal_that_hangs_up_ends_no_run(undisturbed: tuple[Path, str], tmp_path: Path) -> None:
    config, expected = undisturbed
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "trainwright", "train", str(config), "--runs-dir", str(tmp_path / "runs")]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as run:
        os.close(theirs)
        os.read(ours, 1)  # it has begun to print
        os.close(ours)
        assert run.wait(300) == 0
    assert digest(tmp_path / "runs") == expected


@pytest.mark.slow
def test_an_error_without_a_reader_keeps_its_exit_code(tmp_path: Path) -> None:
    assert shell(f"{TRAINWRIGHT} train nowhere.yaml 2>&1 | true", tmp_path).returncode == 2
    assert shell(f"{TRAINWRIGHT} train nowhere.yaml >&- 2>&-", tmp_path).returncode == 2


@pytest.mark.slow
def test_a_result_that_does_not_fit_on_the_disk_is_an_error(runs_dir: Path, tmp_path: Path) -> None:
    done = shell(f"{TRAINWRIGHT} runs list --runs-dir {runs_dir} > /dev/full", tmp_path)
    assert done.returncode == 1
    assert "No space left" in done.stderr


def test_printable() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("naïve – 日本語 🚂\tx\n") == "naïve – 日本語 🚂\tx\n"


def test_tables_and_progress_lines_are_printable() -> None:
    assert table([(EVIL, 1.0), ("x\ny", "z")], ("name", EVIL)) == [
        f"name         {SHOWN}",
        f"{SHOWN}  1",
        "x y          z",
    ]
    assert line({"event": "best"}, {"metric": EVIL}) == f"trainwright event=best metric={SHOWN}"


def test_json_keeps_every_character_and_shows_none_that_steers(command: Command, tmp_path: Path) -> None:
    write_run(tmp_path, "20260101-000000-aaaaaa", status=EVIL)
    done = command("runs", "list", "--runs-dir", tmp_path, "--json")
    assert not UNSAFE.search(done.out)
    assert EVIL in json.loads(json_document([EVIL]))


@pytest.mark.parametrize(
    "words", [["runs", "list"], ["runs", "show", "last"], ["runs", "compare", "last", "20260101"]]
)
def test_names_from_a_run_directory_do_not_steer_the_terminal(
    command: Command, tmp_path: Path, words: list[str]
) -> None:
    write_run(tmp_path, "20260101-000000-aaaaaa")
    path = write_run(tmp_path, "20260102-000000-bbbbbb")
    for name in ("result.json", "manifest.json"):
        text = (path / name).read_text(encoding="utf-8")
        escaped = text.replace("test_accuracy", "test_\\u001b[31m\\u202eaccuracy").replace(
            "digits", "\\u009b2Jd"
        )
        (path / name).write_text(escaped, encoding="utf-8")
    done = command(*words, "--runs-dir", tmp_path)
    assert done.code == 0
    assert not UNSAFE.search(done.out + done.err)


@pytest.mark.parametrize("words", [[], ["--debug"]])
def test_messages_do_not_steer_the_terminal(command: Command, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "rows.csv").write_text(f'"{EVIL}",y\n' + "1,0\n2,1\n" * 20, encoding="utf-8")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"data: {{type: csv, path: '{tmp_path}/rows.csv', target: z}}\nmodel: mlp\n", encoding="utf-8"
    )
    done = command("train", config, *words)
    assert done.code == 2
    assert not UNSAFE.search(done.out + done.err)
