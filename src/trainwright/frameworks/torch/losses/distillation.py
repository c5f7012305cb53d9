"""The loss of a student: the targets, and what a trained model says of the same samples.

Hinton, Vinyals and Dean: "Distilling the knowledge in a neural network", 2015.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from trainwright.config import load as load_config
from trainwright.digest import WEIGHTS, WEIGHTS_FILE, digest, tensor_records
from trainwright.errors import ModelError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.model import opened
from trainwright.frameworks.torch.network import Network
from trainwright.frameworks.torch.outputs import Outputs, as_float, class_logits, first_output
from trainwright.frameworks.torch.state.snapshot import named_buffer
from trainwright.records.data import DataDescription
from trainwright.types import TARGET, DataInfo


class Distillation:
    """The mean of two losses of each sample, (rows,): against its target, and against the teacher.

    Where no gradient is computed, as in evaluations, it is that of the target alone, so that values compare
    with those of other runs; no teacher is needed then.

    Targets that are integers are classes, others are values.

    Args:
        teacher: The directory of the teacher's run.
        weights: The folder of its weights in there.
        digest: The digest of these, which is an input of the student's run.
        temperature: Divides the logits of both, so that small probabilities count, too.
        share: The weight of the teacher's part, from 0 to 1.
    """

    def __init__(
        self,
        teacher: str,
        weights: str,
        digest: str,
        temperature: float = 2.0,
        share: float = 0.5,
    ) -> None:
        self.source = teacher, weights, digest
        self.temperature, self.share = temperature, share

    def __call__(self, outputs: Outputs, batch: Tensors) -> Tensor:
        """Return the loss of each sample, (rows,), of what the student returned."""
        own, target = first_output(outputs), batch[TARGET]
        if target.is_floating_point():
            hard = _squares(own, target)
        else:
            hard = functional.cross_entropy(class_logits(own), target, reduction="none")
        if not torch.is_grad_enabled():
            return hard
        network = _opened(*self.source)
        network.module.to(own.device)
        with torch.no_grad():
            said = first_output(as_float(network.call(batch)))
        soft = _squares(own, said) if target.is_floating_point() else self._divergence(own, said)
        return (1 - self.share) * hard + self.share * soft

    def _divergence(self, own: Tensor, said: Tensor) -> Tensor:
        """Return the loss against the teacher; the square keeps its gradients at the size of the others."""
        mine, theirs = (
            functional.log_softmax(class_logits(one) / self.temperature, 1) for one in (own, said)
        )
        divergence = functional.kl_div(mine, theirs, reduction="none", log_target=True).sum(dim=1)  # (rows,)
        return divergence * self.temperature**2


def _squares(own: Tensor, other: Tensor) -> Tensor:
    """Return the mean square difference of each sample, (rows,)."""
    difference = own.reshape(len(own), -1) - other.reshape(len(own), -1)
    return difference.square().mean(dim=1)


@cache  # of the process: a student is trained step by step with one teacher
def _opened(teacher: str, weights: str, expected: str) -> Network:
    """Return the network of a teacher, in evaluation mode.

    Raises:
        ModelError: It is gone, or has other weights.
    """
    folder = Path(teacher)
    description = DataDescription.load(folder / DataDescription.FILE)
    if description is None or not (folder / weights / WEIGHTS_FILE).is_file():
        raise ModelError(f"training.loss: the teacher, {folder}, is not there any more: put it back")
    config = load_config(folder / "config.yaml", (), None).config
    inputs = ModelInputs(config, DataInfo.from_json(description.info), config.model.params, threads=1)
    network, state = opened(inputs, folder / weights)
    tensors = state.files(weights_only=True)[WEIGHTS_FILE]
    found = digest(tensor_records(named_buffer(f"{WEIGHTS}{name}", one) for name, one in tensors.items()))
    if found != expected:
        raise ModelError(f"training.loss: the teacher, {folder}, has other weights than when it was chosen")
    network.module.eval().requires_grad_(False)
    return network
