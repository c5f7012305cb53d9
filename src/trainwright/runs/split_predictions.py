"""The predictions of a run's model on a split of its data, and whether two runs have the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import DataBundle, Split
from trainwright.errors import ModelError
from trainwright.evaluation.metrics import EvaluationResult
from trainwright.frameworks.base import Model
from trainwright.plugins import task_for
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.runs.predictor import open_predictor
from trainwright.tasks.base import Scores
from trainwright.types import DataInfo, Ids, SplitName

# What must be equal of two models, and its name in messages.
_OF_THE_TARGET = {
    "task": "tasks",
    "target": "targets",
    "classes": "classes",
    "positive": "positive classes (evaluation.positive)",
}


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predictions of a run's model for a split, and the model itself.

    `positions` (rows,) are those of the rows in their source, None where there is more than one source.
    """

    config: RunConfig
    info: DataInfo
    result: EvaluationResult
    positions: Ids | None
    model: Model
    split: Split

    @property
    def scores(self) -> Scores:
        """The scores that metrics are computed from.

        Raises:
            ModelError: The model gave values that are not finite.
        """
        if not np.isfinite(self.result.outputs).all():
            raise ModelError("the model gave values that are not finite, so there is nothing to compare")
        return self.result.scores(task_for(self.info))


def predicted(
    run: RunDir, split: SplitName = "test", bundle: DataBundle | None = None, model: Any = None
) -> Predicted:
    """Predict a split of the run's own data with its (best) model.

    Args:
        run: The run.
        split: A split of its data.
        bundle: The data, where they were given as objects; else they are read as the config says.
        model: The model object, if the run was given one.

    Raises:
        InputError: The run has no such split or no weights, or its data have changed; or the framework is not
            installed.
        CheckpointError: The weights are damaged.
    """
    predictor = open_predictor(run, model, pinned=True)
    bundle = bundle or predictor.load_data()
    result = predictor.evaluate(split, bundle=bundle)
    positions, rows = bundle.rows.get(split), bundle.splits[split]
    return Predicted(predictor.config, predictor.info, result, positions, predictor.model, rows)


def other_question(first: Manifest, second: Manifest) -> str | None:
    """Return why the answers of two models cannot be compared, or None if they are asked the same."""
    for key, plural in _OF_THE_TARGET.items():
        if getattr(first.data, key) != getattr(second.data, key):
            return f"their {plural} differ"
    return None


def other_rows(first: Manifest, second: Manifest, split: SplitName = "test") -> str | None:
    """Return why two models cannot be compared row by row, or None if their manifests name the same rows.

    The features need not be the same: models may be given other columns, or the same ones in another form.
    """
    one, other = first.data, second.data
    if any(split not in data.splits for data in (one, other)):
        return f"one of them has no {split} split"
    if reason := other_question(first, second):
        return reason
    if one.splits[split].sha256 == other.splits[split].sha256:
        return None
    rows = [data.rows.get(split) for data in (one, other)]
    if None in rows:
        return f"it is not recorded whether their {split} rows are the same"
    counts = " and ".join(str(data.splits[split].rows) for data in (one, other))
    return None if rows[0] == rows[1] else f"their {split} rows are not the same ({counts})"
