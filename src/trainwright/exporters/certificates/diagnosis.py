"""Say where an artifact that predicts something else than its run begins to differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import DifferentArtifactError, TrainwrightError
from trainwright.exporters.base import Exporter, Input
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.compare import TOLERANCE, Differences
from trainwright.exporters.certificates.samples import Sample
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import Array

_SHOWN = 3  # rows that differ


def different(
    exporter: Exporter,
    predictor: Predictor,
    made: Path,
    inputs: Sequence[Input],
    sample: Sample,
    differences: Differences,
) -> DifferentArtifactError:
    """Return the error about an artifact that predicts something else."""
    lines = differences.lines
    text = f"the exported model predicts something else than run {predictor.run.id}; nothing was written"
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    if more := len(lines) - len(shown):
        shown[-1] += f" (and {more} more)"
    try:
        step = _first_step(exporter, predictor, made, sample, sample.feeds(inputs))
    except (TrainwrightError, ValueError, RuntimeError) as error:
        step = f"cannot be told: {error}"
    recipe = manifest.compression if (manifest := predictor.run.manifest()) else None
    precision = (recipe and recipe.recipe.quantize) or predictor.config.training.precision
    if precision in ("bf16", "fp16"):
        shown[-1] = f"  the run predicts in {precision}, the artifact in float32: give --tolerance 0.02, say"
    return DifferentArtifactError("\n".join([f"{text}; the first step that differs: {step}", *shown]))


def _first_step(
    exporter: Exporter, predictor: Predictor, made: Path, sample: Sample, feeds: Mapping[str, Array]
) -> str:
    """Return the first step inside an artifact whose values differ: a column, the model, or what follows."""
    steps = exporter.steps(made, feeds)
    preparation = predictor.preparation
    features: Array = next(iter(feeds.values()))
    if isinstance(preparation, TabularPreparation):
        features = preparation.features(sample.rows)
        for name, given in steps.items():
            if name.startswith("column "):
                alone = next(one for one in preparation.columns if one.name == name.removeprefix("column "))
                own = np.empty(given.shape, preparation.dtype)
                alone.encode(sample.rows, own)
            elif name == "features":
                own = features
            else:
                continue
            if not reader.equal(given.astype(own.dtype), own, 1e-6).all():
                return name
    if "model" not in steps:
        return "what follows the model"
    own = _before_the_end(predictor, predictor.outputs(sample.rows))
    if reader.equal(steps["model"].reshape(own.shape), own, TOLERANCE).all():
        return "what follows the model"
    return exporter.inside(made, predictor, feeds, features) or "the model"


def _before_the_end(predictor: Predictor, outputs: Array) -> Array:
    """Return what a model itself gives: probabilities, or values before offset and transformation."""
    info = predictor.info
    if task_for(info).gives_probabilities:
        return outputs
    transform = transform_of(info)
    values = outputs if transform is None else transform.forward(outputs)
    return np.asarray(values - np.reshape(info.target_offset or 0.0, (-1,) if values.ndim > 1 else ()))
