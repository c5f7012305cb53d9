"""What holds for every command: help, errors, exit codes, signals, imports."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commandline import Command, write_run

import trainwright
from trainwright import api
from trainwright.cli import main
from trainwright.engine.signals import STATUS_OF, Stopped
from trainwright.errors import CheckpointError, InputError, RunNotFoundError
from trainwright.runs.run import Run

COMMANDS = [
    "init",
    "train",
    "resume",
    "reproduce",
    "evaluate",
    "predict",
    "report",
    "runs",
    "config",
    "doctor",
]


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_help_names_every_command(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    assert [name for name in COMMANDS if not re.search(rf"^  {name}  +\S", done.out, re.MULTILINE)] == []


@pytest.mark.parametrize("group", ["", "runs", "studies", "config"])
def test_lists_of_commands_have_whole_sentences(command: Command, group: str) -> None:
    """Of a first sentence that is too long, click shows the beginning and `...`."""
    _, _, listed = command(*group.split(), "--help").out.partition("Commands:\n")
    assert listed
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


@pytest.mark.parametrize("name", [*COMMANDS, "runs list", "runs compare", "config schema"])
def test_every_command_explains_itself(command: Command, name: str) -> None:
    done = command(*name.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: trainwright {name}")


def test_version(command: Command) -> None:
    assert command("--version").out == f"trainwright {trainwright.__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    done = python("""
        import sys
        from trainwright.cli.main import main
        assert main(["--help"]) == 0
        heavy = {"numpy", "pydantic", "torch", "rich", "ruamel", "jinja2"} & set(sys.modules)
        assert not heavy, heavy
        verbs = {name for name in sys.modules if name.startswith("trainwright.api.")}
        assert verbs <= {"trainwright.api.documents", "trainwright.api.doctor"}, verbs
    """)
    assert done.returncode == 0, done.stderr


def test_config_check_imports_no_framework(config: Path) -> None:
    done = python(f"""
        import sys
        from trainwright.cli.main import main
        assert main(["config", "check", {str(config)!r}]) == 0
        heavy = {{"torch", "sklearn", "pandas", "pyarrow", "mlflow", "jinja2"}} & set(sys.modules)
        assert not heavy, heavy
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [["trian"], ["train"], ["train", "a.yaml", "--epochs", "3"], ["evaluate", "last", "--split", "dev"]],
)
def test_wrong_usage(command: Command, words: list[str]) -> None:
    done = command(*words)
    assert done.code == 2
    assert done.out == ""
    *usage, error = done.err.splitlines()
    assert usage[0].startswith("Usage: trainwright")
    assert error.startswith("trainwright: error: ")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "train", fail)


def stopped_run() -> Stopped:
    """A second Ctrl-C, which ended the processes of a run in the middle of a step."""
    error = Stopped("interrupted")
    error.run = SimpleNamespace(id="r1")
    return error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("no data section"), 2, "trainwright: error: no data section\n"),
        (RunNotFoundError("no run 'x'"), 2, "trainwright: error: no run 'x'\n"),
        (CheckpointError("none is whole"), 1, "trainwright: error: none is whole\n"),
        (
            PermissionError(13, "Permission denied", "runs"),
            1,
            "trainwright: error: runs: Permission denied\n",
        ),
        (KeyboardInterrupt(), 130, "trainwright: interrupted\n"),
        (Stopped("preempted"), 75, "trainwright: preempted before the first step"),
        (Stopped("interrupted"), 130, "trainwright: interrupted before the first step"),
        (stopped_run(), 130, "trainwright: interrupted; resume with: trainwright resume r1"),
        (KeyError("weight"), 1, "trainwright: internal error: KeyError: 'weight' ("),
    ],
)
def test_errors_are_one_message_and_an_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    failing(monkeypatch, error)
    done = command("train", "a.yaml", "--quiet")
    assert (done.code, done.out) == (code, "")
    assert done.err.lstrip().startswith(message)  # after the terminal's ^C, click begins a new line
    assert done.err.strip().count("\n") == 0


