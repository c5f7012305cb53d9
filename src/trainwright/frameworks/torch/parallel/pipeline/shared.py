"""The gradients of parameters that several stages use, such as a tied embedding and output layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainwright.frameworks.torch.parallel.pipeline.links import Arrival, Channel, Links
from trainwright.frameworks.torch.state.layout import is_divided, local, with_block

Gradients = dict[tuple[int, int], Tensor]  # blocks of this process, by parameter (its index) and stage


class SharedGradients:
    """Adds up the gradients of shared parameters: over the microbatches in each stage, then over the stages.

    Every process that has one of the stages has a copy of the parameter, and gets the same sum.

    Args:
        uses: The stages that use each shared parameter, by name.
        owners: The process that owns each stage.
        links: Connects the processes; None: there is only one.
        first_tag: The first number that is left for channels.
    """

    def __init__(
        self,
        uses: Mapping[str, tuple[int, ...]],
        owners: Sequence[int],
        links: Links | None,
        first_tag: int,
    ) -> None:
        self._names, self._uses, self._owners, self._links = list(uses), list(uses.values()), owners, links
        self._parameters: dict[int, nn.Parameter] = {}  # those that this process has, by their index
        self._current: Gradients = {}
        self._ended: dict[int, Gradients] = {}  # by virtual rank
        size = 1 if links is None else links.size
        pairs = [(one, other) for one in range(size) for other in range(size) if one != other]
        self.channels = [Channel(first_tag + i, *pair) for i, pair in enumerate(pairs) if self._items(*pair)]

    def prepare(self, named: Mapping[str, nn.Parameter]) -> None:
        """Take the parameters of this process from those of its module by name."""
        self._parameters = {i: named[name] for i, name in enumerate(self._names) if name in named}

    def _items(self, source: int, target: int) -> list[tuple[int, int]]:
        """Return which gradients a process sends to another one, as in `Gradients`."""
        return [
            (index, stage)
            for index, stages in enumerate(self._uses)
            for stage in stages
            if self._owners[stage] == source and any(self._owners[other] == target for other in stages)
        ]

    def begin(self, stage: int) -> None:
        """Give the parameters their gradients so far in a stage, before its backward pass."""
        for index, parameter in self._parameters.items():
            if stage in self._uses[index]:
                gradient = self._current.get((index, stage))
                parameter.grad = None if gradient is None else _like(gradient, parameter)

    def end(self, stage: int) -> None:
        """Take the gradients of a stage out of the parameters after its backward pass."""
        for index, parameter in self._parameters.items():
            if stage in self._uses[index] and parameter.grad is not None:
                self._current[index, stage] = local(parameter.grad)
                parameter.grad = None

    def end_rank(self, stage: int, rank: int) -> None:
        """Keep the gradients of a stage for the sum over a virtual rank."""
        mine = [key for key in self._current if key[1] == stage]
        self._ended.setdefault(rank, {}).update({key: self._current.pop(key) for key in mine})

    def exchange(self, rank: int, *, is_empty: bool = False) -> Exchange:
        """Begin to exchange the gradients of a virtual rank, which all stages of this process have ended.

        Args:
            rank: The virtual rank.
            is_empty: Whether it has no microbatches.
        """
        own = self._ended.pop(rank, {})
        arrivals = []
        for channel in [] if is_empty else self.channels:
            assert self._links is not None
            items = self._items(channel.source, channel.target)
            if channel.source == self._links.index:
                self._links.send(channel, self._packed(items, own))
            elif channel.target == self._links.index:
                blocks = [local(self._parameters[index]) for index, _ in items]
                size = sum(one.nbytes for one in blocks) + len(items)
                empty = torch.empty(0, dtype=torch.uint8, device=blocks[0].device)
                arrivals.append((items, self._links.receive(channel, (size,), empty)))
        return Exchange(self, own, arrivals)

    def _packed(self, items: Sequence[tuple[int, int]], own: Gradients) -> Tensor:
        """Return gradients as one message: their bytes, then for each whether there is one."""
        parts = []
        for index, stage in items:
            gradient = own.get((index, stage))
            parts.append(torch.zeros_like(local(self._parameters[index])) if gradient is None else gradient)
        flags = torch.tensor([item in own for item in items], dtype=torch.uint8, device=parts[0].device)
        return torch.cat([*(one.detach().contiguous().view(-1).view(torch.uint8) for one in parts), flags])

    def unpacked(self, items: Sequence[tuple[int, int]], message: Tensor) -> Gradients:
        """Return the gradients in a message."""
        flags, at, gradients = message[len(message) - len(items) :].tolist(), 0, Gradients()
        for item, is_there in zip(items, flags, strict=True):
            block = local(self._parameters[item[0]])
            part = message[at : at + block.nbytes].clone().view(block.dtype).view(block.shape)
            at += block.nbytes
            if is_there:
                gradients[item] = part
        return gradients

    def totals(self, gradients: Gradients) -> list[tuple[nn.Parameter, Tensor | None]]:
        """Return the sum over the stages for each parameter, in the order of the stages."""
        totals: list[tuple[nn.Parameter, Tensor | None]] = []
        for index, parameter in self._parameters.items():
            parts = [gradients[index, stage] for stage in self._uses[index] if (index, stage) in gradients]
            total = parts[0] if parts else None
            for part in parts[1:]:
                total = part if total is None else total + part
            totals.append((parameter, None if total is None else _like(total, parameter)))
        return totals


def _like(block: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, of which this process may have a block."""
    return with_block(block, parameter) if is_divided(parameter) else block


class Exchange:
    """The gradients of one virtual rank, on their way between the processes."""

    def __init__(
        self,
        shared: SharedGradients,
        own: Gradients,
        arrivals: Sequence[tuple[Sequence[tuple[int, int]], Arrival]],
    ) -> None:
        self._shared, self._own, self._arrivals = shared, own, arrivals

    @property
    def is_remote(self) -> bool:
        """True if other processes take part."""
        return bool(self._arrivals)

    def finish(self) -> list[tuple[nn.Parameter, Tensor | None]]:
        """Return the sum of each shared parameter when all are here."""
        gradients = dict(self._own)
        for items, arrival in self._arrivals:
            gradients |= self._shared.unpacked(items, arrival.wait())
        return self._shared.totals(gradients)
