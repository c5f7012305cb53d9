"""The child run of a compression: made when everything is known, so that it is there whole or not at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.digest import sha256_bytes, sha256_json
from trainwright.engine.checkpoint import StoredCommit
from trainwright.engine.state import RunState
from trainwright.frameworks.base import Compressed
from trainwright.inference.predictor import Predictor
from trainwright.records.commit import Commit
from trainwright.records.compression import COMPRESSION, CompressionRecord
from trainwright.records.creation import Creation
from trainwright.records.data import DataDescription
from trainwright.records.lineage import Lineage, Relation
from trainwright.records.manifest import Manifest, Parent
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.redact import redacted
from trainwright.require import installed_version
from trainwright.runs.leasing import publish
from trainwright.runs.outcome import Description, training_sample
from trainwright.runs.session import Session
from trainwright.runs.wiring import run_checkpoints
from trainwright.safe_files import read_regular
from trainwright.types import SplitName

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle
    from trainwright.evaluation.metrics import EvaluationResult

RELATION: Relation = "compress"


@dataclass(frozen=True)
class Candidate:
    """A compressed model that passed its gate.

    `folder` holds it; `evaluations` are those of its splits; `table` compares it with its parent; `seconds`
    is how long it took to make.
    """

    folder: Path
    compressed: Compressed
    record: CompressionRecord
    evaluations: Mapping[SplitName, EvaluationResult]
    table: Mapping[str, Any]
    seconds: float


def make_child(parent: RunDir, predictor: Predictor, bundle: DataBundle, made: Candidate) -> RunDir:
    """Make the run of a compressed model, completed, with its evaluation and its report.

    Until the last record is written its status is `crashed`, and such a run cannot be resumed.

    Args:
        parent: The run that was compressed.
        predictor: The compressed model.
        bundle: The data.
        made: The model, and what was measured.

    Raises:
        InputError: The directory cannot be written.
    """
    before = parent.require_manifest()
    text = read_regular(parent.config_file).decode()
    created = parent.creation() or Creation()
    lineage = Lineage(
        run_id=parent.id,
        relation=RELATION,
        changed=[made.record.recipe.in_words()],
        data=before.data,
        init_from=before.init_from,
    )

    def fill(run: RunDir) -> None:
        run.write(Lineage.FILE, lineage)
        run.write(DataDescription.FILE, predictor.stored.data)

    kept = {
        "settings": created.settings,
        "data_paths": created.data_paths,
        "code_folder": created.code_folder,
    }
    child = RunDir.create(
        parent.path.parent.parent, parent.experiment, text, fill, Creation.model_validate(kept)
    )
    publish(child)
    child.acquire()
    try:
        _fill(child, parent, predictor, bundle, made)
    finally:
        child.release()
    return child


def _fill(child: RunDir, parent: RunDir, predictor: Predictor, bundle: DataBundle, made: Candidate) -> None:
    """Write what an attempt writes: manifest, journal, checkpoint, evaluation, result, report."""
    before, was = parent.require_manifest(), parent.result()
    step = _step(parent, was)
    session = Session(child)
    try:
        manifest = _manifest(child, before, made.record)
        child.write(Manifest.FILE, manifest)
        session.note_environment(manifest.environment.numeric())
        journal = session.open_journal(step)
        hashes = {
            name: sha256_bytes(read_regular(child.path / name))
            for name in (child.config_file.name, DataDescription.FILE)
        }
        checkpoints = run_checkpoints(child, lease=session.lease).covering(hashes)
        source = StoredCommit(made.folder, Commit("compressed", step, 0, made.compressed.files))
        state = RunState(step=step, settled=step).to_json()
        commit = checkpoints.resume.commit(step, source, state)
        checkpoints.publish([commit.name])
        journal.event(step, "compressed", parent=parent.id, how=made.record.recipe.in_words())
        journal.values("evaluation", step, _metrics(made, "val"))
        _describe(child, predictor, bundle, made)
        result = Result(
            status="completed",
            run_id=child.id,
            experiment=child.experiment,
            computation_hash=manifest.computation_hash,
            steps=step,
            epochs=was.epochs if was else 0.0,
            metrics={
                name: value for split in made.evaluations for name, value in _metrics(made, split).items()
            },
            evaluated="final",
            digest=commit.digest,
            attempts=session.number,
            weights=was.weights if was else None,
            determinism=manifest.determinism,
            train_seconds=made.seconds,
        )
        session.publish(result, lambda: journal.end(step, "completed"))
        journal.close()
    except BaseException as error:
        session.close("failed", str(error))
        raise
    finally:
        session.lease.release()


def _step(parent: RunDir, result: Result | None) -> int:
    """Return the step that the weights of a run are of."""
    if result is None:
        commit, _ = run_checkpoints(parent).newest()
        return commit.step if commit else 0
    return result.best.step if result.best else result.steps


def _metrics(made: Candidate, split: SplitName) -> dict[str, float]:
    return dict(made.evaluations[split].metrics) if split in made.evaluations else {}


def _manifest(child: RunDir, before: Manifest, record: CompressionRecord) -> Manifest:
    """Return the manifest: the inputs of the parent, and the compression."""
    inputs = {"config": before.computation_hash, "compression": record.recipe.to_json()}
    inputs |= {"parent": record.parent_digest}
    imported = dict(before.environment.imported)
    if "torchao" in sys.modules and (version := installed_version("torchao")):
        imported["torchao"] = version
    environment = before.environment.model_copy(update={"imported": imported})
    return before.model_copy(
        update={
            "run_id": child.id,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "working_directory": str(Path.cwd()),
            "command": [redacted(word) for word in sys.argv],
            "config_sha256": child.config_sha256(),
            "computation_hash": sha256_json(inputs),
            "environment": environment,
            "changes": [],
            "data_file": DataDescription.FILE,
            "parent": Parent(run_id=before.run_id, relation=RELATION),
            "initial": None,
            "compression": record,
        }
    )


def _describe(child: RunDir, predictor: Predictor, bundle: DataBundle, made: Candidate) -> None:
    """Write the tables of the evaluations, the profile of the data, and the comparison with the parent."""
    describe = Description(child, predictor.config, bundle)
    for result in made.evaluations.values():
        describe.evaluation(result)
    sample = bundle.once(training_sample)
    if sample is not None:
        describe.evaluation(predictor.evaluate("train", samples=sample))
    describe.data()
    describe.write()
    child.write_json(COMPRESSION, dict(made.table))
