"""Where a run works: its working directory, and where its code may be imported from."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainyard.records.run_dir import RunDir


def working_directory(run: RunDir) -> Path:
    """Where the run was started: what its config names by relative paths lies there."""
    attempts = run.attempts()
    recorded = Path(attempts[0].working_directory) if attempts else Path.cwd()
    return recorded if recorded.is_dir() else Path.cwd()


def own_code(run: RunDir) -> list[Path]:
    """Where code may be imported from for a run that may come from elsewhere: the caller's own working directory.

    And the run's, where the caller's lies in it.
    """
    here, recorded = Path.cwd(), working_directory(run)
    return [here, *([recorded] if recorded != here and here.is_relative_to(recorded) else [])]


@contextlib.contextmanager
def working_in(folder: Path, code: Sequence[Path] | None = None) -> Iterator[None]:
    """Works in a folder; modules can be imported from the folders in `code` (default: from this one)."""
    before = list(sys.path)
    # "" in it (notebooks have that) would mean the new folder.
    during = [str(Path(place).absolute()) for place in (*map(str, code or [folder]), *before)]
    with contextlib.chdir(folder):
        sys.path[:] = during
        try:
            yield
        finally:
            added = [place for place in sys.path if place not in during]
            sys.path[:] = [*added, *before]
