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

from trainwright.errors import CheckpointError, OtherFormatError
from trainwright.records.checkpoint_names import checkpoint_names
from trainwright.records.manifest import Manifest
from trainwright.records.result import AttemptRecord, Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import ENDED, ShownStatus
from trainwright.safe_files import read_regular, write_atomically
from trainwright.storage.copies import refresh
from trainwright.storage.run_files import is_record, is_small
from trainwright.storage.seals import problems
from trainwright.storage.urls import url_of

log = logging.getLogger("trainwright")
Json = dict[str, Any]
FILE = ".index.json"
FORMAT = 4  # a line with the checksum of what follows it
_SETTLED_SECONDS = 2.0  # a younger file may change again without another time of change


_WATCHED = (
    Result.FILE,
    "config.yaml",
    Manifest.FILE,
    "attempts",
    "journal",
)  # a folder changes with the names in it
_DATA_SECTION = re.compile(r"^data:\n((?:  .*\n)+)", re.MULTILINE)
_PATH = re.compile(r"^  (?:path|train_path): (\S.*)$", re.MULTILINE)


class _Entry(NamedTuple):
    """A run's summary, and the times of change (ns) and sizes that it holds for.

    They are those of `_WATCHED`, then those of `files`: its journal and the records of its attempts.
    """

    signature: list[int]
    files: list[str]
    summary: Json


def summaries(runs_dir: Path, experiment: str | None = None) -> list[Json]:
    """Return the result, path and status of each run, newest first; a damaged run has the status `damaged`.

    What is not as the run wrote it is in `problems`, and named in a warning. Runs that have ended are
    remembered in an index file, and looked at again when their attempts, journal or result change.

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
    newest_first = sorted(entries, key=lambda key: key.rpartition("/")[2], reverse=True)
    found = [entries[key].summary for key in newest_first]
    for summary in found:
        for problem in summary.get("problems", ()):
            log.warning("run %s: %s", summary["run_id"], problem)
    return found


def _entries(
    runs_dir: Path, experiment: str | None, known: dict[str, _Entry]
) -> Iterator[tuple[str, _Entry]]:
    for folder in _folders(runs_dir):
        if experiment not in (None, folder.name):
            continue
        for path in _folders(Path(folder)):
            if not os.path.exists(f"{path.path}/config.yaml"):  # noqa: PTH110 - called for thousands of runs
                continue
            entry = known.get(key := f"{folder.name}/{path.name}")
            if (
                entry is None
                or entry.signature != _signature(path.path, entry.files)
                or not _is_settled(entry)
            ):
                files = _files(Path(path))
                signature = _signature(path.path, files)  # before it is read: what changes then is read again
                entry = _Entry(signature, files, _summary(RunDir(Path(path))))
            yield key, entry


def _folders(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _files(path: Path) -> list[str]:
    """Return the names of a run's files that are watched one by one."""
    found = [*path.glob("journal/*.jsonl"), *path.glob("attempts/*.json")]
    return sorted(file.relative_to(path).as_posix() for file in found)


def _signature(path: str, files: list[str]) -> list[int]:
    """Return what changes when a run's status, result, attempts or journal do."""
    signature = []
    for name in (*_WATCHED, *files):
        try:
            stat = os.stat(f"{path}/{name}")  # noqa: PTH116
            signature += [stat.st_mtime_ns, stat.st_size]
        except OSError:
            signature += [0, 0]
    return signature


def _is_settled(entry: _Entry) -> bool:
    newest = max(entry.signature[::2])
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
        # Of a run in a store, a list downloads the records alone.
        found = problems(run, is_record if url_of(run.path.parent.parent) else is_small)
        damage = {"problems": found} if found else {}
        return known | identity | {"status": status} | parent | facts(run) | damage
    except CheckpointError as error:
        status = "other-version" if isinstance(error, OtherFormatError) else "damaged"
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
            key: _Entry(list(signature), list(files), summary)
            for key, (signature, files, summary) in data["runs"].items()
        }
        return {key: entry for key, entry in entries.items() if isinstance(entry.summary.get("status"), str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _save(runs_dir: Path, entries: dict[str, _Entry]) -> None:
    kept = {key: list(entry) for key, entry in entries.items() if _is_settled(entry)}
    data = {"format": FORMAT, "runs_dir": str(runs_dir.absolute()), "runs": kept}
    content = json.dumps(data, separators=(",", ":")).encode()
    try:
        write_atomically(runs_dir / FILE, _checksum(content) + b"\n" + content)
    except OSError as error:
        log.debug("the index of %s is not written: %s", runs_dir, error)


def _checksum(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()


def facts(run: RunDir) -> dict[str, Any]:
    """Return `model`, `data`, `duration` (s) and `gpu_hours` of a run, as far as they are known.

    The duration is that of all its attempts together, start-up included; GPU hours count each process that
    computed on another device than a CPU. A crashed attempt counts in neither: when it ended is not known.

    Raises:
        CheckpointError: The manifest is damaged.
    """
    manifest = run.manifest()
    computation = manifest.computation if manifest else {}
    attempts = run.attempts()
    running = run.is_owned()
    spans = list(_spans(attempts, is_running=running))
    return {
        "model": computation.get("model.type"),
        "data": _data(run, computation.get("data.type")),
        "duration": sum(seconds for _, seconds in spans) if spans else None,
        "gpu_hours": sum(seconds / 3600 * one.processes for one, seconds in spans if _on_gpu(one, manifest)),
    }


def _spans(attempts: list[AttemptRecord], *, is_running: bool) -> Iterator[tuple[AttemptRecord, float]]:
    """Yield each attempt whose duration is known, in seconds."""
    for attempt in attempts:
        end = attempt.ended
        if end is None and is_running and attempt is attempts[-1]:
            end = time.time()
        if end is not None and attempt.started:
            yield attempt, max(0.0, end - attempt.started)


def _on_gpu(attempt: AttemptRecord, manifest: Manifest | None) -> bool:
    environment = attempt.environment
    if environment is None and attempt.ended is None and manifest is not None:
        environment = manifest.environment  # as a rule, it is recorded at the end
    device = environment.framework.get("device", "cpu") if environment else "cpu"
    return not device.casefold().startswith("cpu")


def _data(run: RunDir, kind: str | None) -> str | None:
    """Return the file of the training rows, or the type of the data.

    The path is no part of the computation, so it is looked up in the config: reading all of that would take
    too long for thousands of runs.
    """
    try:
        section = _DATA_SECTION.search(run.checked_config_file().read_text(encoding="utf-8"))
    except (OSError, UnicodeError):
        return kind
    path = _PATH.search(section[1]) if section else None
    if path is None or path[1] in ("null", "~"):
        return kind
    text = path[1]
    if text[0] == '"':
        try:
            text = str(json.loads(text))
        except ValueError:
            return kind
    return text.strip("'").rstrip("/").rpartition("/")[2] or kind
