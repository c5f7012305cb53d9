"""The names of checkpoints: which there are, and what they say."""

from __future__ import annotations

from typing import Literal

from trainwright import plugins
from trainwright.records.run_dir import RunDir
from trainwright.storage.log import committed
from trainwright.storage.run_files import MANIFEST


def checkpoint_names(run: RunDir, kind: Literal["checkpoints", "best"] = "checkpoints") -> list[str]:
    """Return the names of the checkpoints (or best models) that the log of a run names, oldest first.

    An exported run has no log: all that have a manifest count. The files are not read.
    """
    names = committed(plugins.adapter("store", "file")(run.path), kind)
    if names is None:
        return sorted(path.parent.name for path in run.path.glob(f"{kind}/*/{MANIFEST}"))
    return sorted(names)


def attempt_of(name: str) -> int:
    """Return the attempt in a checkpoint's name."""
    return int(name.rpartition("-a")[2])


def step_of(name: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(name.split("-")[1])
