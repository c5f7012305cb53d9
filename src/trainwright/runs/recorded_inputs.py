"""Write down the inputs of a run before its first step, and compare them with those at every other start."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.datasets.base import DataBundle
from trainwright.errors import ChangedInputsError, CheckpointError
from trainwright.records.commit import Commit
from trainwright.records.data import DataDescription
from trainwright.records.manifest import DeterminismRecord, Difference, Manifest
from trainwright.records.run_dir import RunDir
from trainwright.runs.code_identity import code_inputs
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.data.positive import positive_in_words
from trainwright.runs.frameworks import framework_name
from trainwright.runs.manifest import check_unchanged, code_roots, describe_data
from trainwright.runs.objects import Objects
from trainwright.runs.request import Request

log = logging.getLogger("trainwright")


def check_manifest(request: Request, before: Manifest | None, commit: Commit | None) -> None:
    """Refuse to continue from a checkpoint if it is unknown what inputs it was made from.

    Raises:
        ChangedInputsError: The run has a checkpoint and no manifest, and the request does not allow that.
        CheckpointError: The manifest is that of another config than the checkpoint.
    """
    if commit is None:
        return
    if before is not None:
        made = commit.run_files.get(request.run.config_file.name)
        if made not in (None, before.config_sha256, *before.earlier_configs):
            raise CheckpointError(
                f"run {request.run.id}: checkpoint {commit.name} was made by another config than the one "
                f"that {Manifest.FILE} names; put {Manifest.FILE} and {request.run.config_file.name} back"
            )
        return
    missing = f"run {request.run.id} has checkpoints but no {Manifest.FILE}: its inputs cannot be compared"
    if not request.allow_change:
        raise ChangedInputsError(
            f"{missing}\nput the file back, or resume with --allow-change, which records today's inputs"
        )
    log.warning("%s", missing)


def record_inputs(run: RunDir, manifest: Manifest, bundle: DataBundle, *, provable: bool) -> Manifest:
    """Write the data description and the manifest, and return the manifest.

    Args:
        run: The run.
        manifest: Its inputs.
        bundle: Its data.
        provable: False if an earlier manifest was lost: the tier is `statistical` then.
    """
    if not provable:
        lowered = DeterminismRecord(tier="statistical", reason="the manifest was missing at a resume")
        manifest = manifest.model_copy(update={"determinism": lowered})
    if bundle.columns:
        log.info("columns: %s", bundle.columns, extra={"once": True})
    if (positive := positive_in_words(bundle)) is not None:
        log.info("positive class: %s", positive, extra={"once": True})
    for warning in bundle.warnings:
        log.warning("data: %s", warning)
    described = describe_data(bundle).encoded()
    run.write_encoded({manifest.data_file: described, Manifest.FILE: manifest.encoded()})
    return manifest


def compare_inputs(
    request: Request,
    before: Manifest,
    now: Manifest,
    bundle: DataBundle,
    *,
    neutral: Collection[str],
    data_file: str,
) -> Manifest:
    """Compare the inputs with those of the manifest, and return the manifest with accepted changes.

    Args:
        request: What is asked for: the run, its config, and whether inputs may have changed.
        before: The inputs of before.
        now: The inputs now.
        bundle: The data now.
        neutral: What of the environment changes no bits.
        data_file: Where data that have changed are described, beside those of before.

    Raises:
        ChangedInputsError: Inputs have changed, and the request does not allow that.
    """
    file = before.data_file if before.data.hash == now.data.hash else data_file
    now = now.model_copy(update={"data_file": file})
    manifest = check_unchanged(request.run, before, now, allow_change=request.allow_change, neutral=neutral)
    if manifest.data_file != before.data_file or _is_lost(request.run, manifest.data_file):
        request.run.write(manifest.data_file, describe_data(bundle))
    return manifest


def check_alike(request: Request, now: Manifest) -> None:
    """Compare the inputs of a new run with those of another run of its study.

    Raises:
        ChangedInputsError: They have changed in the meantime, and the request does not allow that.
    """
    before = request.alike.manifest() if request.alike is not None else None
    changed = before.shared_differences(now) if before is not None else []
    if changed and not request.allow_change:
        assert before is not None
        listed = "\n".join(f"  {one}" for one in changed)
        raise ChangedInputsError(
            f"run {request.run.id} cannot begin: the inputs of its study have changed since run "
            f"{before.run_id}\n{listed}\nput them back, or start a new study"
        )
    for one in changed:
        log.warning("changed since runs of this study were trained: %s", one)


def changed_since(
    before: Manifest, resolved: Resolved, objects: Objects, data: DataBundle
) -> list[Difference]:
    """Return how the data and the code of a config differ from those of another run of the study."""
    framework = plugins.adapter("framework", framework_name(resolved.config, objects.model))
    roots = code_roots(resolved, objects, framework, {})
    code = code_inputs(roots, Path.cwd(), model=objects.model, data=data.code)
    own = {"computation": resolved.computation(), "data": data.once(data_inputs), "code": code}
    return before.shared_differences(before.model_copy(update=own))


def _is_lost(run: RunDir, data_file: str) -> bool:
    """Return whether the description of the data is missing or damaged, and say that it is written again."""
    try:
        problem = "" if DataDescription.load(run.path / data_file) else f"{run.path / data_file} is missing"
    except CheckpointError as error:
        problem = str(error)
    if problem:
        log.warning("%s; it is written again, as the data are the same", problem)
    return bool(problem)
