"""Targets as libraries of single precision learn them: shifted where float32 would lose their differences.

Data hold targets as float64, and metrics are computed from these. A library that learns in float32 gets them
rounded, which for Unix seconds of one hour, say, would leave few different values. Such targets are shifted
first, by a value near their mean (`DataInfo.target_offset`); outputs are shifted back in float64.
"""

from __future__ import annotations

import numpy as np

from trainwright.types import Array, DataInfo

_NOTICEABLE = 1e-4  # of the standard deviation of the targets: float32 may round them by less


def is_coarse(targets: Array) -> bool:
    """Return whether float32 would round targets, (rows,) or (rows, outputs), by a noticeable amount."""
    return bool(_coarse(targets).any())


def offset_of(targets: Array) -> tuple[float, ...]:
    """Return the offset of each target, (rows,) or (rows, outputs); empty if none needs one.

    It is the mean, rounded to a multiple of a power of two below the standard deviation, so that subtracting
    it from a target is exact.
    """
    coarse = _coarse(targets)
    if not coarse.any():
        return ()
    means, scales = _moments(targets)
    units = 2.0 ** np.floor(np.log2(np.where(coarse, scales, 1.0)))
    return tuple(np.where(coarse, np.round(means / units) * units, 0.0).tolist())


def learned(targets: Array, info: DataInfo) -> Array:
    """Return targets as a model of single precision learns them: float32; classes are as they are."""
    if targets.dtype != np.float64:
        return targets
    shifted = targets - _shaped(info, targets) if info.target_offset else targets
    with np.errstate(over="ignore"):
        return shifted.astype(np.float32)


def restored(outputs: Array, info: DataInfo) -> Array:
    """Return a model's values, (rows,) or (rows, outputs), in the unit and range of the targets."""
    if not info.target_offset:
        return outputs
    values: Array = outputs.astype(np.float64) + _shaped(info, outputs)
    return values


def _shaped(info: DataInfo, values: Array) -> Array:
    offsets: Array = np.array(info.target_offset)
    return offsets.reshape(values.shape[1:] or (1,))


def _coarse(targets: Array) -> Array:
    """Return for each of the targets whether float32 is too coarse for it, (outputs,) bool."""
    columns = targets.reshape(len(targets), -1)
    with np.errstate(over="ignore"):
        largest = np.abs(columns).max(axis=0).astype(np.float32)
        rounding = np.spacing(largest).astype(np.float64) / 2
    _, scales = _moments(targets)
    coarse: Array = np.isfinite(scales) & (scales > 0) & (rounding > _NOTICEABLE * scales)
    return coarse


def _moments(targets: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each of the targets, (outputs,) float64 each."""
    columns = targets.reshape(len(targets), -1).astype(np.float64)
    # From the first value to the last, as the order of numpy.sum depends on the processor.
    with np.errstate(over="ignore", invalid="ignore"):
        means = columns[0] + np.cumsum(columns - columns[0], axis=0)[-1] / len(columns)
        scales = np.sqrt(np.cumsum((columns - means) ** 2, axis=0)[-1] / len(columns))
    return means, scales
