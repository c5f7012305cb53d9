"""The processes of one attempt, and how they agree.

Every process makes the same attempt: it builds the same components, makes the same steps, evaluations and
decisions. The main one alone writes, and answers what depends on a clock, a signal or a file; `from_main` and
`gather` tell the others. Both are collective: all processes call them in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainyard.errors import InputError

T = TypeVar("T")
RESTARTS = "TRAINYARD_RESTARTS"  # how often the processes of a launch were started again
MAY_PASS = 75  # exit code of a process that has said why it failed, and that another try may help


class World:
    """The world of one process, which agrees with itself.

    `rank` counts the processes from 0, `local_rank` those of this machine; `size` is the number of all.
    """

    rank = 0
    local_rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank; they are small, and can be pickled."""
        return [value]

    def from_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process, and return its value in every one.

        Raises:
            Exception: The one that the function has raised, in every process.
        """
        return function()

    def main_only(self, function: Callable[[], Any]) -> None:
        """Call a function in the main process for its effect; the others wait, and raise what it raises."""
        function()

    def watch(self, seconds: float) -> None:
        """End this process, with its stacks on stderr, unless `rest` or `watch` is called in this time."""

    def rest(self) -> None:
        """Stop watching: this process waits for others, or does what may take long."""


ALONE = World()


# --- what launchers of processes tell a process about itself

_VARIABLES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))


def ranks_of_environment() -> tuple[int, int, int] | None:
    """Return rank, size and local rank of this process, or None if no launcher has started it beside others.

    Known are torchrun, everything that sets the same variables, and Slurm's srun.

    Raises:
        InputError: Some of the variables are missing, or are no numbers.
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
    """Return whether a launcher has started this process beside a main one, which speaks for all."""
    ranks = ranks_of_environment()
    return ranks is not None and ranks[0] != 0


def gpus() -> int:
    """Return the number of NVIDIA GPUs that this process may use, or 1 if there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([one for one in visible.split(",") if one.strip()]))
    return max(1, len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdecimal()]))
