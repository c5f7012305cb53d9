"""Virtual ranks that depend on each other within a step, such as through synchronized batch normalization.

Each runs in a thread of its own until it needs a sum over all of them, and waits there for the others, as at
a barrier. Only one thread runs at a time, so the result does not depend on scheduling. The sums follow the
tree of the virtual ranks, so their bits do not depend on the number of processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainwright.errors import ModelError
from trainwright.frameworks.torch.parallel.all_reduce import gather_tensor
from trainwright.frameworks.torch.parallel.virtual_ranks import tree_sum
from trainwright.world import World

T = TypeVar("T")
U = TypeVar("U")
_END = -1  # the key that says that a step needs no more sums
_UNEQUAL = "the parts of a batch (virtual ranks) call the layers of batch normalization in different orders"


class Lockstep:
    """Run the virtual ranks of this process in threads that meet at each sum over all virtual ranks.

    Args:
        generators: The generators that the model draws from. Each virtual rank has its own stream.
        world: The processes.
        ranks: The number of virtual ranks of this process. On a GPU it is 1 if they meet within backward
            passes, since torch runs all those of a GPU in one thread.
        unequal: The message where they do not meet alike.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        world: World,
        ranks: int,
        unequal: str = _UNEQUAL,
    ) -> None:
        self._unequal = unequal
        self._generators = generators
        self._device = generators[-1].device
        self._world = world
        self._ranks = ranks
        self._turns = [threading.Semaphore(0) for _ in range(ranks)]
        # A thread takes over torch's number of threads when it first asks; oneDNN's kernels do not ask.
        pool = partial(ThreadPoolExecutor, ranks, "trainwright-virtual-rank", torch.get_num_threads)
        self._threads = pool() if ranks > 1 else None
        self._local = threading.local()  # .rank: the virtual rank that a thread computes
        self._meeting: list[Any] = [None] * ranks  # what each rank at the barrier has given
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done = [True] * ranks

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Call one function for each virtual rank of this process, in turns, and return their values.

        Raises:
            ModelError: The virtual ranks need different sums.
            Exception: The first one that a function raises.
        """
        if self._threads is None:
            values = [function() for function in functions]
            self.agree(_END)
            return values
        self._error = None
        self._meeting = [None] * self._ranks
        self._is_done = [False] * self._ranks
        futures = [
            self._threads.submit(self._take_turns, rank, function) for rank, function in enumerate(functions)
        ]
        self._turns[0].release()
        results = [future.exception() or future.result() for future in futures]
        if self._error is not None:
            raise self._error
        self.agree(_END)
        return results  # type: ignore[return-value] # none is an exception

    @property
    def rank(self) -> int:
        """Which virtual rank of this process the calling thread computes, from 0."""
        return 0 if self._threads is None else self._local.rank

    def total(self, key: int, value: Tensor) -> Tensor:
        """Return the sum of the values that all virtual ranks pass, (elements,), which they must not change.

        Args:
            key: Identifies the sum; it must be the same in all virtual ranks.
            value: The value of this one, (elements,).

        Raises:
            ModelError: Another virtual rank adds up something else, or has failed.
        """
        return self.meet(torch.cat([value, value.new_tensor([key])]), self._sum)

    def meet(self, given: T, together: Callable[[Sequence[T]], U]) -> U:
        """Return what `together` makes, once for all, of what the virtual ranks of this process give.

        Raises:
            ModelError: Another virtual rank does not come here, or has failed.
        """
        if self._threads is None:
            return together([given])
        rank: int = self._local.rank
        self._meeting[rank] = given
        streams = [generator.get_state() for generator in self._generators]
        if rank == self._ranks - 1:
            present = [one for one in self._meeting if one is not None]
            self._meeting = [None] * self._ranks
            if len(present) < self._ranks:
                raise ModelError(self._unequal)
            self._result = together(present)
        self._pass_on(rank)
        self._turns[rank].acquire()
        if self._error is not None:
            raise ModelError("another virtual rank has failed")
        for generator, stream in zip(self._generators, streams, strict=True):
            generator.set_state(stream)
        result: U = self._result
        return result

    def _sum(self, marked: Sequence[Tensor]) -> Tensor:
        """Return the sum over the virtual ranks of all processes, without the key at the end of each."""
        if len({(one.shape, float(one[-1])) for one in marked}) > 1:
            raise ModelError(self._unequal)
        total = tree_sum([one[:-1] for one in marked])
        self.agree(int(marked[0][-1]), total.numel())
        mesh, rank = self._world.mesh, self._world.rank
        totals = gather_tensor(total, self._world) if self._world.size > 1 else [total]
        # Processes along the axis `tensor` compute the same samples, which count once.
        alike = [
            mesh.coordinates(process).tensor == mesh.coordinates(rank).tensor
            for process in range(len(totals))
        ]
        return tree_sum(list(compress(totals, alike)))

    def agree(self, key: int, numel: int = 0) -> None:
        """Make sure that all processes are about to make the same sum, or have none left to make."""
        if self._world.size == 1:
            return
        headers = gather_tensor(torch.tensor([key, numel], device=self._device), self._world)
        if any(not torch.equal(header, headers[0]) for header in headers):
            raise ModelError(self._unequal)

    def _take_turns(self, rank: int, function: Callable[[], T]) -> T:
        """Call a function when it is this virtual rank's turn for the first time."""
        self._turns[rank].acquire()
        self._local.rank = rank
        try:
            if self._error is not None:
                raise ModelError("another virtual rank has failed")
            return function()
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._is_done[rank] = True
            if any(one is not None for one in self._meeting) and rank == self._ranks - 1:
                self._error = self._error or ModelError(self._unequal)
            self._pass_on(rank)

    def _pass_on(self, rank: int) -> None:
        """Give the turn to the next virtual rank that is not done."""
        others = [(rank + 1 + i) % self._ranks for i in range(self._ranks)]
        following = next((other for other in others if not self._is_done[other]), None)
        if following is not None:
            self._turns[following].release()
