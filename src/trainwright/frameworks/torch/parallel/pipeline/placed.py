"""The stages of a model, each in the process that has it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.outputs import Outputs
from trainwright.frameworks.torch.parallel.pipeline.links import Links
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.pipeline.split import split
from trainwright.frameworks.torch.parallel.pipeline.uses import uses_of
from trainwright.frameworks.torch.parallel.strategy import Strategy


def placed_stages(
    module: nn.Module, strategy: Strategy, call: Callable[[Tensors], Outputs], sample: Tensors
) -> Pipeline:
    """Divide a model into the stages of the virtual mesh, and leave this process its own; a collective call.

    Args:
        module: The whole model, before it is placed; it may be on the device meta.
        strategy: Places it afterwards; it learns which parameters several stages have.
        call: Calls the model.
        sample: Tensors (1, ...), from which the uses of parameters are found.

    Raises:
        ModelError: The model cannot be divided.
    """
    distributed = strategy.distributed
    stages = split(module, distributed.virtual.sizes.pipeline, distributed.pipeline_split)
    uses = uses_of(module, stages, call, sample)
    several = strategy.world.mesh.pipeline > 1
    links = Links(strategy.process_group("pipeline")) if several else None
    pipeline = Pipeline(module, stages, uses, links=links, name=distributed.schedule)
    pipeline.place(strategy.device)
    strategy.shared, strategy.copied = pipeline.shared, pipeline.copied
    return pipeline
