"""Data parallel training: each process holds the whole state, and computes a part of each batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from trainwright.frameworks.torch.parallel.all_reduce import GradientAllReduce
from trainwright.frameworks.torch.parallel.strategy import Strategy


class DataParallel(Strategy):
    """All processes hold the same state, and send each other the gradients while a backward pass goes on."""

    _all_reduce: GradientAllReduce | None = None

    def train(self, parameters: Sequence[nn.Parameter]) -> None:
        """Prepare the all-reduce of these gradients."""
        super().train(parameters)
        self._close_all_reduce()
        if (copies := self.world.mesh.data) == 1:
            return
        group = None if copies == self.world.size else self.process_group("data")
        blocks = [self.blocks.held(one) for one in parameters]
        self._all_reduce = GradientAllReduce(
            parameters, self._tree, self.world, blocks=blocks, group=group, is_exact=self.distributed.exact
        )

    def close(self) -> None:
        """Remove the hooks of the parameters, too."""
        super().close()
        self._close_all_reduce()

    def _close_all_reduce(self) -> None:
        if self._all_reduce is not None:
            self._all_reduce.close()

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        *,
        ends_part: bool = False,  # noqa: ARG002
        is_last: bool = False,
        stage: Sequence[nn.Parameter] | None = None,  # noqa: ARG002
    ) -> None:
        """Add the gradients; in the last backward pass, send them as they become ready."""
        if is_last and self._all_reduce is not None:
            self._all_reduce.arm()
        loss.backward(gradient)

    def end_part(self, *, is_last: bool) -> None:
        """Take the gradients of a virtual rank; the all-reduce takes those of the last one."""
        if not is_last or self._all_reduce is None:
            self._tree.take()

    def reduce(self) -> None:
        """Finish the all-reduce."""
        if self._all_reduce is None:
            super().reduce()
        else:
            self._all_reduce.finish()
