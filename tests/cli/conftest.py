"""The command line in this process, and runs to look at."""

from pathlib import Path

import pytest
from commandline import CONFIG, Command, Outcome, write_run

from trainwright.cli.main import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `trainwright WORDS`."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """Two completed runs and one that failed."""
    folder = tmp_path / "runs"
    write_run(folder, "20260101-000000-aaaaaa")
    write_run(
        folder, "20260102-000000-bbbbbb", digest="d2", accuracy=0.95, config=CONFIG.replace("[32]", "[64]")
    )
    write_run(folder, "20260103-000000-cccccc", status="failed")
    return folder
