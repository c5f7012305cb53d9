"""Open the trained model of a run for prediction, evaluation, explanation and export."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import DataBundle, Split
from trainwright.errors import CheckpointError, InputError, ModelError
from trainwright.frameworks.base import Compressed, Framework, ModelInputs
from trainwright.inference.predictor import Predictor
from trainwright.process.environ import asked_threads
from trainwright.records.compression import Recipe
from trainwright.records.data import StoredModel, understanding
from trainwright.records.decision import journalled_decisions
from trainwright.records.run_dir import RunDir
from trainwright.require import import_rule, importing_by
from trainwright.runs.decisions import replayed_skips
from trainwright.runs.frameworks import copied_model, framework_for
from trainwright.runs.objects import require_objects
from trainwright.runs.processes.calls import ONE, Members
from trainwright.runs.processes.threads import available_threads
from trainwright.runs.run_config import read_config
from trainwright.runs.weights import stored_model
from trainwright.runs.wiring import load_data, run_checkpoints
from trainwright.runs.workdir import working_directory
from trainwright.types import DataInfo
from trainwright.world import ALONE

log = logging.getLogger("trainwright")

_READS = 5  # of a run in training, whose files may be replaced while they are read


def open_predictor(
    run: RunDir,
    model: Any = None,
    *,
    pinned: bool,
    members: Members = ONE,
    folder: Path | None = None,
) -> Predictor:
    """Return the model of a run (the best one where there is one); it needs nothing but the run directory.

    Args:
        run: The run.
        model: The model object, if the run was given one.
        pinned: Pin this process (threads, determinism flags) as the training was, for the very bits of its
            evaluation. Otherwise nothing in the process is changed, and outputs agree to 1e-5.
        members: The processes that open it, and the mesh that they form; of several, each has a part of it.
        folder: Other weights for it, such as compressed ones, which were verified.

    Raises:
        InputError: The run has no weights yet, or was given a model as an object that is not given here.
        CheckpointError: A file that predictions depend on is damaged.
    """
    manifest = run.manifest()
    if manifest and "model" in manifest.objects and model is None:
        raise InputError(f"{manifest.objects_in_words(['model'])}; pass it again: model=...")
    if members.world.size > 1:  # they would not all read it again
        return _opened(run, model, members, pinned=pinned)
    return _settled(run, lambda: _opened(run, model, members, pinned=pinned, folder=folder))


def fill_object(run: RunDir, model: Any) -> None:
    """Give the object that a run was given the weights that stand for the run.

    Nothing is done where there is no object, or the run ended before its first checkpoint.

    Raises:
        CheckpointError: They are damaged.
        ModelError: They do not fit the object.
    """
    if model is None or not run_checkpoints(run).resume.names():
        return
    stored = stored_model(run)
    inputs = _inputs(run, stored, model, ONE)
    framework_for(inputs.config, inputs.info, model).fill(inputs, stored.folder)


def _opened(
    run: RunDir, model: Any, members: Members, *, pinned: bool, folder: Path | None = None
) -> Predictor:
    stored = members.world.from_main(lambda: stored_model(run))
    if folder is not None:
        stored = replace(stored, folder=folder)
    inputs = _inputs(run, stored, model, members)
    config = inputs.config
    framework = framework_for(config, inputs.info, model)
    if pinned:
        _pin(framework, config, inputs.threads)
    inputs = replace(inputs, model=copied_model(model))
    return Predictor(
        run, stored, framework, inputs, _loader(run, config, model), partial(working_directory, run)
    )


def compress_model(run: RunDir, model: Any, recipe: Recipe, rows: Split, target: Path) -> Compressed:
    """Write a compressed model of a run into an empty folder; see `Framework.compress`.

    Raises:
        InputError: The model cannot be compressed so.
    """
    stored = stored_model(run)
    inputs = _inputs(run, stored, model, ONE)
    framework = framework_for(inputs.config, inputs.info, model)
    inputs = replace(inputs, model=copied_model(model))
    return framework.compress(inputs, stored.folder, recipe, rows, target)


def _inputs(run: RunDir, stored: StoredModel, model: Any, members: Members) -> ModelInputs:
    manifest = run.manifest()
    placement = {**(manifest.placement if manifest else {}), **members.mesh}
    config = read_config(run).with_placement(placement).config
    with understanding(stored.data_file):
        info = DataInfo.from_json(stored.data.info)
    threads = config.training.threads or asked_threads() or available_threads(config)
    return ModelInputs(config, info, config.model.params, threads, model=model, world=members.world)


def _loader(run: RunDir, config: RunConfig, model: Any) -> Callable[[], DataBundle]:
    """Return what reads and prepares the run's own data: by the rule for imports of now, whenever it does."""
    rule = import_rule()

    def load() -> DataBundle:
        require_objects(run, "evaluate", model=model, data=None)
        settle = replayed_skips(journalled_decisions(run.journal), ALONE)
        with importing_by(rule):
            return load_data(config, model, settle)

    return load


def _settled(run: RunDir, read: Callable[[], Predictor]) -> Predictor:
    """Read a run that may be in training, again if its newer checkpoint has replaced the files being read."""
    for _ in range(_READS - 1):
        in_training = run.is_owned()
        try:
            return read()
        except (OSError, CheckpointError, ModelError):
            if not in_training:
                raise
    return read()


def _pin(framework: type[Framework], config: RunConfig, threads: int) -> None:
    """Pin the process; if it is too late for that, warn that outputs may differ in their last bits."""
    try:
        framework.pin(config, threads)
    except ModelError as error:
        log.warning("the outputs may differ from those of the training in their last bits: %s", error)
