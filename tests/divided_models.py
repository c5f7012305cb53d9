"""A model whose state is divided among the processes that train it, by a strategy for tests.

Each process computes on the whole state, but holds and saves only parts of it for others to see: whole tensors,
rows of some, and columns of others.
"""

import os

from trainwright.frameworks.torch.parallel import saving
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.state.snapshot import Files, Owned, Tensors
from trainwright.plugins import replace_adapter
from trainwright.testing.strategy_model import Net as WholeNet
from trainwright.types import Block


class Divided(DataParallel):
    """Two processes that each own other parts of the state."""

    divides_state = True

    def owned(self, files: Files) -> Owned:
        """Return them all, under the names of this process's files."""
        tensors, blocks = self.held(files)
        return Owned(
            {self.own_file(file): some for file, some in tensors.items()},
            {self.own_file(file): some for file, some in blocks.items()},
        )

    def held(self, files: Files) -> Owned:
        """Return the parts of this process."""
        tensors: Files = {}
        blocks: dict[str, dict[str, Block]] = {}
        for file, some in files.items():
            tensors[file], blocks[file] = self._part(some)
        return Owned(tensors, blocks)

    def _part(self, whole: Tensors) -> tuple[Tensors, dict[str, Block]]:
        tensors, blocks = {}, {}
        for number, (name, tensor) in enumerate(sorted(whole.items())):
            axis = (number + 1) % 3 - 1  # whole, by rows, or by columns
            if axis < 0 or tensor.ndim <= axis or tensor.shape[axis] < 2:
                if number % 2 == self.index:
                    tensors[name] = tensor
                continue
            cut = tensor.shape[axis] // 3 + 1
            first, last = ((0, cut), (cut, tensor.shape[axis]))[self.index or 0]
            tensors[name] = tensor.narrow(axis, first, last - first)
            offset = tuple(first if one == axis else 0 for one in range(tensor.ndim))
            blocks[name] = Block(offset, tuple(tensor.shape))
        return tensors, blocks


if os.environ.get("WORLD_SIZE", "1") != "1":
    replace_adapter("strategy", "ddp", Divided)
    if "FAR_APART" in os.environ:  # each process is on a machine of its own, as far as it knows
        saving._machine = lambda: os.environ["RANK"]
        saving._sees = lambda _: False


class Net(WholeNet):
    """The same model."""
