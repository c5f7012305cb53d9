"""A user's own metrics that add up by themselves, and their counts of a module's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainwright.datasets.samples.structures import leaves
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.losses.custom import by_names
from trainwright.frameworks.torch.outputs import Outputs, first_output
from trainwright.tasks.base import Task
from trainwright.tasks.support.accumulators import Accumulator, State, parts_of
from trainwright.types import TARGET, Array


def counts(
    accumulators: Sequence[Accumulator], outputs: Outputs, batch: Tensors, task: Task, values: Array | None
) -> Mapping[str, State]:
    """Return what each metric counts on a part, by the names of the metrics.

    `update` is called as losses are, by the names of its parameters: with the task's own output and the
    targets, (rows, ...) each, or with all that the model returned and the batch. Where a regression trains on
    standardized or shifted targets, its output is in the unit of the targets; where they are shifted, both
    are float64.

    Args:
        accumulators: The metrics.
        outputs: What the model returned, float32.
        batch: The batch.
        task: The task.
        values: The targets as the data hold them, if they are values.
    """
    offset = task.info.target_offset
    if offset and values is not None:
        batch = {**batch, TARGET: torch.from_numpy(values).to(batch[TARGET].device)}

    def output(given: Outputs) -> Tensor:
        first, info = first_output(given), task.info
        is_scaled = (info.target_mean, info.target_scale) != (0.0, 1.0)
        first = first * info.target_scale + info.target_mean if is_scaled else first
        return (
            first.double() + torch.tensor(offset, dtype=torch.float64, device=first.device)
            if offset
            else first
        )

    return {one.name: one.counted(_update(outputs, batch, output, task)) for one in accumulators}


def _update(
    outputs: Outputs, batch: Tensors, output: Callable[[Outputs], Tensor], task: Task
) -> Callable[[Any], None]:
    def update(metric: Any) -> None:
        for one in parts_of(metric):
            if isinstance(one, torch.nn.Module):  # those of torchmetrics hold their counts on a device
                one.to(next(tensor.device for tensor in leaves(batch)))
        given = {f"the array {name}": value for name, value in batch.items()}
        given |= {} if task.is_open else {"the output": first_output(outputs)}
        if isinstance(outputs, Mapping):
            given |= {f"the output {name}": value for name, value in outputs.items()}
        versions = {name: one._version for name, one in given.items() if isinstance(one, Tensor)}
        by_names(metric.update, output, task.target)(outputs, batch)
        if changed := [name for name, before in versions.items() if given[name]._version != before]:
            raise ValueError(f"it changes {changed[-1]} in place, which others get, too: clone it first")

    return update
