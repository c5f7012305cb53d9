"""The model of a run on a split of its own data, and whether those of two runs meet the same rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.config import load as load_config
from trainyard.config.schema import RunConfig
from trainyard.datasets.base import DataBundle, Split
from trainyard.errors import InputError, ModelError
from trainyard.evaluation.metrics import EvaluationResult, evaluate_predictions
from trainyard.evaluation.scores import Scores
from trainyard.frameworks.base import Framework
from trainyard.records.manifest import Manifest
from trainyard.records.run_dir import RunDir
from trainyard.runs.catalog import Catalog
from trainyard.runs.weights import stored_model
from trainyard.runs.wiring import build_framework, default_threads, load_data, wanted_metrics
from trainyard.types import DataInfo, Ids, SplitName


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a run's model says of a split, and the model itself.

    `positions` (rows,) are those of the rows in their source, None where there is more than one source.
    """

    config: RunConfig
    info: DataInfo
    result: EvaluationResult
    positions: Ids | None
    framework: Framework
    split: Split

    @property
    def scores(self) -> Scores:
        """What metrics are computed from.

        Raises:
            ModelError: the model gave values that are not finite.
        """
        outputs, targets = self.result.outputs, self.result.targets
        if not np.isfinite(outputs).all():
            raise ModelError("the model gave values that are not finite, so there is nothing to compare")
        if self.info.task == "classification":
            return Scores(outputs, targets.astype(np.int64, copy=False))
        shape = (len(targets), self.info.outputs)
        return Scores(outputs.astype(np.float64).reshape(shape), targets.astype(np.float64).reshape(shape))


def predicted(run: RunDir, split: SplitName = "test", bundle: DataBundle | None = None) -> Predicted:
    """Predict a split of the run's own data with its (best) model.

    Args:
        run: The run.
        split: A split of its data.
        bundle: The data, where they were given as objects; else they are read as the config says.

    Raises:
        InputError: the run has no such split or no weights, or its data have changed; or the framework is not
            installed.
        CheckpointError: the weights are damaged.
    """
    config = load_config(run.readable_config(), adapters=Catalog()).config
    manifest = run.known_manifest()
    model = stored_model(run)
    bundle = bundle or load_data(config)
    if split not in bundle.splits:
        raise InputError(f"run {run.id} has no {split} split; it has {', '.join(bundle.splits)}")
    rows = bundle.splits[split]
    if rows.fingerprint() != manifest.split_sha256(split):
        raise InputError(
            f"the {split} split is not the one that run {run.id} was made with: the data have changed"
        )
    threads = manifest.environment.threads or default_threads()
    framework = build_framework(config, DataBundle(bundle.info, {}), threads, None)
    framework.restore(model.folder, weights_only=True)
    result = evaluate_predictions(
        framework.predict(rows), wanted_metrics(config, bundle.info), bundle.info, split
    )
    return Predicted(config, bundle.info, result, bundle.rows.get(split), framework, rows)


def other_rows(first: Manifest, second: Manifest, split: SplitName = "test") -> str | None:
    """Why two models cannot be compared row by row.

    None where their manifests say that they meet the same rows.

    The features need not be the same: models may be given other columns, or the same ones in another form.
    """
    one, other = first.data, second.data
    if any(split not in data.splits for data in (one, other)):
        return f"one of them has no {split} split"
    for key, plural in (("task", "tasks"), ("target", "targets"), ("classes", "classes")):
        if getattr(one, key) != getattr(other, key):
            return f"their {plural} differ"
    if one.splits[split].sha256 == other.splits[split].sha256:
        return None
    rows = [data.rows.get(split) for data in (one, other)]
    if None in rows:
        return f"it is not recorded whether their {split} rows are the same"
    counts = " and ".join(str(data.splits[split].rows) for data in (one, other))
    return None if rows[0] == rows[1] else f"their {split} rows are not the same ({counts})"
