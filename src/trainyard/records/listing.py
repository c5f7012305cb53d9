"""Finding runs in a folder of runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainyard.errors import RunNotFoundError
from trainyard.records.run_dir import RunDir


def default_runs_dir() -> Path:
    """Return `TRAINYARD_RUNS`, or `runs` in the working directory."""
    return Path(os.environ.get("TRAINYARD_RUNS") or "runs")


def all_runs(runs_dir: Path) -> Iterator[RunDir]:
    """Return the runs in a folder, newest first (run ids begin with the time in UTC)."""
    folders = (path.parent for path in runs_dir.glob("*/*/config.yaml"))
    return (RunDir(path) for path in sorted(folders, key=lambda path: path.name, reverse=True))


def find_run(name: str, runs_dir: Path, before: RunDir | None = None) -> RunDir:
    """Return the run that `name` means: a path, an id, a unique prefix of an id, or `last`.

    Args:
        name: What the user called it.
        runs_dir: The folder of the run directories.
        before: Only runs older than this one are meant, unless they are named by their path.

    Raises:
        RunNotFoundError: There is none, or more than one.
    """
    if (Path(name) / "config.yaml").is_file():
        return RunDir(Path(name))
    runs = [run for run in all_runs(runs_dir) if before is None or _age(run) < _age(before)]
    if name == "last" and runs:
        return max(runs, key=_age)
    matches = [run for run in runs if run.id == name]
    matches = matches or [run for run in runs if name and run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        first = ", ".join(run.id for run in matches[:5]) + (" ..." if len(matches) > 5 else "")
        raise RunNotFoundError(f"{name!r} is the beginning of {len(matches)} runs: {first}; give more of it")
    known = f"the newest is {runs[0].id}" if runs else "it holds no runs"
    raise RunNotFoundError(
        f"no run {name!r} in {runs_dir.absolute()} ({known}); "
        "give a path, an id, the beginning of an id, or `last`"
    )


def _age(run: RunDir) -> tuple[str, int]:
    """Return what orders runs by time; the ids of one second differ in their random ending only."""
    return run.id[:15], run.config_file.stat().st_mtime_ns
