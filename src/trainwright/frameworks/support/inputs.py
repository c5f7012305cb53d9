"""Checks of the inputs of learners, and what is derived from these."""

from __future__ import annotations

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import ArraySplit, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import ModelError
from trainwright.frameworks.base import LearnerInputs, ModelInputs
from trainwright.order import PREDICT, KeyedPermutation, stream_seed
from trainwright.types import Batch, FeatureForm, Ids

LOSS_SAMPLE = (1_000, 10_000)  # minimum and maximum number of rows in `loss_sample`


def require_plain_numbers(inputs: ModelInputs) -> None:
    """Check that all features are plain numbers, for models that accept no missing values or category codes.

    Raises:
        ModelError: `data.impute` keeps missing values, or `data.encode` gives category codes.
    """
    data, model = inputs.config.data, inputs.config.model.type
    if data is not None and data.impute == "keep":
        raise ModelError(
            f"data.impute: keep leaves missing values, which {model} does not accept; "
            "set median or most_frequent"
        )
    if any(inputs.info.categories):
        raise ModelError(
            f"data.encode: category gives codes, which {model} would treat as quantities; set onehot"
        )


def prediction_batch_size(config: RunConfig) -> int:
    """Return the number of rows that a network predicts together; the bits of its outputs depend on it."""
    return config.evaluation.batch_size or 4 * config.training.largest_microbatch


def arrays_of(split: Split, ids: Ids | None = None) -> Batch:
    """Return some rows of a split, or all of them: its own arrays where it has these in memory."""
    if ids is None and isinstance(split, Arrays | ArraySplit):
        return split.arrays
    return split.take(np.arange(len(split), dtype=np.int64) if ids is None else ids)


def loss_sample(inputs: LearnerInputs, one_in: int) -> Ids | None:
    """Return the training rows on which the loss of a step is estimated.

    The sample is the same at every step. It is bounded by `LOSS_SAMPLE`, since predicting more rows would
    noticeably slow down a round.

    Args:
        inputs: The inputs of the learner.
        one_in: Sample one row in this many.

    Returns:
        (n,) int64 positions in ascending order; None if all rows are to be used.
    """
    rows, (minimum, maximum) = len(inputs.splits["train"]), LOSS_SAMPLE
    size = min(maximum, max(minimum, rows // one_in))
    if size >= rows:
        return None
    return np.sort(KeyedPermutation(stream_seed(inputs.config.experiment.seed, PREDICT), rows).at(0, size))


def network_form(config: RunConfig, *, shifts_outputs: bool, custom_loss: bool) -> FeatureForm:
    """Return the form in which a network gets its data: float32.

    A network whose targets are standardized gives outputs on another scale in any case, so that they may be
    shifted, too.

    Args:
        config: The resolved config.
        shifts_outputs: The network is one of ours, whose outputs may be on any scale.
        custom_loss: The loss is the user's own, and may depend on the values themselves.
    """
    standardizes = config.data is None or config.data.standardize
    if custom_loss:
        return FeatureForm(target="standardized" if standardizes else "float32", by_gradients=True)
    is_centered = standardizes or shifts_outputs
    return FeatureForm(target="centered" if is_centered else "float32", by_gradients=True)
