"""What a list of runs says of each: its model, its data, and how long which devices worked for it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from trainwright.records.manifest import Manifest
from trainwright.records.result import AttemptRecord
from trainwright.records.run_dir import RunDir

_DATA_SECTION = re.compile(r"^data:\n((?:  .*\n)+)", re.MULTILINE)
_PATH = re.compile(r"^  (?:path|train_path): (\S.*)$", re.MULTILINE)


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
