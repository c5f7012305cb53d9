"""The versions of data that runs hold: none can be repeated without its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainwright.config.env import DATA_PATHS
from trainwright.config.versions import EMBEDDED
from trainwright.errors import CheckpointError
from trainwright.records.listing import all_runs
from trainwright.records.pins import Pin
from trainwright.records.run_dir import RunDir
from trainwright.runs.run_config import read_config


def holders(runs_dir: Path) -> dict[str, list[str]]:
    """Return the ids of the runs in a folder that hold versions kept beside them, by the version.

    A run that has not begun holds what its config names.
    """
    found: dict[str, list[str]] = {}
    for run in all_runs(runs_dir):
        for revision in dict.fromkeys(_held(run)):
            found.setdefault(revision, []).append(run.id)
    return found


def _held(run: RunDir) -> Iterator[str]:
    with contextlib.suppress(CheckpointError):  # a damaged run can prove nothing
        if (manifest := run.manifest()) is not None:
            pins: list[Pin] = [*manifest.data.pins.values()]
            yield from (pin.revision for pin in pins if pin.kind == EMBEDDED)
        else:
            found = read_config(run, checked=False).versions()
            yield from (one for key, one in found.items() if key in DATA_PATHS)


def released(chosen: Sequence[RunDir], runs_dir: Path) -> list[str]:
    """Return the versions that no run holds any more once some runs are deleted."""
    gone = {run.id for run in chosen}
    return [one for one, runs in holders(runs_dir).items() if runs and gone.issuperset(runs)]
