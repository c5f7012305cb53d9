"""The reference of a run: its training rows and held-out predictions, read once and kept in its folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.table import Table
from trainwright.errors import InputError, TrainwrightError
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.exporters.certificates.samples import edge_rows
from trainwright.inference.predictor import Predictor
from trainwright.monitoring import background
from trainwright.monitoring.background import Background
from trainwright.monitoring.reference import FILE, Reference
from trainwright.records.artifact import ArtifactDir, artifact_reference
from trainwright.records.decision import journalled_decisions
from trainwright.records.document import dump, parse_json
from trainwright.records.run_dir import RunDir
from trainwright.runs.data.bundles import bundle_of_objects
from trainwright.runs.decisions import replayed_skips
from trainwright.runs.objects import passed_objects, require_objects
from trainwright.runs.wiring import load_data
from trainwright.runs.workdir import working_directory, working_for
from trainwright.safe_files import read_regular, write_atomically
from trainwright.types import FEATURES, Array
from trainwright.world import ALONE

log = logging.getLogger("trainwright")


def carry_reference(run: RunDir, path: Path) -> Path | None:
    """Copy the reference that a run keeps beside an exported model, and return its path; None: it has none.

    Raises:
        CheckpointError: It is damaged.
        OSError: It cannot be written.
    """
    if not (kept := run.read_json(FILE)):
        return None
    target = artifact_reference(path)
    write_atomically(target, dump(kept))
    return target


def reference_of(run: RunDir, predictor: Predictor, data: Any = None, *, trust: bool = False) -> Reference:
    """Return the reference of a run: the one that it keeps, or a new one, made from its own data and kept.

    Args:
        run: The run; or an exported model, which has the reference that was exported with it.
        predictor: Its model.
        data: The data, if the run was given them as objects.
        trust: Whether the user trusts the run.

    Raises:
        InputError: There is none, and the run's data are gone, have changed or are not given.
        CheckpointError: The one that is kept is damaged.
    """
    if isinstance(run, ArtifactDir):
        return _of_artifact(run)
    if kept := run.read_json(FILE):
        return Reference.from_json(kept)
    bundle = bundle_with_rows(run, predictor, data, trust=trust)
    log.info("drift: the thresholds are computed from the training rows, once")
    columns = training_columns(predictor, bundle)
    keep_background(run, predictor, columns)
    made = Reference.of(
        run.id,
        columns,
        _held_out(predictor, bundle),
        predictor.watched_targets,
        predictor.config.experiment.seed,
        len(bundle.splits["train"]),
    )
    kept = made.to_json()
    try:
        run.write_json(FILE, kept)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): the next command makes it again", run.path / FILE, error.strerror
        )
    return Reference.from_json(kept)  # as the next command reads it, in which thresholds are rounded


def keep_background(
    run: RunDir, predictor: Predictor, columns: Mapping[str, Array] | None = None, *, trust: bool = False
) -> None:
    """Keep some training rows of a run of a table, as the background of explanations.

    Args:
        run: The run.
        predictor: Its model.
        columns: The columns of its training rows; default: they are read from its own data.
        trust: Whether the user trusts the run.

    Raises:
        InputError: The run's data are gone, have changed or are not given.
    """
    if not predictor.column_names or (run.path / background.FILE).is_file():
        return
    if columns is None:
        columns = training_columns(predictor, bundle_with_rows(run, predictor, trust=trust))
    own = {name: columns[name] for name in predictor.column_names if name in columns}
    try:
        run.write_json(background.FILE, Background.of(own, predictor.config.experiment.seed).to_json())
    except OSError as error:
        log.warning("%s cannot be written (%s)", run.path / background.FILE, error.strerror)


def background_of(run: RunDir, predictor: Predictor) -> Background | None:
    """Return the background rows that a run keeps, None if it keeps none.

    An exported model holds no training rows: its background is drawn from the distributions in its reference,
    or it is edge rows, if it has none.

    Raises:
        CheckpointError: They are damaged.
    """
    if isinstance(run, ArtifactDir):
        edges = edge_rows(predictor, inputs_of(predictor), within=True).rows
        columns = {name: edges[name].to_numpy() for name in edges} if is_frame(edges) else edges.columns
        seed = predictor.config.experiment.seed
        if artifact_reference(run.path).is_file():
            return Background.drawn(_of_artifact(run).columns, columns, seed)
        return Background.of(columns, seed, "synthetic rows")
    kept = run.read_json(background.FILE)
    return Background.from_json(kept) if kept else None


def _of_artifact(artifact: ArtifactDir) -> Reference:
    path = artifact_reference(artifact.path)
    if not path.is_file():
        raise InputError(
            f"{artifact.path} was exported without the reference of its training rows ({path.name}); name "
            f"the run itself, {artifact.certificate.run['id']}, or export it again after `trainwright drift`"
        )
    return Reference.from_json(parse_json(read_regular(path)))


def bundle_with_rows(
    run: RunDir, predictor: Predictor, data: Any = None, *, trust: bool = False
) -> DataBundle:
    """Return the run's own data with all rows as they were before encoding.

    Raises:
        InputError: They are gone, have changed, or are not given.
    """
    require_objects(run, "drift", data=data, model=predictor.model_object)
    with working_for(run, folder := working_directory(run), trust=trust):
        try:
            if "data" in passed_objects(run):
                return bundle_of_objects(run, predictor, data, sys.maxsize)
            settle = replayed_skips(journalled_decisions(run.journal), ALONE)
            bundle = load_data(predictor.config, predictor.model_object, settle, examples=sys.maxsize)
        except TrainwrightError as error:
            raise InputError(
                f"the training rows of run {run.id} cannot be read any more (in {folder}), and it keeps no "
                f"reference of them ({FILE}): {error}"
            ) from error
    recorded = run.require_manifest().split_sha256("train")
    if bundle.splits["train"].fingerprint() != recorded:
        raise InputError(
            f"the train split is not that of run {run.id}: the data have changed, and it keeps no reference "
            f"of what they were ({FILE})"
        )
    return bundle


def training_rows(bundle: DataBundle) -> Any:
    """Return the training rows as `Predictor.watched` takes them; None: they have no columns."""
    rows = bundle.examples.get("train")
    if isinstance(rows, Table):
        return rows
    if bundle.preparation is not None:
        return None
    batch = bundle.splits["train"].take(np.arange(len(bundle.splits["train"])))
    return batch if FEATURES in batch and batch[FEATURES].ndim == 2 else None


def training_columns(predictor: Predictor, bundle: DataBundle) -> Mapping[str, Array]:
    """Return the columns of the training rows, targets among them, (rows,) each."""
    rows = training_rows(bundle)
    if rows is None:
        return {}
    return predictor.watched(rows)


def _held_out(predictor: Predictor, bundle: DataBundle) -> Mapping[str, Array]:
    """Return the columns of the predictions for the rows that the model was not trained on."""
    if predictor.gives_masks:
        return {}
    splits = [bundle.splits[name] for name in ("val", "test") if name in bundle.splits]
    parts = [part.outputs for split in splits for part in predictor.model.predict(split)]
    return predictor.table(np.concatenate(parts)) if parts else {}
