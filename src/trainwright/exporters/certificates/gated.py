"""Judge an artifact by a gate on metrics of the validation rows, beside its run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainwright.datasets.base import DataBundle
from trainwright.errors import DataError, GateError, InputError
from trainwright.evaluation.gates import PARENT, Gate
from trainwright.evaluation.metrics import LOSS, evaluate_predictions, wanted_metrics
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.exporters.certificates.samples import Sample, real_rows
from trainwright.exporters.opened import open_artifact
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.records.artifact import ArtifactDir
from trainwright.records.certificate import Certificate
from trainwright.types import Predictions, weights_of


def judged(gate: Gate, predictor: Predictor, made: Path, certificate: Certificate) -> str:
    """Return what a gate that an artifact passes says of it, on the first 1,000 validation rows.

    Args:
        gate: The gate, which may refer to `parent`, the run.
        predictor: The model of the run.
        made: The artifact.
        certificate: Its certificate.

    Raises:
        GateError: It does not pass.
        InputError: There are no such metrics, or no validation rows; or the artifact predicts no rows.
    """
    try:
        bundle = predictor.load_data()
    except (InputError, DataError) as error:
        raise InputError(f"a gate is measured on the run's validation rows: {error}") from error
    rows = None
    if "val" in bundle.splits:
        rows = real_rows(bundle, predictor, inputs_of(predictor), split="val")
    if rows is None:
        raise InputError(f"run {predictor.run.id} keeps no validation rows, which a gate is measured on")
    exported = open_artifact(ArtifactDir(made, certificate, is_own=True))
    own, parent = (_metrics(one, predictor, bundle, rows) for one in (exported, predictor))
    gate.check_names(own, [PARENT])
    said = gate.in_words(own, {PARENT: parent})
    if not gate.passes(own, {PARENT: parent}):
        found = {PARENT: {"run_id": predictor.run.id, **parent}, "exported": own}
        raise GateError(f"the gate is not passed, so nothing was written: {said}", found)
    return said


def _metrics(model: Predictor, owner: Predictor, bundle: DataBundle, rows: Sample) -> dict[str, float]:
    """Return the metrics of a model on rows of the validation split, without the framework's own loss."""
    ids = np.arange(len(rows), dtype=np.int64)
    batch = bundle.splits["val"].take(ids)
    targets, weights = batch[task_for(owner.info).target], weights_of(batch, owner.info)
    part = Predictions(ids, model.outputs(rows.rows), targets, loss=float("nan"), weights=weights)
    wanted = wanted_metrics(owner.config, owner.info)
    found = evaluate_predictions([part], wanted, owner.info, "val").metrics
    return {name: value for name, value in found.items() if name != f"val_{LOSS}"}
