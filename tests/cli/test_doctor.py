import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from commandline import Command

from trainwright.api import doctor as module

REQUIRED = [
    "click>=8",
    'torch<3,>=2; extra == "torch"',
    "nowhere-to-be-had>=1; extra == 'torch'",
    'ruff; extra == "dev"',
]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One extra of two libraries, of which one is not there; and no torch that has to be asked."""
    monkeypatch.setattr(metadata, "requires", lambda _: REQUIRED)
    answer = subprocess.CompletedProcess([], 0, '{"cuda": ["H200, 139 GiB"], "threads": 2}\n', "")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: answer)


def test_what_there_is(command: Command, tmp_path: Path) -> None:
    done = command("doctor", "--runs-dir", tmp_path / "not" / "yet", "--json")
    found = done.json
    assert (done.code, found["problems"]) == (0, [])
    assert found["extras"] == {
        "torch": {
            "libraries": {"torch": metadata.version("torch"), "nowhere-to-be-had": None},
            "untried": {},
            "install": "pip install 'torch<3,>=2' 'nowhere-to-be-had>=1'",
        }
    }
    assert found["devices"]["cuda"] == ["H200, 139 GiB"]
    assert found["runs"]["writable"]
    assert found["runs"]["free_bytes"] > 0


def test_as_lines(command: Command, tmp_path: Path) -> None:
    out = command("doctor", "--runs-dir", tmp_path).out
    assert "nowhere-to-be-had missing: pip install 'torch<3,>=2' 'nowhere-to-be-had>=1'" in out
    assert "cuda:0: H200" in out
    assert out.endswith("no problems found\n")


@pytest.mark.parametrize(
    ("wanted", "is_said"),
    [
        ("<26,>=18", True),
        ("<26.0.2,>=18", False),
        (">=26.0.1.post0", False),
        ("<26.0.1", True),
        ("!=3", False),
    ],
)
def test_a_version_that_was_not_tried_is_said(
    wanted: str, is_said: bool, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: [f'pyarrow{wanted}; extra == "tabular"'])
    monkeypatch.setattr(module, "installed_version", lambda _: "26.0.1+local")
    done = command("doctor", "--runs-dir", tmp_path)
    assert f"pyarrow 26.0.1+local{f' (tried: {wanted})' if is_said else ''}\n" in done.out
    assert done.code == 0


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (subprocess.CompletedProcess([], 1, "", "Traceback\nOSError: libc10.so: cannot open\n"), "libc10.so"),
        (subprocess.CompletedProcess([], -11, "", ""), "said nothing"),
        (subprocess.TimeoutExpired("python", 120), "did not answer"),
    ],
)
def test_a_broken_torch_is_a_problem(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Any, problem: str
) -> None:
    def ask(*_: object, **__: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module.subprocess, "run", ask)
    done = command("doctor", "--runs-dir", tmp_path)
    assert done.code == 1
    assert problem in done.out.split("problem: ")[1]


def test_a_place_that_cannot_be_written_is_a_problem(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = command("doctor", "--runs-dir", tmp_path / "file" / "runs")
    assert done.code == 1
    assert "--runs-dir" in done.out


@pytest.mark.soak
def test_processes_measure_how_they_reach_each_other(command: Command) -> None:
    measured = command("doctor", "--distributed", "2", "--json").json["distributed"]
    assert (measured["processes"], len(measured["hosts"])) == (2, 2)
    assert measured["clock_skew_seconds"] < 1  # it is one clock
    assert 0 < measured["latency_seconds"] < 4 * (25 << 18) / measured["bytes_per_second"]
