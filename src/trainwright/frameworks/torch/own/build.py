"""The steps of modules that say themselves how they are trained, as the config and the processes allow."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from trainwright.errors import ModelError
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.optim.several import Several
from trainwright.frameworks.torch.optim.update import Clipping, Update
from trainwright.frameworks.torch.own.calls import check_lightning
from trainwright.frameworks.torch.own.configured import Rates
from trainwright.frameworks.torch.own.names import is_given, is_lightning
from trainwright.frameworks.torch.own.runner import ManualStep, OwnStep
from trainwright.frameworks.torch.own.training import STEP, OwnTraining, has_own_step
from trainwright.frameworks.torch.parallel.batch_norm import has_batch_norms
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.precision import Precision
from trainwright.plugins import task_for

log = logging.getLogger("trainwright")
_ONLY = "optimizer"  # the name of the only one


def own_training(module: nn.Module, inputs: LearnerInputs) -> OwnTraining | None:
    """Return the step of a module that has its own; None if it has none.

    Raises:
        ModelError: The config asks for what such a step cannot have.
    """
    if not has_own_step(module):
        return None
    if is_lightning(module):
        check_lightning(module)
    own = OwnTraining(module)
    config, training, virtual = inputs.config, inputs.config.training, inputs.config.distributed.virtual.sizes
    has_weights = config.data is not None and config.data.weight is not None
    refused = {
        "training.compile: true": training.compile,
        "training.class_weights": training.class_weights is not None,
        # Its batches are pairs of features and target.
        "data.weight": has_weights and is_lightning(module),
        f"distributed.strategy: {config.distributed.strategy}": inputs.world.size > 1
        and config.distributed.strategy != "ddp",
        "distributed.tensor": virtual.tensor > 1,
        "distributed.pipeline": virtual.pipeline > 1,
    }
    if has_weights and inputs.world.is_main:
        log.warning(
            'the loss of %s counts the weights of rows, batch["weight"], only if it does so itself', STEP
        )
    if own.is_manual:
        is_cut = virtual.data > 1 and has_batch_norms(module)
        refused |= {
            "training.precision: fp16": Precision(training.precision, torch.device("cpu")).scale is not None,
            "training.activation_checkpointing": bool(training.activation_checkpointing),
            "distributed.virtual.data above 1 with batch normalization": is_cut,
        }
        is_open = task_for(inputs.info).is_open and not is_given(module, "validation_step")
        if is_open and len(inputs.splits.get("val", ())):
            raise ModelError(
                f"the model's {STEP} makes its updates itself, so that its loss judges nothing: write a "
                "validation_step(batch, step) that returns a loss; or train without validation rows, "
                "data.split.val: 0"
            )
        few = [size for size in inputs.order.batch_sizes if size < virtual.data]
        refused[f"a last batch of {min(few, default=0)} rows for {virtual.data} virtual ranks"] = bool(few)
    for what, is_asked in refused.items():
        if is_asked:
            kind = "makes its updates itself" if own.is_manual else "is its own"
            raise ModelError(
                f"{what}: not with a model whose {STEP} {kind}; leave it out"
                f"{', or set training.drop_last' if what.startswith('a last') else ''}"
            )
    return own


def own_step(
    own: OwnTraining,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    module: nn.Module,
    inputs: LearnerInputs,
    rates: Rates | None,
    *args: Any,
    **options: Any,
) -> OwnStep:
    """Return the steps of a module.

    Args:
        own: What the module says.
        optimizer: Its optimizer, or several.
        average: The average of its weights, if there is one.
        module: The module.
        inputs: The config and the processes.
        rates: The rates of optimizers that the module has configured itself.
        args: The other arguments of `TorchStep`.
        options: Its options.
    """
    if not own.is_manual:
        return OwnStep(own, *args, **options)
    parts = optimizer.parts if isinstance(optimizer, Several) else {_ONLY: optimizer}
    strategy: Strategy = options["strategy"]
    precision: Precision = args[1]
    updates = {}
    if own.lightning is not None:
        own.lightning.optimizers = parts
    for name, part in parts.items():
        trained = {id(one) for group in part.param_groups for one in group["params"]}
        parameters = [one for one in module.parameters() if id(strategy.blocks.updated(one)) in trained]
        clipping = Clipping.of(inputs.config.training)
        updates[name] = Update(part, parameters, precision, clipping, None, strategy, rates)
    return ManualStep(own, updates, average, *args, **options)
