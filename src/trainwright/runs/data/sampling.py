"""The drawing of training samples: each once in an epoch, or with replacement by weights."""

from __future__ import annotations

import logging

import numpy as np

from trainwright.config.sampling import SamplingConfig
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import DataBundle, known_arrays
from trainwright.datasets.samples.sampling import SAMPLING, balanced
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import Framework, Plan
from trainwright.plugins import task_for
from trainwright.types import TARGET, Array

log = logging.getLogger("trainwright")


def epoch_samples(config: RunConfig, rows: int) -> int:
    """Return the number of samples in an epoch.

    Args:
        config: The config.
        rows: The number of training rows.

    Raises:
        InputError: There are fewer draws than samples in a batch.
    """
    sampling = _sampling(config)
    if sampling is None or sampling.num_samples is None:
        return rows
    if sampling.num_samples < config.training.batch_size:
        raise InputError(
            f"data.sampling.num_samples: {sampling.num_samples} given, but "
            f"training.batch_size is {config.training.batch_size}; give at least as many, or smaller "
            "batches"
        )
    return sampling.num_samples


def check_sampling(config: RunConfig, framework: type[Framework], plan: Plan) -> None:
    """Refuse to draw samples for a step that uses all rows.

    Raises:
        ModelError: The model takes no batches.
    """
    batches = "batch_size" in framework.training_keys(config.model.type, config.model.params)
    if _sampling(config) is not None and not (batches and plan.batch_size == config.training.batch_size):
        raise ModelError(
            f"data.sampling: a step of {config.model.type} uses all training rows, so that none are drawn; "
            "leave it out, and use training.class_weights or data.weight"
        )


def drawing_weights(config: RunConfig, bundle: DataBundle) -> Array | None:
    """Return the weights in proportion to which training samples are drawn, (rows,) float64.

    None: each comes once in an epoch.

    Raises:
        InputError: The data have no such weights.
    """
    sampling = _sampling(config)
    if sampling is None or bundle.sampling is not None:
        return bundle.sampling
    if sampling.column is not None:
        raise InputError(
            f"{SAMPLING}: {sampling.column} given, but these data have no columns; give balanced, or a table"
        )
    targets = (known_arrays(bundle.splits["train"]) or {}).get(TARGET, np.empty(0))
    if not task_for(bundle.info).has_classes() or targets.ndim != 1 or not len(targets):
        raise InputError(
            f"data.sampling: balanced draws each class as often, but these data ({bundle.info.task}) have no "
            "class for each sample; leave it out, or name a column of weights"
        )
    if config.training.class_weights == "balanced":
        log.warning("data.sampling and training.class_weights both balance the classes: rare ones dominate")
    return balanced(targets, bundle.info.outputs)


def _sampling(config: RunConfig) -> SamplingConfig | None:
    return None if config.data is None else config.data.sampling
