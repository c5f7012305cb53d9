"""A module, and how it turns a batch into outputs, loss and predictions."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import Split
from trainwright.errors import ModelError, TrainingError, WorldError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.support.inputs import prediction_batch_size
from trainwright.frameworks.torch.data import Tensors, TensorSource, each
from trainwright.frameworks.torch.heads import Heads
from trainwright.frameworks.torch.huggingface.module import architecture_of
from trainwright.frameworks.torch.losses import base as losses
from trainwright.frameworks.torch.losses.custom_metrics import counts
from trainwright.frameworks.torch.meta import WithoutValues
from trainwright.frameworks.torch.models import build_model
from trainwright.frameworks.torch.outputs import (
    Outputs,
    as_float,
    call_of,
    first_output,
    input_names,
    optional_names,
    predicted,
)
from trainwright.frameworks.torch.own.evaluation import OwnEvaluation
from trainwright.frameworks.torch.params import TRANSFORMERS
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.predictions import to_predictions
from trainwright.frameworks.torch.process import device_of
from trainwright.frameworks.torch.state.custom import TRAINED_LOSS, CustomLosses
from trainwright.frameworks.torch.state.snapshot import check_dtype
from trainwright.frameworks.torch.state.structure import Structure
from trainwright.order import INIT, PREDICT, stream_seed
from trainwright.plugins import task_for
from trainwright.tasks.support.accumulators import Accumulator
from trainwright.tasks.support.precision import restored
from trainwright.types import TARGET, Ids, LoggedValues, Predictions, weights_of

log = logging.getLogger("trainwright")
_LOST = re.compile(
    r"gloo/transport|(closed|reset) by peer|NCCL|ProcessGroup"
)  # in messages of torch.distributed


class Network:
    """The module of a run on its device, with its initial weights; or one that is about to be restored."""

    def __init__(
        self, inputs: ModelInputs, module: torch.nn.Module | None = None, *, is_placed: bool = True
    ) -> None:
        """Take a module; by default the one that was passed, else one that draws from torch's generators.

        Args:
            inputs: The config and the data.
            module: The module.
            is_placed: Whether it is made whole; else it is on the device meta, and is placed later.
        """
        training = inputs.config.training
        self.inputs = inputs
        self.device = device_of(training.device)
        module = inputs.model if module is None else module
        if module is None:
            module = build_model(inputs.config.model.type, inputs.model_params, inputs.info)
        _check_tensors(module, may_be_meta=not is_placed)
        self.module = _moved(module, self.device) if is_placed else module
        # The whole configuration of a Hugging Face model is saved, so that the model can be loaded without
        # the files that it was made from.
        is_known = inputs.model is None and inputs.config.model.type in TRANSFORMERS
        self.architecture = architecture_of(module) if is_known else None
        self.task = task_for(inputs.info)
        self.custom_losses = CustomLosses(stream_seed(inputs.config.experiment.seed, INIT, 1))
        options = losses.LossOptions(
            training.label_smoothing, training.focal_gamma, training.loss_params, self.custom_losses
        )
        self._asked_loss = training.loss, self.task, options
        self.heads = Heads(inputs.config, inputs.info, self.custom_losses)
        self.loss = self.heads.summed(losses.build_loss(*self._asked_loss))
        self._add_losses()
        self.built = Structure.of(self.module.train())
        self._row_losses = losses.row_losses(*self._asked_loss) if self.task.gives_masks else None
        self._weighted: losses.WeightedLoss | None = None
        self.names = input_names(self.module, inputs.info, self.heads.targets)
        self.optional = optional_names(self.module, self.names) if self.task.is_open else []
        self.names = [name for name in self.names if name not in self.optional]
        self.call = call_of(self.module, self.names, self.optional)
        self.precision = Precision(training.precision, self.device)
        self.own = OwnEvaluation(self.module, self.task)

    def _add_losses(self) -> None:
        """Make losses with parameters to train parts of the model: they are trained and saved with it.

        Raises:
            ModelError: The model is an object of the user's, or is divided.
        """
        for name, loss in self.custom_losses.trained.items():
            key, advice = "training.loss", "make it a part of the model, which returns the loss"
            if self.inputs.model is not None:
                raise ModelError(f"{key}: it has parameters to train, but the model is an object: {advice}")
            if not is_whole(self.inputs.config):
                raise ModelError(
                    f"{key}: it has parameters to train, which only distributed.strategy: ddp can train "
                    f"beside a model: {advice}"
                )
            self.module.add_module(f"{TRAINED_LOSS}{name}".replace(".", "_"), loss.to(self.device))

    def source(self, split: Split) -> TensorSource:
        """Return the samples of a split as tensors on the device of the module."""
        return TensorSource(split, self.device, self.inputs.config.experiment.seed, self.inputs.info)

    @property
    def rows(self) -> int:
        """The number of rows that are predicted at once."""
        return prediction_batch_size(self.inputs.config)

    def parts(self, rows: int) -> list[Ids]:
        """Return the ids of the rows that are predicted at once, in order."""
        return [
            np.arange(start, min(start + self.rows, rows), dtype=np.int64)
            for start in range(0, rows, self.rows)
        ]

    def stream(self, ids: Ids) -> int:
        """Return the seed of the random numbers in the prediction of some rows, by the first of them."""
        return stream_seed(self.inputs.config.experiment.seed, PREDICT, int(ids[0]))

    def predict(
        self,
        source: TensorSource,
        ids: Ids,
        accumulators: Sequence[Accumulator] = (),
        *,
        judges: bool = True,
    ) -> Predictions:
        """Return the outputs for the rows `ids`, (n,); the module is in evaluation mode.

        Args:
            source: The samples.
            ids: The positions of the rows.
            accumulators: Metrics that count what the module returns.
            judges: Whether losses are wanted, where they stand for outputs of any form.
        """
        batch = source.take(ids)  # tensors (n, ...)
        loss, logged = self._judged(batch, len(ids)) if judges and self.own.judges else (None, {})
        if loss is not None and self.own.replaces_forward and not accumulators:
            return self._without_outputs(ids, loss)._replace(logged=logged)
        with torch.no_grad(), self.precision.autocast():
            own = None if judges else self.own.predicted(batch)
            outputs = self.call(batch) if own is None else own  # (n, outputs), or several such
        if not judges and self.task.is_open:
            return Predictions(ids, predicted(as_float(outputs), len(ids)), np.empty((len(ids), 0)), 0.0)
        made = self.predictions(outputs, batch, source, ids, accumulators)
        if loss is not None:
            made = made._replace(loss=loss * len(ids))
        return made._replace(logged=logged)

    def _judged(self, batch: Tensors, rows: int) -> tuple[float | None, LoggedValues]:
        """Return what the model's own step says of some rows."""
        with torch.no_grad(), self.precision.autocast():
            return self.own.judged(batch, rows)

    def predictions(
        self,
        outputs: Outputs,
        batch: Tensors,
        source: TensorSource,
        ids: Ids,
        accumulators: Sequence[Accumulator] = (),
    ) -> Predictions:
        """Return what the outputs of the module, (n, outputs), predict for the rows `ids`, (n,)."""
        outputs = as_float(outputs)
        if self.task.is_open:
            return self._losses(outputs, batch, ids, accumulators)
        with torch.no_grad(), self.precision.autocast():
            weights = weights_of(batch, self.inputs.info)  # (n,)
            # The sum over the n rows. Where predictions are sums, the task computes the loss from them.
            if self.task.sums:
                loss = 0.0
            elif weights is None:
                loss = float(self.loss(outputs, batch)) * len(ids)
            else:
                loss = float(self.weighted_loss(outputs, batch))
            predicted = to_predictions(first_output(outputs), batch, self.task)
            if self._row_losses is not None and TARGET in batch:
                predicted = torch.cat([self._row_losses(outputs, batch).to(predicted), predicted], dim=1)
            values = restored(predicted.cpu().numpy(), self.inputs.info)
            own = source.targets(ids, batch)  # (n, ...) values, or None of classes
            heads = self.heads.predictions(outputs, batch, weights, loss, own) if self.heads else {}
        with torch.no_grad():
            counted = counts(accumulators, outputs, batch, self.task, own) if accumulators else {}
        if self.task.sums:
            targets = np.empty((len(ids), 0))
        else:
            targets = batch[self.task.target].cpu().numpy() if own is None else own
        weighing = None if weights is None else weights.cpu().numpy()
        return Predictions(ids, values, targets, loss, weights=weighing, heads=heads, counts=counted)

    def _losses(
        self, outputs: Outputs, batch: Tensors, ids: Ids, accumulators: Sequence[Accumulator]
    ) -> Predictions:
        """Return the loss of the rows `ids`, (n,), in place of their outputs, which may have any form."""
        with torch.no_grad(), self.precision.autocast():
            loss = float(self.loss(outputs, batch))
            counted = counts(accumulators, outputs, batch, self.task, None) if accumulators else {}
        return self._without_outputs(ids, loss)._replace(counts=counted)

    @staticmethod
    def _without_outputs(ids: Ids, loss: float) -> Predictions:
        """Return the loss of some rows, a mean, in place of their outputs."""
        rows = len(ids)
        return Predictions(ids, np.full((rows, 1), loss), np.empty((rows, 0)), loss * rows)

    def weighted_loss(self, outputs: Outputs, batch: Tensors) -> Tensor:
        """Return the sum of the losses of the samples of a batch, each multiplied by its weight: ()."""
        if self._weighted is None:
            weighted = losses.build_weighted_loss(*self._asked_loss)
            self._weighted = self.heads.summed_weighted(weighted)
        weights = weights_of(batch, self.inputs.info)
        assert weights is not None, "the batch has weights"
        return self._weighted(outputs, batch, weights)

    @property
    def total_loss(self) -> losses.Loss:
        """The sum of the losses of the labels of a batch."""
        return losses.build_total_loss(*self._asked_loss)

    def check_fit(self, sample: Tensors) -> None:
        """Call the module with one sample, so that a wrong shape is an error here, not a traceback of step 1.

        Args:
            sample: Tensors (1, ...); those of a module on the device meta are put there.

        Raises:
            ModelError: The module or the loss fails on it, or the outputs have another shape than the task's;
                or the module changes its weights, and there are several processes.
        """
        name = self.inputs.config.model.type
        named = [(key, one) for key, one in self.module.named_parameters() if not is_lazy(one)]
        versions = [one._version for _, one in named]
        if next(self.module.parameters()).is_meta:
            sample = each(sample, lambda one: one.to("meta"))
        if not self.own.needs_forward:
            return
        shapes = ", ".join(f"{name} {_shape(sample[name])}" for name in self.names)
        try:
            # Not inference_mode: training may use what the model caches here.
            with torch.no_grad(), WithoutValues():
                self.module.eval()
                outputs = self.call(sample)
        except Exception as error:
            raise ModelError(f"model {name} fails on {shapes}: {error}{self._type_hint()}") from error
        finally:
            self.module.train()
        changed = [key for (key, one), before in zip(named, versions, strict=True) if one._version != before]
        if changed and self.inputs.world.size > 1:
            raise ModelError(
                f"the model changes its weights when it is called ({changed[0]}), as an nn.Embedding with "
                "max_norm does; each process calls it with other samples, so that they would differ: leave "
                "that out, or set distributed.nproc=1"
            )
        self._check_outputs(outputs)
        self.heads.check(outputs, sample)
        self._check_loss(outputs, sample)

    def _type_hint(self) -> str:
        """Return what to do about a module whose weights have another type than the data."""
        types = {one.dtype for one in self.module.parameters() if one.is_floating_point()}
        if self.inputs.model is None or types <= {torch.float32}:
            return ""
        given = ", ".join(sorted(str(one).removeprefix("torch.") for one in types))
        return f"; the data are float32 here, and the model is {given}: give net.float()"

    def _check_outputs(self, outputs: Outputs) -> None:
        """Check the outputs of one sample; warn of what looks like probabilities.

        Raises:
            ModelError: They have another shape than the task's.
        """
        info, name = self.inputs.info, self.inputs.config.model.type
        if self.task.is_open:
            return
        first = first_output(outputs)
        shape, expected = tuple(first.shape), (1, *self.task.output_shape)
        is_one_logit = losses.has_two_classes(self.task) and shape in ((1,), (1, 1))
        if shape != expected and not (shape == (1,) and expected == (1, 1)) and not is_one_logit:
            raise ModelError(
                f"model {name}: for one sample it gives {shape}, but the data has {info.outputs} "
                f"{self.task.noun}: a tensor of shape {expected} is expected"
            )
        if (
            self.task.losses[0] == "cross_entropy"
            and not first.is_meta
            and first.min() >= 0
            and abs(float(first.sum()) - 1) < 1e-6
        ):
            log.warning(
                "model %s gives probabilities: the loss applies the softmax itself, so leave it out of the "
                "model, or it learns slowly",
                name,
            )

    def _check_loss(self, outputs: Outputs, sample: Tensors) -> None:
        """Check that the loss of one sample can be computed, and has a gradient.

        Raises:
            ModelError: It cannot, or has none.
        """
        name, own = self.inputs.config.model.type, self.inputs.config.training.loss
        try:
            check = self.loss if weights_of(sample, self.inputs.info) is None else self.weighted_loss
            held = self.custom_losses.held()
            with torch.enable_grad():
                loss = check(_leaves(as_float(outputs)), sample)
            self.custom_losses.put_back(held)
            if not loss.requires_grad:
                raise ModelError(
                    f"training.loss: {own} has no gradient: it must compute with the outputs as they are, "
                    "without detach(), item(), numpy() or argmax()"
                )
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"training.loss: {own} fails on the outputs of model {name}: {type(error).__name__}: {error}"
            ) from error


