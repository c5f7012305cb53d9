"""An exponential moving average of the weights (Polyak and Juditsky, 1992), which predicts and is saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainwright.config.training import EmaConfig
from trainwright.errors import ModelError
from trainwright.frameworks.torch.state.layout import address, is_divided, local, overlap


class Average:
    """The averages of the parameters of a module; buffers are not averaged.

    After step t, counted from 1, an average is decay * average + (1 - decay) * weight. It begins with the
    initial weights.
    """

    def __init__(self, model: nn.Module, config: EmaConfig, *, is_divided: bool = False) -> None:
        """Begin the averages.

        Args:
            model: The module.
            config: The section `training.ema` of the config.
            is_divided: Whether the bits must not depend on how processes divide the parameters.

        Raises:
            ModelError: A buffer shares memory with a parameter, which an evaluation would separate.
        """
        _refuse_views(model)
        self._config = config
        self._is_divided = is_divided
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters: list[Tensor] = list(model.parameters())
        self._values: list[Tensor] = []
        self.begin()

    def begin(self) -> None:
        """Begin anew with the weights as they are."""
        self._values = [parameter.detach().clone() for parameter in self._parameters]

    def decay(self, step: int) -> float:
        """Return what an average keeps in a step, counted from 1."""
        decay = self._config.decay
        return min(decay, (1 + step) / (10 + step)) if self._config.warmup else decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 1."""
        values, weights = [local(one) for one in self._values], [local(one) for one in self._parameters]
        if not self._is_divided:
            torch._foreach_lerp_(values, weights, 1 - self.decay(step))
            return
        # A kernel that multiplies and adds at once would round the ends of tensors otherwise (see `Blocks`).
        changes = torch._foreach_sub(weights, values)
        torch._foreach_mul_(changes, 1 - self.decay(step))
        torch._foreach_add_(values, changes)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the parameters the memory of their averages within the block; only blocks are copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def of_blocks(self) -> dict[int, Tensor]:
        """Return the averages of parameters that are `DTensor`s, by the addresses of these."""
        pairs = zip(self._parameters, self._values, strict=True)
        return {address(parameter): value for parameter, value in pairs if is_divided(parameter)}

    def trained(self) -> dict[str, Tensor]:
        """Return the weights that are trained, by the names of the parameters."""
        pairs = zip(self._names, self._parameters, strict=True)
        return {name: parameter.detach() for name, parameter in pairs}

    def restore(self, trained: Mapping[str, Tensor]) -> None:
        """Take the weights of the parameters as averages, and give the parameters those that are trained.

        A fork of a run that had no average has none: its average begins with the weights.
        """
        self.begin()
        if not trained:
            return
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters, strict=True):
                parameter.copy_(trained[name])

    def _swap(self) -> None:
        for index, parameter in enumerate(self._parameters):
            value = self._values[index]
            if is_divided(parameter):  # whose memory others know, such as FSDP2
                trained = parameter.detach().clone()
                parameter.detach().copy_(value)
                value.copy_(trained)
            else:
                self._values[index], parameter.data = parameter.data, value


def _refuse_views(model: nn.Module) -> None:
    for buffer_name, buffer in model.named_buffers():
        for name, parameter in model.named_parameters():
            if overlap(buffer, parameter):
                raise ModelError(
                    f"training.ema: the buffer {buffer_name} shares its memory with the parameter {name}, "
                    "which has that of its average in evaluations; compute it from the parameter in forward"
                )