def test_an_unknown_error_names_its_place_and_the_way_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ValueError("two\nlines"))
    done = command("train", "a.yaml")
    assert re.search(
        r"internal error: ValueError: two lines \(.*test_main\.py:\d+\); run again with --debug\n", done.err
    )


@pytest.mark.parametrize("words", [["--debug", "train", "a.yaml"], ["train", "a.yaml", "--debug"]])
def test_debug_shows_the_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    failing(monkeypatch, InputError("no data section"))
    done = command(*words)
    assert done.code == 2
    assert "Traceback (most recent call last)" in done.err


def test_with_json_an_error_is_a_document_too(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("model: mlp\ntraining: {epoch: 3}\n", encoding="utf-8")
    done = command("config", "check", bad, "--json")
    assert done.code == 2
    assert done.json["error"]["exit_code"] == 2
    assert done.json["error"]["message"].startswith("config: 1 problem\n")
    assert [(problem["line"], problem["path"]) for problem in done.json["error"]["problems"]] == [
        (2, "training.epoch")
    ]


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("preempted", 75), ("interrupted", 130)])
def test_the_status_of_the_run_is_the_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, code: int
) -> None:
    path = write_run(tmp_path, "20260101-000000-aaaaaa", status=status)
    monkeypatch.setattr(api, "train", lambda *_, **__: Run(path))
    done = command("train", "a.yaml", "--runs-dir", tmp_path)
    assert done.code == code
    resume = f"resume with: trainwright resume 20260101-000000-aaaaaa --runs-dir {tmp_path}\n"
    assert done.out.endswith(resume) == (status != "completed")
    assert str(path) in done.out


def test_a_reader_that_went_away_changes_nothing(runs_dir: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "trainwright", "runs", "list", "--runs-dir", str(runs_dir)]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_while_loading_ends_cleanly(
    config: Path, tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    done = python(
        f"""
        import os, sys
        from trainwright.cli.main import main

        class Preemption:
            def find_spec(self, name, *_):
                if name == "trainwright.api":
                    os.kill(os.getpid(), {int(signum)})

        sys.meta_path.insert(0, Preemption())
        sys.exit(main(["train", {str(config)!r}]))
        """,
        cwd=tmp_path,
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert re.fullmatch(rf"trainwright: \w+ by {signum.name}: nothing had started.*\n", done.stderr)
    assert not (tmp_path / "runs").exists()


def test_the_signals_that_stop_a_run_are_those_that_stop_its_loading() -> None:
    with main._early_signals(["train", "a.yaml"]):
        assert {signal.getsignal(signum) for signum in STATUS_OF} == {main._end_at_once}
    with main._early_signals(["runs", "list"]):
        assert main._end_at_once not in {signal.getsignal(signum) for signum in STATUS_OF}


def test_handlers_are_put_back(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    failing(monkeypatch, InputError("x"))
    command("train", "a.yaml")
    assert signal.getsignal(signal.SIGTERM) == before


def test_log_lines_go_to_stderr_and_quiet_keeps_warnings(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_run(tmp_path, "20260101-000000-aaaaaa")

    def train(*_: object, **__: object) -> Run:
        logging.getLogger("trainwright").info("config: translated")
        logging.getLogger("trainwright").warning("data: constant column")
        return Run(path)

    monkeypatch.setattr(api, "train", train)
    done = command("train", "a.yaml", "--json")
    assert done.err == "trainwright: config: translated\ntrainwright: warning: data: constant column\n"
    assert json.loads(done.out)["run_id"] == path.name
    assert (
        command("train", "a.yaml", "--json", "--quiet").err == "trainwright: warning: data: constant column\n"
    )


def test_a_working_directory_that_was_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main.main(["runs", "list", "--runs-dir", "runs"]) == 1
    assert "error: the working directory no longer exists: change to another one\n" in capsys.readouterr().err
