"""The stages of a model, each in the process that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.outputs import Outputs
from trainwright.frameworks.torch.parallel.pipeline.links import Links
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.pipeline.schedule import undivided
from trainwright.frameworks.torch.parallel.pipeline.split import split
from trainwright.frameworks.torch.parallel.pipeline.uses import uses_of
from trainwright.frameworks.torch.parallel.strategy import Strategy


def placed_stages(
    module: nn.Module,
    strategy: Strategy,
    call: Callable[[Tensors], Outputs],
    sample: Tensors,
    first_blocks: Sequence[str],
    *,
    checkpoints: bool = False,
) -> Pipeline:
    """Divide a model into the stages of the virtual mesh, and leave this process its own; a collective call.

    Args:
        module: The whole model, before it is placed; it may be on the device meta.
        strategy: Places it afterwards; it learns which parameters several stages have.
        call: Calls the model.
        sample: Tensors (1, ...), from which the uses of parameters are found.
        first_blocks: The names of the first blocks of all stages but the first one; () leaves them to us.
        checkpoints: Whether activations are computed again in the backward pass.

    Raises:
        ModelError: The model cannot be divided.
    """
    distributed, processes = strategy.distributed, strategy.world.mesh.pipeline
    stages = split(module, distributed.virtual.sizes.pipeline, first_blocks)
    uses = uses_of(module, stages, call, sample)
    links = Links(strategy.process_group("pipeline")) if processes > 1 else None
    name: str = distributed.schedule
    if processes == 1 or strategy.passes_communicate or checkpoints:
        name = undivided(name, stages.count, processes)
    pipeline = Pipeline(module, stages, uses, links=links, name=name)
    pipeline.place(strategy.device)
    strategy.shared, strategy.copied = pipeline.shared, pipeline.copied
    return pipeline
