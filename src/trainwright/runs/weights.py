"""The weights that stand for a run, and its initial weights."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.digest import WEIGHTS_FILE, files_of, sha256_bytes, sha256_file
from trainwright.engine.checkpoint import RunCheckpoints
from trainwright.engine.history import best_evaluations
from trainwright.engine.state import evaluations_from_json
from trainwright.errors import CheckpointError, InputError, ModelError, RunNotFoundError
from trainwright.evaluation.metrics import mode_in
from trainwright.records.commit import Commit
from trainwright.records.data import DataDescription, StoredModel
from trainwright.records.initial_weights import LoadedWeights
from trainwright.records.listing import find_run, has_model
from trainwright.records.manifest import Manifest, Parent
from trainwright.records.run_dir import RunDir
from trainwright.records.whole_weights import (
    ENDINGS,
    INDEX,
    OF_TORCH,
    file_in_folder,
    files_in_index,
    is_weights,
)
from trainwright.runs.data.input_meaning import other_meaning
from trainwright.runs.run_config import read_config
from trainwright.runs.wiring import Components, run_checkpoints
from trainwright.safe_files import read_regular
from trainwright.storage.copies import download_all
from trainwright.types import DataInfo

log = logging.getLogger("trainwright")
_ADAPTERS = "adapter_config.json"  # beside the adapters of peft


def stored_model(run: RunDir) -> StoredModel:
    """Return the model that stands for a run: its best one if there is one, else its newest checkpoint.

    Raises:
        CheckpointError: A file that the predictions depend on is damaged.
        InputError: The run has no weights.
    """
    manifest = run.manifest()
    if manifest is not None and manifest.trainer:
        raise InputError(
            f"run {run.id} was made by {manifest.trainer.name}: "
            "name a safetensors file of its checkpoints instead"
        )
    download_all(run)
    commit, folder = _chosen(run)
    for name, sha256 in commit.run_files.items():
        _verify(run.path / Path(name).name, sha256)
    names = [Path(name).name for name in commit.run_files]
    data_file = next((name for name in names if name.startswith("data")), DataDescription.FILE)
    data = DataDescription.load(run.path / data_file)
    if data is None:
        raise CheckpointError(f"{run.path / data_file} is missing: it is unknown how the data were prepared")
    return StoredModel(folder, data, run.path / data_file)


def _chosen(run: RunDir) -> tuple[Commit, Path]:
    checkpoints = run_checkpoints(run)
    newest, complaints = checkpoints.resume.newest()
    step = _best_step(run, checkpoints, newest)
    if step is not None:
        best = checkpoints.best.load_step(step)
        return best, checkpoints.best.folder(best)
    if newest is None:
        reason = "; ".join(complaints) or f"it is {run.status()} and has no checkpoint yet"
        raise InputError(f"run {run.id} has no weights yet: {reason}; resume it first")
    return newest, checkpoints.resume.folder(newest)


def _verify(path: Path, sha256: str) -> None:
    try:
        matches = sha256_bytes(read_regular(path)) == sha256
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; predictions depend on it") from error
    if not matches:
        raise CheckpointError(f"{path} is not what the model was trained with: it was changed or is damaged")


def _best_step(run: RunDir, checkpoints: RunCheckpoints, newest: Commit | None) -> int | None:
    """Return the step of the best model: from the result if completed, else from the evaluations so far."""
    result = run.result()
    if result is not None and result.status == "completed":
        return result.best.step if result.best else None
    if newest is None:
        return None
    config = read_config(run, checked=False).config
    kept = config.checkpoint
    history = evaluations_from_json(checkpoints.resume.state(newest)["evaluations"])
    if newest.best:  # a fork has evaluations of its parent whose weights it does not have
        history = [evaluation for evaluation in history if evaluation.step in newest.best]
    mode = mode_in(config, kept.metric) if kept.mode == "auto" else kept.mode
    best = best_evaluations(history, kept.metric, mode, min(1, kept.save_top_k))
    return best[0].step if best else None


def initial_source(config: RunConfig, run: RunDir) -> Path | None:
    """Return the file or folder of weights, or the run directory, that `model.init_from` means.

    `last` is the run before this one.

    Raises:
        InputError: There is no such file or run.
    """
    if config.model.init_from is None:
        return None
    source = config.model.init_from.source
    if source.endswith(ENDINGS) and not Path(source).is_file():
        what = "is not a regular file" if Path(source).exists() else "does not exist"
        raise InputError(f"model.init_from: {source} {what}; name a file of weights, or a run")
    if is_weights(source):
        return Path(source).absolute()
    try:
        return find_run(source, run.path.parent.parent, before=run, fits=has_model).path
    except RunNotFoundError as error:
        if not Path(source).is_dir():
            raise
        raise InputError(
            f"model.init_from: the folder {source} is no run, and has no weights in it; name a folder that "
            "save_pretrained wrote, or a file"
        ) from error


def initialize(components: Components, source: Path) -> LoadedWeights | None:
    """Give a model the weights of `initial_source`, and return what it took, if that may be a part of them.

    A run that another version of our code computes otherwise may give them, as one with other data may: the
    new run depends on nothing of it but these tensors, whose digest is among its inputs.

    Raises:
        InputError: They are gone.
        ModelError: They do not fit the model.
    """
    if not source.exists():
        raise InputError(
            f"model.init_from: {source} does not exist any more, so there are no initial weights: put it "
            "back, or train a new run"
        )
    if is_weights(source):
        files = _files_of_source(source)
    else:
        _refuse_compressed(RunDir(source), components)
        stored = stored_model(RunDir(source))
        _refuse_shifted(stored.data.info, components)
        _refuse_other_meaning(stored.data, components)
        files = files_of(stored.folder, WEIGHTS_FILE)
    _refuse_choice(components, files)
    with tempfile.TemporaryDirectory() as folder:
        for i, file in enumerate(files):  # a process that has parts of the model reads these alone
            ending = ".pt" if file.name.endswith(OF_TORCH) else ".safetensors"
            name = Path(WEIGHTS_FILE).with_suffix(f".{i}{ending}" if i else ending)
            (Path(folder) / name).symlink_to(file)
        if source.is_dir() and (adapters := source / _ADAPTERS).is_file():
            (Path(folder) / _ADAPTERS).symlink_to(adapters)
        try:
            loaded = components.learner.begin(Path(folder))
        except ModelError as error:
            raise ModelError(f"model.init_from: {_named(components)}: {error}") from error
    if loaded is not None and components.inputs.world.is_main:
        log.info("initial weights of %s: %s", _named(components), loaded.in_words())
    return loaded


def file_hashes(source: Path | None) -> dict[str, str]:
    """Return the SHA-256 of each file that initial weights are in, by name; of those of a run, none.

    These are known by the digest of the weights.
    """
    if source is None or not source.exists() or not is_weights(source):
        return {}
    return {file.name: sha256_file(file) for file in _files_of_source(source)}


def _files_of_source(source: Path) -> Sequence[Path]:
    """Return the files that have the weights of a file, an index or a folder.

    Raises:
        InputError: One is not there.
    """
    file = (file_in_folder(source) if source.is_dir() else None) or source
    if not file.name.endswith(INDEX):
        return [file]
    try:
        files = files_in_index(file)
    except (OSError, ValueError) as error:
        raise InputError(f"model.init_from: {error}") from error
    if missing := [one for one in files if not one.is_file()]:
        raise InputError(f"model.init_from: {source} names {missing[0].name}, which is not there")
    return files


def _named(components: Components) -> str:
    given = components.config.model.init_from
    return given.source if given is not None else "the weights"


def _refuse_choice(components: Components, files: Sequence[Path]) -> None:
    """Refuse options that only some frameworks have: those that choose tensors, and files of PyTorch.

    Raises:
        ModelError: The framework of the model has them not.
    """
    given, name = components.config.model.init_from, components.config.model.type
    if components.framework.capabilities.chooses_weights or given is None:
        return
    if given.skip or given.rename or not given.strict:
        raise ModelError(
            f"model.init_from: skip, rename and strict are for models of PyTorch, which {name} is not; leave "
            "them out"
        )
    if files and files[0].name.endswith(OF_TORCH):
        raise ModelError(f"model.init_from: {files[0].name} is a file of PyTorch, which {name} is not")


def _refuse_compressed(run: RunDir, components: Components) -> None:
    """Refuse the weights of a compressed run, which are no floats, or not all of them.

    Raises:
        ModelError: They are.
    """
    manifest = run.manifest()
    if manifest is not None and manifest.compression is not None and manifest.parent is not None:
        raise ModelError(
            f"model.init_from: {_named(components)} is compressed; name its parent, run "
            f"{manifest.parent.run_id}"
        )


def _refuse_shifted(info: Mapping[str, Any], components: Components) -> None:
    """Refuse the weights of a run whose target was shifted, for one that gives values as they are.

    Raises:
        ModelError: They are.
    """
    offset = DataInfo.from_json(info).target_offset
    if offset and not components.bundle.info.target_offset:
        raise ModelError(
            f"model.init_from: {_named(components)} learned its target less "
            f"{', '.join(map(repr, offset))}, so that its outputs are not values of this target: train it "
            "anew, or subtract a constant from the target in both runs"
        )


def _refuse_other_meaning(before: DataDescription, components: Components) -> None:
    """Refuse the weights of a run whose features or classes are not those of this one.

    Raises:
        ModelError: They are not.
    """
    given, capabilities = components.config.model.init_from, components.framework.capabilities
    known, now = before.info.get("classes") or (), components.bundle.info.classes or ()
    # The head begins anew, or is left out.
    has_other_head = capabilities.chooses_weights and (len(known) != len(now) or bool(given and given.skip))
    if reason := other_meaning(before, components.bundle, with_classes=not has_other_head):
        raise ModelError(
            f"model.init_from: the weights of {_named(components)} stand for other data: "
            f"{reason}; leave out model.init_from (--warm-start of retrain), or train on rows that have the "
            "same ones"
        )


def named_source(run: RunDir, before: Manifest | None, parent: Parent | None) -> str | None:
    """Return the source of the initial weights that an earlier manifest names.

    A resume or a repetition takes them from where the first attempt did.
    """
    if before is None and parent is not None and parent.relation == "reproduce":
        before = RunDir(run.path.parent / parent.run_id).manifest()
    return before.init_from if before else None
