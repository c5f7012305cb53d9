"""Data parallel training: each process holds the whole state, and computes a part of each batch."""

from __future__ import annotations

from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.snapshot import Files, Owned, Tensors
from trainwright.frameworks.torch.training_state import OPTIMIZER_FILE


class DataParallel(Strategy):
    """All processes hold the same state; the first one saves the weights, all a part of the optimizer's."""

    def owned(self, files: Files) -> Owned:
        """Return a part of about the same size as those of the others; every process divides alike."""
        if self.index is None:
            return Owned({})
        optimizer = files.get(OPTIMIZER_FILE)
        others = {file: tensors for file, tensors in files.items() if file != OPTIMIZER_FILE}
        own = others if self.index == 0 else {}
        if optimizer is None:
            return Owned(own)
        sizes = [sum(one.nbytes for tensors in others.values() for one in tensors.values())]
        sizes += [0] * (self.count - 1)
        mine: Tensors = {}
        for name, tensor in sorted(optimizer.items(), key=lambda item: (-item[1].nbytes, item[0])):
            smallest = sizes.index(min(sizes))
            sizes[smallest] += tensor.nbytes
            if smallest == self.index:
                mine[name] = tensor
        return Owned(own | {self.own_file(OPTIMIZER_FILE): mine})
