"""Several heads: outputs of a model beside its first one, each with targets, loss and metrics of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from trainwright.config.metrics import metrics_of_head
from trainwright.config.schema import RunConfig
from trainwright.config.training import HeadConfig
from trainwright.datasets.base import Split, known_arrays
from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.losses import base as losses
from trainwright.frameworks.torch.outputs import Outputs, first_output
from trainwright.frameworks.torch.predictions import to_predictions
from trainwright.frameworks.torch.state.custom import CustomLosses
from trainwright.plugins import task_for
from trainwright.tasks.base import Task
from trainwright.tasks.support.heads import head_data
from trainwright.tasks.support.precision import is_coarse, restored
from trainwright.types import TARGET, Array, DataInfo, HeadPredictions

log = logging.getLogger("trainwright")

_SAMPLE = 64  # samples whose targets are read, where not all are in memory


@dataclass(frozen=True)
class Head:
    """One of the heads; `losses` are its loss as a mean over samples, and as a sum by their weights."""

    name: str
    target: str
    task: Task
    weight: float
    metrics: Sequence[str] | None
    losses: tuple[losses.Loss, losses.WeightedLoss]

    def loss(self, outputs: Outputs, batch: Tensors) -> Tensor:
        """Return the mean of the losses of the samples of a batch, ()."""
        return self.losses[0](self.output(outputs), self.batch(batch))

    def weighted_loss(self, outputs: Outputs, batch: Tensors, weights: Tensor) -> Tensor:
        """Return the sum of the losses of the samples, each multiplied by its weight, ()."""
        return self.losses[1](self.output(outputs), self.batch(batch), weights)

    def output(self, outputs: Outputs) -> Tensor:
        """Return what the head gives, of all that the model returned."""
        if not isinstance(outputs, Mapping) or not isinstance(outputs.get(self.name), Tensor):
            names = f" of {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
            raise ModelError(
                f"training.heads: the model must return a mapping with a tensor {self.name!r}, and returns "
                f"{type(outputs).__name__}{names}"
            )
        value: Tensor = outputs[self.name]
        return value

    def batch(self, batch: Tensors) -> Tensors:
        """Return the batch with the targets of the head as its target."""
        targets = batch[self.target]
        return {**batch, TARGET: targets.long() if self.task.has_classes() else targets.float()}


class Heads:
    """All heads of a run but the model's first output."""

    def __init__(self, config: RunConfig, info: DataInfo, own: CustomLosses) -> None:
        """Prepare them; `own` takes in losses of the user's.

        Raises:
            ModelError: A head has no targets, or its loss does not fit them.
        """
        if config.training.heads and task_for(info).sums:
            raise ModelError(
                f"training.heads: the task of the first output is {info.task}; heads stand beside "
                "classification, regression and multilabel: write a loss of your own"
            )
        self._info, self._own = info, own
        self._all = [self._head(config, name, one) for name, one in config.training.heads.items()]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._all)

    @property
    def targets(self) -> set[str]:
        """The arrays that hold the targets of heads, which no model gets."""
        return {one.target for one in self._all}

    def summed(self, loss: losses.Loss) -> losses.Loss:
        """Return the weighted sum of the losses, given that of the first output; each is a mean, ()."""
        if not self._all:
            return loss

        def total(outputs: Outputs, batch: Tensors) -> Tensor:
            value = loss(outputs, batch)
            for one in self._all:
                value = value + one.weight * one.loss(outputs, batch)
            return value

        return total

    def summed_weighted(self, loss: losses.WeightedLoss) -> losses.WeightedLoss:
        """Return the same of losses that are sums over samples, by their weights."""
        if not self._all:
            return loss

        def total(outputs: Outputs, batch: Tensors, weights: Tensor) -> Tensor:
            value = loss(outputs, batch, weights)
            for one in self._all:
                value = value + one.weight * one.weighted_loss(outputs, batch, weights)
            return value

        return total

    def predictions(
        self,
        outputs: Outputs,
        batch: Tensors,
        weights: Tensor | None,
        total: float,
        values: Array | None,
    ) -> dict[str, HeadPredictions]:
        """Return the predictions of each head for a batch, the first output among them.

        Args:
            outputs: What the model returned.
            batch: The batch.
            weights: The weights of its samples.
            total: The sum over the samples of the weighted sum of all losses.
            values: The targets of the first output as the data hold them, if they are values.
        """
        others: dict[str, HeadPredictions] = {}
        for one in self._all:
            output, own = one.output(outputs), one.batch(batch)
            targets = own[TARGET]
            if weights is None:
                loss = float(one.loss(outputs, batch)) * len(targets)
            else:
                loss = float(one.weighted_loss(outputs, batch, weights))
            total -= one.weight * loss
            classes = max(2, output.shape[-1]) if one.task.has_classes() else one.task.info.outputs
            task = task_for(replace(one.task.info, outputs=classes))
            predicted = restored(to_predictions(output, own, task).cpu().numpy(), task.info)
            true = targets.cpu().numpy() if values is None or one.target != TARGET else values
            others[one.name] = HeadPredictions(loss, task.info, one.metrics, predicted, true)
        return {first_name(outputs): HeadPredictions(total), **others}

    def check(self, outputs: Outputs, sample: Tensors) -> None:
        """Check the outputs of one sample.

        Raises:
            ModelError: A head is missing, or has another shape than its targets.
        """
        for one in self._all:
            output, targets = one.output(outputs), sample[one.target]
            if not one.task.has_classes() and output.numel() != targets.numel():
                raise ModelError(
                    f"training.heads.{one.name}: for one sample the model gives {tuple(output.shape)}, and "
                    f"the targets ({one.target}) are {tuple(targets.shape)}: one value for each is expected"
                )

    def warn_of_rounding(self, train: Split) -> None:
        """Log which heads learn values in float32 that differ by little beside their size."""
        names = {one.target for one in self._all if not one.task.has_classes()} - {TARGET}
        if not names:
            return
        arrays = known_arrays(train) or train.take(np.arange(min(len(train), _SAMPLE), dtype=np.int64))
        for name in sorted(names & arrays.keys()):
            if is_coarse(arrays[name]):
                log.warning(
                    "the targets %r of a head differ by little beside their size, and are float32, which "
                    "rounds these differences: subtract a constant from them in the data",
                    name,
                )

    def _head(self, config: RunConfig, name: str, section: HeadConfig) -> Head:
        target, info = head_data(name, section, self._info)
        task, where = task_for(info), f"training.heads.{name}"
        metrics = None if section.metrics is None else list(section.metrics)
        if deciding := metrics_of_head(config, name):
            metrics = [*(task.default_metrics if metrics is None else metrics), *deciding]
        try:
            options = losses.LossOptions(params=section.loss_params, own=self._own, name=f"heads.{name}")
            loss = losses.build_loss(section.loss, task, options)
            weighted = losses.build_weighted_loss(section.loss, task, options)
        except ModelError as error:
            raise ModelError(str(error).replace("training.loss", f"{where}.loss")) from error
        return Head(name, target, task, section.weight, metrics, (loss, weighted))


def first_name(outputs: Outputs) -> str:
    """Return the name of the first output of several."""
    first = first_output(outputs)
    return next(str(name) for name, value in outputs.items() if value is first)
