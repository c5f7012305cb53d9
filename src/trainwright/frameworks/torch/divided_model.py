"""A module that several processes have in parts, loaded for prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import InputError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.initial import InitialWeights, materialise
from trainwright.frameworks.torch.meta import WithoutValues
from trainwright.frameworks.torch.model import LiveModel, with_architecture
from trainwright.frameworks.torch.network import Network
from trainwright.frameworks.torch.outputs import as_float, first_output
from trainwright.frameworks.torch.parallel.pipeline.measured import MEASURED
from trainwright.frameworks.torch.parallel.pipeline.placed import placed_stages
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.process import device_of
from trainwright.frameworks.torch.state.structure import Structure
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.plugins import adapter
from trainwright.types import INPUT_IDS, Array, Ids


class DividedModel(LiveModel):
    """A module of which each process of a mesh has the part that it has in training, without an optimizer.

    All processes make the same calls, and get the same predictions: those of one process that has it whole.

    Args:
        inputs: What the model is built from, and the processes.
        folder: The files of its weights, of which each process reads its part.

    Raises:
        InputError: The model was given as an object, which each process has whole.
        ModelError: It cannot be divided, or the weights do not fit it.
    """

    def __init__(self, inputs: ModelInputs, folder: Path) -> None:
        if inputs.model is not None:
            raise InputError(
                "distributed.nproc: a model that is given as an object is whole in this process; leave it out"
            )
        distributed, device = inputs.config.distributed, device_of(inputs.config.training.device)
        inputs = with_architecture(inputs, folder)
        made = InitialWeights.of(inputs.config.model.type, inputs.model_params, inputs.info, divided=True)
        network = Network(inputs, made.module, is_placed=bool(made.why_whole))
        named: type[Strategy] = adapter("strategy", distributed.strategy)
        chosen = named.chosen(network.module, inputs.world, distributed.virtual.sizes)
        strategy = chosen(inputs.world, distributed=distributed, device=device)
        stages = None
        if distributed.virtual.sizes.pipeline > 1:
            given = distributed.pipeline_split
            first_blocks = () if given == MEASURED else given  # outputs do not depend on where stages begin
            sample = _sample(network)
            if not _can_be_called(network, sample):
                materialise(network.module, device)
            stages = placed_stages(network.module, strategy, network.call, sample, first_blocks)
        strategy.place(network.module)
        materialise(network.module, device)
        state = TrainingState(
            network.module,
            None,
            network.precision,
            network.built if stages is None else Structure.of(network.module),
            losses=network.custom_losses,
            elsewhere=() if stages is None else stages.elsewhere,
        )
        state.load(folder, weights_only=True)
        network.module.eval()
        super().__init__(network, state, network.source, strategy, stages)

    def next_token(self, tokens: Ids) -> Array:
        """Return the logits of the next token, (vocabulary,); a collective call."""
        network, stages, logits = self._network, self._pipeline, None
        batch = {INPUT_IDS: torch.from_numpy(tokens)[None].to(network.device)}  # (1, length)
        with torch.no_grad(), network.precision.autocast(), self._strategy.evaluating():
            outputs = network.call(batch) if stages is None else stages.predict(0, batch, network.call)
        if outputs is not None:
            logits = (
                first_output(as_float(outputs))[0, -1].double().cpu().numpy()
            )  # of (1, length, vocabulary)
        if stages is None or stages.size == 1:
            assert logits is not None, "this process has the last stage"
            return logits
        # All draw the next token from the same ones: those of a process that has the last stage.
        return next(one for one in self._strategy.world.gather(logits) if one is not None)


def _can_be_called(network: Network, sample: Tensors) -> bool:
    """Return whether the module can be called as it is, which may be on the device meta."""
    device = next(network.module.parameters()).device
    try:
        with torch.no_grad(), WithoutValues():
            network.call({name: one.to(device) for name, one in sample.items()})
    except Exception:  # it asks for values, say
        return False
    return True


def _sample(network: Network) -> Tensors:
    """Return a sample of zeros, (1, ...) each, from which stages are found: the run's data are not needed."""
    inputs = network.inputs.info.inputs
    arrays = {name: np.zeros((1, *spec.shape), spec.dtype) for name, spec in inputs.items()}
    return network.source(Arrays(arrays)).take(np.zeros(1, np.int64))