def _shape(value: Any) -> Any:
    """Return the shape of an input, for messages; of a list or mapping the type."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def is_whole(config: RunConfig) -> bool:
    """Return whether each process has the whole model."""
    distributed = config.distributed
    return distributed.strategy == "ddp" and distributed.tensor * distributed.pipeline == 1


def _leaves(outputs: Outputs) -> Outputs:
    """Return the outputs as leaves, so that a loss has a gradient for them."""
    if isinstance(outputs, Tensor):
        return outputs.detach().requires_grad_(outputs.is_floating_point())
    if isinstance(outputs, Mapping):
        return {name: _leaves(value) for name, value in outputs.items()}
    return tuple(map(_leaves, outputs)) if isinstance(outputs, tuple | list) else outputs


def translated(error: Exception, where: str) -> TrainingError:
    """Return our error for an exception of torch."""
    if _LOST.search(str(error)):  # of a collective within the model
        return WorldError(f"another process is gone ({error})")
    hint = "see where with --debug"
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):  # on CPUs
        hint = (
            "set training.microbatch_size: a smaller one needs less memory, with the same step up to rounding"
        )
    elif "mixed torch.Tensor and DTensor" in str(error):
        hint = (
            "the model uses the weight of a module that it does not call, so that it was not gathered: leave "
            "that module out of distributed.wrap, or set min_num_params above its size"
        )
    return TrainingError(f"{where} failed: {type(error).__name__}: {error}; {hint}")


def _moved(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Return the module on a device; one that is there is left alone, since it may have no memory to move."""
    tensors = (*module.parameters(), *module.buffers())
    return module if all(one.device == device for one in tensors) else module.to(device)


def _check_tensors(module: torch.nn.Module, *, may_be_meta: bool = False) -> None:
    """Refuse a module with tensors that cannot be trained or saved.

    Raises:
        ModelError: A parameter or buffer has no values, is sparse, or is of a dtype such as complex64.
    """
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            continue
        if tensor.is_meta and not may_be_meta:
            raise ModelError(f"tensor {name!r} of the model is on the device meta, so it has no values")
        if tensor.layout != torch.strided:
            raise ModelError(
                f"tensor {name!r} of the model is sparse, which a checkpoint cannot hold: keep a dense one, "
                "and make it sparse in forward"
            )
        check_dtype(name, tensor)
