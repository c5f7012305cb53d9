"""The part of a run that predictions need, as a small run directory of its own.

It holds the weights, how raw rows become features, and what the config says of the model: no journal, no
optimizer state, no trackers, and no paths with secrets. `trainwright.load(folder)` reads it like any run.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from trainwright.config.emit import emit
from trainwright.config.env import VARIABLE
from trainwright.digest import WEIGHTS_FILE, sha256_bytes
from trainwright.errors import CheckpointError, InputError
from trainwright.records.checkpoint_names import checkpoint_names, step_of
from trainwright.records.commit import DEPTH, NAME, Commit
from trainwright.records.data import DataDescription
from trainwright.records.manifest import Manifest
from trainwright.records.result import BestModel, Result
from trainwright.records.run_dir import RunDir
from trainwright.records.whole_weights import write_whole
from trainwright.redact import redacted
from trainwright.safe_files import read_regular, refuse_links
from trainwright.storage.run_files import MANIFEST


def stored_weights(run: RunDir) -> Path:
    """Return the checkpoint that stands for a completed run: that of its best model, else its newest one.

    Raises:
        InputError: There is none.
    """
    result = run.result()
    best = result.best if result else None
    kind: Literal["best", "checkpoints"] = "best" if best else "checkpoints"
    names = [
        name
        for name in checkpoint_names(run, kind)
        if NAME.fullmatch(name) and (best is None or step_of(name) == best.step)
    ]
    if not names:
        raise InputError(f"run {run.id} has no weights to export")
    return run.path / kind / names[-1]


def weights_digest(weights: Path) -> str:
    """Return the digest of the weights in the folder of a checkpoint.

    Raises:
        CheckpointError: Its manifest is damaged.
    """
    return _commit(weights).digest


def write_portable(run: RunDir, weights: Path, target: Path) -> Path:
    """Write the portable part of a run into a new folder, and return the folder.

    Args:
        run: The run.
        weights: The folder of the checkpoint whose weights are taken.
        target: The folder to make.

    Raises:
        InputError: The run was trained with a model object.
        CheckpointError: The manifest of the checkpoint is damaged.
        OSError: A file cannot be read or written.
    """
    manifest = run.require_manifest()
    if "model" in manifest.objects:
        raise InputError(
            f"{manifest.objects_in_words(['model'])}, which no file holds; name it by its import path"
        )
    target.mkdir()
    config = emit(portable_config(run)).encode()
    data = read_regular(run.path / manifest.data_file)
    (target / "config.yaml").write_bytes(config)
    (target / DataDescription.FILE).write_bytes(data)
    run_files = {"config.yaml": sha256_bytes(config), DataDescription.FILE: sha256_bytes(data)}
    step, digest = _write_weights(weights, target, run_files)
    changes = {"config_sha256": run_files["config.yaml"], "data_file": DataDescription.FILE, "command": []}
    manifest.model_copy(update=changes | {"working_directory": "."}).save(target / Manifest.FILE)
    recorded = run.result() or Result(status="completed")
    best = recorded.best or BestModel(step=step, digest=digest)
    recorded.with_values(status="completed", best=best).save(target / Result.FILE)
    return target


def _write_weights(source: Path, target: Path, run_files: dict[str, str]) -> tuple[int, str]:
    """Copy the weights of a checkpoint, and write a manifest that covers them and `run_files`.

    Returns:
        The step and the digest of the weights.
    """
    commit = _commit(source)
    files = [file for file in commit.files if file.stem == Path(WEIGHTS_FILE).stem]
    folder = target / "best" / source.name
    folder.mkdir(parents=True)
    if [file.name for file in files] == [WEIGHTS_FILE]:
        _copy(source / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    else:
        files = [write_whole(source, folder / WEIGHTS_FILE)]
    portable = replace(commit, files=files, run_files=run_files, best=frozenset())
    (folder / MANIFEST).write_bytes(portable.manifest())
    return commit.step, commit.digest


def _commit(folder: Path) -> Commit:
    """Return what the manifest in the folder of a checkpoint says."""
    try:
        return Commit.read(folder.name, read_regular(folder / MANIFEST, depth=DEPTH))
    except ValueError as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error


def _copy(source: Path, target: Path) -> None:
    """Copy a file that never changes: by a second name where the file system can do that."""
    refuse_links(source, depth=DEPTH)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def portable_config(run: RunDir) -> dict[str, Any]:
    """Return the config without trackers, secrets and variables."""
    from ruamel.yaml import YAML

    text = read_regular(run.checked_config_file()).decode()
    values: dict[str, Any] = YAML(typ="safe", pure=True).load(redacted(text))
    kept = {key: _without_variables(value) if key == "data" else value for key, value in values.items()}
    return kept | {"tracking": []}


def _without_variables(value: Any) -> Any:
    """Return a section without `${env:NAME}`: the variables are not set where the model is used."""
    if isinstance(value, dict):
        return {key: _without_variables(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_without_variables(child) for child in value]
    return VARIABLE.sub(lambda match: match[1], value) if isinstance(value, str) else value
