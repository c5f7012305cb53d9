"""The norm of gradients, added up in an order that does not depend on how they are divided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.frameworks.torch.parallel import collectives
from trainwright.frameworks.torch.state.layout import splits_of
from trainwright.world import Mesh


class Norms:
    """The norms of gradients that several processes have together.

    The squares are added up along each row, in as many pieces as the virtual mesh has slices where columns
    are split; these sums are gathered, and added up in float64 for each parameter, then over all, in the
    order of their names.

    Args:
        mesh: The sizes of the axes of the processes.
        group: Returns the process group of an axis.
        pieces: Returns the number of pieces of the rows of a parameter that this process has.
        names: The names of the parameters that this process counts, by their ids.
        stages: The names of those that each stage of the pipeline counts.
        device: Where the gradients are, on all processes: also of a stage that is frozen.
    """

    def __init__(
        self,
        mesh: Mesh,
        group: Callable[[str], Any],
        pieces: Callable[[nn.Parameter], int],
        names: Mapping[int, str],
        stages: Sequence[Collection[str]],
        device: torch.device,
    ) -> None:
        self._mesh, self._group, self._pieces, self._device = mesh, group, pieces, device
        self._names = names
        self._places = {name: place for place, name in enumerate(sorted(set().union(*stages)))}
        self._stages = [[self._places[name] for name in sorted(stage)] for stage in stages]

    def total(self, gradients: Sequence[tuple[nn.Parameter, Tensor]]) -> Tensor:
        """Return the norm of all gradients together, (), float32.

        Args:
            gradients: The parameters that have one, and the gradient of the block that this process has; the
                same parameters in all processes of a stage.
        """
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        values = dict.fromkeys(sorted(self._names.values()), zero)
        counted = [(one, gradient) for one, gradient in gradients if id(one) in self._names]
        for parameter, total in zip((one for one, _ in counted), self._totals(counted), strict=True):
            values[self._names[id(parameter)]] = total
        mine = torch.stack(list(values.values()))  # (own parameters,)
        if self._mesh.pipeline > 1:
            most = max(map(len, self._stages))
            parts = collectives.gather(
                nn.functional.pad(mine, (0, most - len(mine))), self._group("pipeline")
            )
            mine = mine.new_zeros(len(self._places))  # (parameters,)
            for places, part in zip(self._stages, parts, strict=True):
                mine[places] = part[: len(places)]
        return mine.sum().sqrt().float()

    def _totals(self, gradients: Sequence[tuple[nn.Parameter, Tensor]]) -> list[Tensor]:
        """Return the sum of the squares of each gradient, () float64."""
        parameters = [one for one, _ in gradients]
        sums: Sequence[Tensor] = [row_squares(gradient, self._pieces(one)) for one, gradient in gradients]
        for axis in ("shard", "tensor"):
            sums = self._gathered(sums, parameters, axis)
        return [one.double().sum() for one in sums]

    def _gathered(
        self, sums: Sequence[Tensor], parameters: Sequence[nn.Parameter], axis: str
    ) -> Sequence[Tensor]:
        """Return the sums, (rows, pieces) for each parameter, of all processes along an axis together."""
        processes: int = getattr(self._mesh, axis)
        dims = [splits_of(one).get(axis) for one in parameters]
        divided = [index for index, dim in enumerate(dims) if dim is not None]
        if processes == 1 or not divided:
            return sums
        sizes, mine = [], []
        for index in divided:
            rows = parameters[index].shape[0]
            if axis == "shard" and splits_of(parameters[index]).get("tensor") == 0:
                rows //= self._mesh.tensor  # these are divided first
            most = -(-rows // processes) if dims[index] == 0 else len(sums[index])
            sizes.append((rows, most))
            padding = (0, 0, 0, most - len(sums[index]))
            mine.append(nn.functional.pad(sums[index], padding).reshape(-1))
        columns = [
            torch.split(one, [len(part) for part in mine])
            for one in collectives.gather(torch.cat(mine), self._group(axis))
        ]
        whole = list(sums)
        for number, (index, (rows, most)) in enumerate(zip(divided, sizes, strict=True)):
            parts = [column[number].view(most, -1) for column in columns]
            whole[index] = torch.cat(parts, dim=dims[index] or 0)[:rows]
        return whole


def row_squares(gradient: Tensor, pieces: int = 1) -> Tensor:
    """Return the sums of the squares along each row of a gradient, (rows, pieces).

    A row is what lies along all dimensions but the first, an element where there are no others. Its sum does
    not depend on the other rows: on a CPU each has a loop of its own, and on a GPU the additions are those of
    a binary tree.

    Args:
        gradient: The gradient, (rows, ...).
        pieces: The number of pieces of equal length that the first dimension of a row is cut into.
    """
    squares = gradient.float() if gradient.element_size() < 4 else gradient
    squares = squares * squares
    if gradient.dim() < 2:
        return squares.reshape(-1, 1)
    rows = len(gradient)
    if not gradient.numel():  # the block of a process for which no rows are left
        return squares.new_zeros(rows, pieces)
    squares = squares.reshape(rows * pieces, -1)  # (rows * pieces, elements)
    if not squares.is_cuda:
        # A single row would be divided among threads.
        sums = squares.expand(2, -1).sum(1)[:1] if len(squares) == 1 else squares.sum(1)
        return sums.view(rows, pieces)
    while (size := squares.shape[1]) > 1:
        half = size // 2
        paired = squares[:, :half] + squares[:, half : 2 * half]
        squares = torch.cat([paired, squares[:, 2 * half :]], dim=1) if size % 2 else paired
    return squares.view(rows, pieces)
