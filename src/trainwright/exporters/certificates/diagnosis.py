"""Say where an artifact that does not predict what its run predicts begins to differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import DifferentArtifactError, TrainwrightError
from trainwright.exporters.base import Exporter
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
    samples: Mapping[str, Sample],
    differences: Mapping[str, Differences],
    tolerance: float | None,
) -> DifferentArtifactError:
    """Return the error about an artifact that does not predict what its run predicts.

    Args:
        exporter: The exporter.
        predictor: The model of the run.
        made: The artifact.
        samples: What was compared.
        differences: Those of each sample, of which one has lines.
        tolerance: What the user allows; None: the default.
    """
    name, found = next((name, one) for name, one in differences.items() if one.lines)
    lines = found.lines
    text = f"the exported model does not predict what run {predictor.run.id} predicts; nothing was written"
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    if more := len(lines) - len(shown):
        shown[-1] += f" (and {more} more)"
    try:
        step = _first_step(exporter, predictor, made, samples[name], tolerance)
    except (TrainwrightError, ValueError, RuntimeError) as error:
        step = f"cannot be told: {error}"
    if exporter.rounds and step == "the model" and tolerance is None:
        return _beyond(exporter, predictor, differences)
    recipe = manifest.compression if (manifest := predictor.run.manifest()) else None
    precision = (recipe and recipe.recipe.quantize) or predictor.config.training.precision
    if exporter.rounds:
        largest = max(one.largest for one in differences.values())
        shown[-1] = f"  the largest difference is {largest:.3g}, and the tolerance {tolerance or TOLERANCE:g}"
    elif precision in ("bf16", "fp16"):
        shown[-1] = f"  the run predicts in {precision}, the artifact in float32: give --tolerance 0.02, say"
    return DifferentArtifactError("\n".join([f"{text}; the first step that differs: {step}", *shown]))


def _beyond(
    exporter: Exporter, predictor: Predictor, differences: Mapping[str, Differences]
) -> DifferentArtifactError:
    """Return the error about a rounded model for which the user has given no tolerance: what to give."""
    options = ", ".join(f"{name}={value}" for name, value in exporter.options.items())
    largest = max(one.largest for one in differences.values())
    lines = [
        f"with {options} outputs differ from those of run {predictor.run.id} by up to {largest:.3g}; "
        "nothing was written"
    ]
    for name, one in differences.items():
        labels = "" if one.equal_labels is None else f", {one.equal_labels:.2%} of labels equal"
        lines.append(f"  {name} rows: largest difference {one.largest:.3g}, mean {one.mean:.3g}{labels}")
    advice = _rounded_up(largest)
    lines.append(
        f"  if that is good enough, give --tolerance {advice:g}"
        if advice <= 1
        else "  no --tolerance allows that: choose another option"
    )
    return DifferentArtifactError("\n".join(lines))


def _rounded_up(value: float) -> float:
    """Return a number with one digit, above a value by a fifth at least: other rows differ a little more."""
    unit = 10 ** math.floor(math.log10(1.2 * value))
    return float(f"{math.ceil(1.2 * value / unit) * unit:.1g}")


def _first_step(
    exporter: Exporter, predictor: Predictor, made: Path, sample: Sample, tolerance: float | None
) -> str:
    """Return the first step inside an artifact whose values differ: a column, the model, or what follows."""
    feeds = sample.feeds(exporter.inputs(predictor))
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
    within = tolerance if exporter.rounds and tolerance is not None else TOLERANCE
    if reader.equal(steps["model"].reshape(own.shape), own, within).all():
        return "what follows the model"
    if exporter.rounds:  # each layer differs
        return "the model"
    return exporter.inside(made, predictor, feeds, features) or "the model"


def _before_the_end(predictor: Predictor, outputs: Array) -> Array:
    """Return what a model itself gives: probabilities, or values before offset and transformation."""
    info = predictor.info
    if task_for(info).gives_probabilities:
        return outputs
    transform = transform_of(info)
    values = outputs if transform is None else transform.forward(outputs)
    return np.asarray(values - np.reshape(info.target_offset or 0.0, (-1,) if values.ndim > 1 else ()))
