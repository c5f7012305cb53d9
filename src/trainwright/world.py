"""The processes of one attempt, and how they agree.

Every process makes the same attempt: it builds the same components, makes the same steps, evaluations and
decisions. The main one alone writes, and answers what depends on a clock, a signal or a file; `from_main` and
`gather` tell the others. Both are collective: all processes call them in the same order.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainwright.errors import InputError, TrainingError

T = TypeVar("T")
RESTARTS = "TRAINWRIGHT_RESTARTS"  # how often the processes of a launch were started again
RETRYABLE = 75  # exit code of a process that has said why it failed, and that another try may help
FINAL = 76  # exit code of a process that has said why it failed, and that no other try would help


class Mesh(NamedTuple):
    """The sizes of a grid of processes along its axes; neighbouring ranks differ along the last one.

    Attributes:
        pipeline: Stages of the model.
        data: Copies of the model, each with a part of the batch.
        shard: Parts of each parameter's rows, gathered to compute; each with a part of the batch, too.
        tensor: Slices of each layer.
    """

    pipeline: int = 1
    data: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        """The number of processes."""
        return math.prod(self)

    def coordinates(self, rank: int) -> Mesh:
        """Return the place of a process along each axis, each counted from 0."""
        places = []
        for size in reversed(self):
            rank, place = divmod(rank, size)
            places.append(place)
        return Mesh(*reversed(places))


class World:
    """The world of a single process, and the base class of larger ones.

    `rank` is this process's number among all `size` processes, `local_rank` among those of its machine;
    `mesh` is the grid that the processes form.
    """

    rank = 0
    local_rank = 0
    size = 1
    mesh = Mesh()

    @property
    def is_main(self) -> bool:
        """True for the main process (rank 0), which alone writes the run's records."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank; they must be small and picklable."""
        return [value]

    def to_main(self, value: T) -> list[T]:
        """Return the values of all processes, by rank, in the main one; the others need not get any."""
        return self.gather(value)

    def from_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process, and return its value in every one.

        Raises:
            Exception: In every process, the exception that the function raised.
        """
        return function()

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.main_only(lambda: None)

    def main_only(self, function: Callable[[], Any]) -> None:
        """Call a function in the main process for its effect; the others wait, and raise what it raises."""
        function()

    def watch(self, seconds: float) -> None:
        """Watch the next steps, until `rest`: end this process if it makes no progress for so long.

        Its stacks are on stderr then, and the launcher starts all processes again. One that waits for others
        is given twice as long.
        """

    def working(self, where: str, least: float = 60.0) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context in which this process is ended if it makes no progress, and waits for nobody.

        The first time, it has half an hour; then ten times as long as it took, or `least` seconds.

        Args:
            where: What it does, as messages say it: `a save`.
            least: In seconds.
        """
        return nullcontext()

    def leave(self) -> None:
        """End what connects the processes, after the last collective call."""

    def rest(self) -> None:
        """Stop watching the steps, before waiting for others or doing something that may take long."""


ALONE = World()


def portable(error: BaseException) -> BaseException:
    """Return an error that other processes can unpickle: this one, or a new one with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TrainingError(f"{type(error).__name__}: {error}")
    return error


# --- what launchers of processes tell a process about itself

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_VARIABLES = (RANK_VARIABLES, ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))


def ranks_of_environment() -> tuple[int, int, int] | None:
    """Return rank, world size and local rank as a launcher set them, or None if this is the only process.

    The variables of torchrun (and of launchers that set the same ones) and of Slurm's srun are known.

    Raises:
        InputError: Some of the variables are missing, or are not numbers.
    """
    for names in _VARIABLES:
        if names[0] not in os.environ or os.environ.get(names[1], "1") == "1":
            continue
        try:
            rank, size, local_rank = (int(os.environ[name]) for name in names)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{names[0]} is set, as by a launcher of processes, but {', '.join(names)} are not all "
                f"numbers ({error}); start the processes with torchrun or srun, or unset {names[0]}"
            ) from error
        return rank, size, local_rank
    return None


def is_follower() -> bool:
    """Return whether this process has a rank above 0, so that the main process prints for it."""
    ranks = ranks_of_environment()
    return ranks is not None and ranks[0] != 0


def gpus() -> int:
    """Return the number of NVIDIA GPUs that this process may use, or 1 if there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([one for one in visible.split(",") if one.strip()]))
    return max(1, len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdecimal()]))
