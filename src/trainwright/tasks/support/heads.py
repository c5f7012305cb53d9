"""The task of a head of a model, by its targets: one of the named arrays, or the target itself."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from trainwright.config.training import HeadConfig
from trainwright.errors import ModelError
from trainwright.types import TARGET, ArraySpec, DataInfo


class HeadData(NamedTuple):
    """The array that holds the targets of a head, and the description of the data for its task.

    Of classes, `info.outputs` is 0: only the model's outputs tell how many there are.
    """

    target: str
    info: DataInfo


def head_data(name: str, section: HeadConfig, info: DataInfo) -> HeadData:
    """Return what a head is asked.

    Args:
        name: The name of the head.
        section: Its section of the config.
        info: The description of the data for the model's first output.

    Raises:
        ModelError: The data have no such array, or it does not fit the task.
    """
    target, where = section.target or name, f"training.heads.{name}"
    if target in (TARGET, info.target):
        return HeadData(TARGET, info)
    if (spec := info.inputs.get(target)) is None:
        raise ModelError(
            f"{where}: the data have no array {target!r} for its targets; they have "
            f"{', '.join([*info.inputs, info.target])}: set {where}.target"
        )
    task = _task(spec) if section.task == "auto" else section.task
    has_classes = task == "classification"
    if has_classes == bool(spec.shape) and task != "regression":
        raise ModelError(
            f"{where}: the targets {target!r} are {spec.dtype} of shape {spec.shape} for each sample, not "
            f"those of {task}; set {where}.task, or give other targets"
        )
    outputs = 0 if has_classes else prod(spec.shape)
    return HeadData(target, DataInfo(task, info.inputs, outputs, target=target))


def _task(spec: ArraySpec) -> str:
    """Return the task that targets suggest."""
    if not spec.dtype.startswith(("int", "uint", "bool")):
        return "regression"
    return "multilabel" if spec.shape else "classification"
