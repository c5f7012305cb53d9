"""Choose files of a run by their names: for its store, and for a command."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from trainwright.records.lineage import FOLDER as INITIAL
from trainwright.records.manifest import Manifest

MANIFEST = Manifest.FILE  # of the run, and of a checkpoint
_CHECKPOINTS = ("checkpoints/", "best/")
_RECORDS = re.compile(
    r"(config\.yaml|created\.json|parent\.json|manifest\.json|result\.json|attempts/\d+\.json)"
)
_LOCAL = re.compile(r"(lock|log/.*|(.*/)?\..*|journal/.*\.summary)")  # stays on the local disk
_APPENDED = re.compile(r"journal/\d+\.jsonl")


def is_safe(name: str) -> bool:
    """Return whether a file with this name, or an object with this key, can be one of a run in a store."""
    parts = PurePosixPath(name).parts
    is_inside = bool(parts) and parts[0] != "/" and ".." not in parts
    return is_inside and name.isprintable() and not _LOCAL.fullmatch(name)


def is_appended(name: str) -> bool:
    """Return whether a file grows during training, line by line."""
    return _APPENDED.fullmatch(name) is not None


def is_of_checkpoint(name: str) -> bool:
    """Return whether a file is part of a checkpoint or best model; the initial state is none."""
    return name.startswith(_CHECKPOINTS)


# --- what a command wants


def is_record(name: str) -> bool:
    """Return whether a file is one of the records that a list of runs is made from."""
    return _RECORDS.fullmatch(name) is not None


def is_small(name: str) -> bool:
    """Return whether a file is no part of a checkpoint, nor of the initial state."""
    return not name.startswith((*_CHECKPOINTS, f"{INITIAL}/"))


def is_no_checkpoint(name: str) -> bool:
    """Return whether a file is no part of a checkpoint of the run's own; the initial state is none."""
    return not is_of_checkpoint(name)


def is_no_tensor(name: str) -> bool:
    """Return whether a file is needed to choose a checkpoint: all are, but the tensors of checkpoints."""
    return not is_of_checkpoint(name) or name.endswith(f"/{MANIFEST}")


def is_any(name: str) -> bool:  # noqa: ARG001 - a filter, as those above
    """Return True: all files are wanted."""
    return True
