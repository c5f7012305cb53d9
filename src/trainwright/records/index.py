"""A cache of the summaries of all runs in a folder. It makes long lists fast, and may be deleted."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.digest import write_atomically
from trainwright.errors import CheckpointError
from trainwright.records.checkpoint_names import checkpoint_names
from trainwright.records.copies import refresh
from trainwright.records.facts import facts
from trainwright.records.run_dir import RunDir
from trainwright.records.status import ENDED, ShownStatus
from trainwright.safe_open import read_regular

log = logging.getLogger("trainwright")
Json = dict[str, Any]
FILE = ".index.json"
FORMAT = 3  # a line with the checksum of what follows it
_SETTLED_SECONDS = 2.0  # a younger file may change again without another time of change


class _Entry(NamedTuple):
    """A run's summary, and the times of change (ns) and size that it holds for."""

    signature: list[int]
    summary: Json


def summaries(runs_dir: Path, experiment: str | None = None) -> list[Json]:
    """Return the result, path and status of each run, newest first; a damaged run has the status `damaged`.

    Runs that have ended are remembered in an index file, and looked at again when their attempts or result
    change.

    Args:
        runs_dir: The folder of the run directories.
        experiment: Only the runs of this experiment.
    """
    refresh(runs_dir)
    known = _load(runs_dir)
    entries = dict(_entries(runs_dir, experiment, known))
    changed = [key for key, entry in entries.items() if known.get(key) != entry]
    if changed or (experiment is None and len(known) != len(entries)):
        _save(runs_dir, entries if experiment is None else known | entries)
    return [
        entries[key].summary for key in sorted(entries, key=lambda key: key.rpartition("/")[2], reverse=True)
    ]


def _entries(
    runs_dir: Path, experiment: str | None, known: dict[str, _Entry]
) -> Iterator[tuple[str, _Entry]]:
    for folder in _folders(runs_dir):
        if experiment not in (None, folder.name):
            continue
        for path in _folders(Path(folder)):
            key, signature = f"{folder.name}/{path.name}", _signature(path.path)
            entry = known.get(key)
            if signature is None:
                continue
            if entry is None or entry.signature != signature or not _is_settled(entry):
                entry = _Entry(signature, _summary(RunDir(Path(path))))
            yield key, entry


def _folders(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _signature(path: str) -> list[int] | None:
    """Return what changes when a run's status or result does; None where there is no run."""
    if not os.path.exists(f"{path}/config.yaml"):  # noqa: PTH110 - called for thousands of runs
        return None
    signature = []
    for name in ("attempts", "result.json"):
        try:
            stat = os.stat(f"{path}/{name}")  # noqa: PTH116
            signature += [stat.st_mtime_ns, stat.st_size]
        except OSError:
            signature += [0, 0]
    return signature


def _is_settled(entry: _Entry) -> bool:
    newest = max(entry.signature[0], entry.signature[2])
    return entry.summary["status"] in ENDED and time.time() - newest / 1e9 > _SETTLED_SECONDS


def _summary(run: RunDir) -> Json:
    identity = {"run_id": run.id, "experiment": run.experiment, "path": str(run.path)}
    status: ShownStatus
    try:
        result, status = run.result(), run.status()
        lineage = run.lineage()
        parent = {"parent": lineage.brief()} if lineage else {}
        known = result.to_json() if result else {}
        if "steps" not in known and (steps := _committed_steps(run)) is not None:
            known["steps"] = steps
        return known | identity | {"status": status} | parent | facts(run)
    except CheckpointError as error:
        status = "damaged"
        return identity | {"status": status, "error": str(error)}


def _committed_steps(run: RunDir) -> int | None:
    """Return the steps of the newest checkpoint of a run that has no result yet."""
    steps = [int(match[1]) for name in checkpoint_names(run) if (match := re.match(r"step-(\d+)", name))]
    return max(steps, default=None)


def _load(runs_dir: Path) -> dict[str, _Entry]:
    """Read the index; one that is missing, damaged or of another folder is as good as empty."""
    try:
        checksum, _, content = read_regular(runs_dir / FILE).partition(b"\n")
        if checksum != _checksum(content):
            return {}
        data = json.loads(content)
        if data["format"] != FORMAT or data["runs_dir"] != str(runs_dir.absolute()):
            return {}
        entries = {
            key: _Entry(list(signature), summary) for key, (signature, summary) in data["runs"].items()
        }
        return {key: entry for key, entry in entries.items() if isinstance(entry.summary.get("status"), str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _save(runs_dir: Path, entries: dict[str, _Entry]) -> None:
    kept = {key: [entry.signature, entry.summary] for key, entry in entries.items() if _is_settled(entry)}
    data = {"format": FORMAT, "runs_dir": str(runs_dir.absolute()), "runs": kept}
    content = json.dumps(data, separators=(",", ":")).encode()
    try:
        write_atomically(runs_dir / FILE, _checksum(content) + b"\n" + content)
    except OSError as error:
        log.debug("the index of %s is not written: %s", runs_dir, error)


def _checksum(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()
