"""Races of processes that resume one run, for `make test` and `make soak`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import trainwright
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run
from trainwright.runs.wiring import run_checkpoints
from trainwright.testing.warm import WarmProcesses
from warm_commands import warm


def two_processes(environment: Mapping[str, str]) -> list[WarmProcesses]:
    """Two processes that fork `stopping.main`, so that a race does not begin with imports."""
    return [warm("stopping", environment=environment, number=number) for number in range(2)]


def race(
    both: list[WarmProcesses], name: str, folder: Path, caches: list[Path], verb: str = "--resume"
) -> list[CompletedProcess[str]]:
    """Let two processes resume a run at one moment, or make its first attempt (`--work`)."""
    folder.mkdir()
    (folder / "meeting").mkdir()

    def resume(i: int) -> CompletedProcess[str]:
        meeting = [str(folder / "meeting"), str(i), "2"]
        return both[i].run("SIGCONT", "999", verb, name, str(caches[i]), *meeting, folder=folder)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(resume, range(2)))


def check_race(done: list[CompletedProcess[str]], run: Run, whole: Run) -> None:
    """One process won and came to the bits; the other ended with the message; all that is named is whole."""
    codes = sorted(one.returncode for one in done)
    assert codes == [0, 2], [one.stderr for one in done]
    (loser,) = [one for one in done if one.returncode == 2]
    message = loser.stderr.strip().splitlines()[-1]
    assert any(
        text in message for text in ("owned by another process", "just taken", "taken the run over")
    ), message
    (winner,) = [one for one in done if one.returncode == 0]
    assert winner.stdout.split() == ["completed", whole.digest]
    assert run.result["metrics"] == whole.metrics
    folder = RunDir(run.path)
    commit, complaints = run_checkpoints(folder).newest()
    assert complaints == []
    assert commit is not None
    assert commit.step == whole.result["steps"]
    trainwright.load(run)
