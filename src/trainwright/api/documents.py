"""The JSON documents of runs, studies and configs: what the commands print with `--json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import CheckpointError
from trainwright.redact import UNPRINTABLE, redacted, redacted_value

if TYPE_CHECKING:
    from trainwright.config import Resolved
    from trainwright.records.manifest import Manifest
    from trainwright.records.mesh_estimate import MeshPlan
    from trainwright.runs.run import Run
    from trainwright.studies.study import StudyView


def json_document(document: Any) -> str:
    """Return a document as JSON.

    A number that is not finite becomes the text `NaN`, `Infinity` or `-Infinity`, as in the journal.
    """
    text = json.dumps(_plain(document), indent=2, allow_nan=False, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as a JSON document: the content of `result.json`, its path and its current status."""
    identity = {"run_id": run.id, "experiment": run.experiment, "path": str(run.path)}
    return run.result | identity | {"status": run.status, "report": existing(run.path / "report.html")}


def study_document(study: StudyView) -> dict[str, Any]:
    """Return a study as a JSON document: the content of `result.json`, its path and its current status."""
    identity = {"study_id": study.id, "path": str(study.path), "status": study.status}
    return study.result | identity | {"report": existing(study.path / "report.html")}


def run_details(run: Run, manifest: Manifest | None, problems: Sequence[str]) -> dict[str, Any]:
    """Return all that is known of a run: its document, inputs, decisions, parent, URL, sizes and problems.

    Args:
        run: The run.
        manifest: Its manifest; None before it is written.
        problems: A line for each file that is damaged.
    """
    from trainwright.records.artifact import exports_of
    from trainwright.records.run_dir import RunDir
    from trainwright.storage.sizes import sizes_of
    from trainwright.storage.urls import run_url

    problems = list(problems)
    try:
        exports = exports_of(RunDir(run.path))
    except CheckpointError as error:
        exports = []
        problems.append(str(error))
    return run_document(run) | {
        "exports": exports,
        "manifest": manifest.to_json() if manifest else {},
        "decisions": run.decisions,
        "parent": run.parent,
        "url": run_url(run.path),
        "bytes": sizes_of(run.path),
        "problems": problems,
    }


def config_check(file: str, resolved: Resolved) -> dict[str, Any]:
    """Return what is to be said of a config that is right."""
    notes = [*resolved.notes, *resolved.warnings()]
    if resolved.config.data is None:
        notes.append(
            "there is no data section: `trainwright train` needs one; from Python, data can be passed as "
            "objects"
        )
    return {
        "file": file,
        "ok": True,
        "notes": [redacted(note) for note in notes],
        "computation_hash": resolved.computation_hash(),
    }


def config_values(resolved: Resolved) -> dict[str, Any]:
    """Return each value of a resolved config by its dotted key, with its origin."""
    return {
        key: {"value": redacted_value(key, value), "source": str(resolved.sources.get(key, "default"))}
        for key, value in resolved.flat().items()
    }


def mesh_plan(plan: MeshPlan) -> dict[str, Any]:
    """Return the estimates of a config: its own mesh (or the nearest), then others, the best first."""
    per_machine = plan.machines.per_machine
    return {
        "parameters": plan.parameters,
        "assumed": asdict(plan.machines),
        "meshes": [
            {
                "mesh": one.mesh._asdict(),
                "distributed": one.lines(per_machine),
                "memory_bytes": {**one.memory._asdict(), "total": one.memory.total},
                "stage": one.stage,
                "fits": one.fits,
                "sent_bytes": one.sent,
                "bubble": one.bubble,
                "seconds": one.seconds,
                "has_other_bits": one.has_other_bits,
            }
            for one in (plan.own, *plan.others)
        ],
        "refused": plan.refused,
        "changes": plan.changes,
    }


def existing(path: Path) -> str | None:
    """Return the path as text, or None if nothing exists there."""
    return str(path) if path.exists() else None
