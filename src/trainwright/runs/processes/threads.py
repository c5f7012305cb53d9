"""The number of CPU threads that a run can have, and that it takes where its config says nothing."""

from __future__ import annotations

import os
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.frameworks.base import Framework, Plan
from trainwright.process.environ import asked_threads
from trainwright.types import DataInfo

SMALL_STEP = 30_000_000  # multiplications; one thread makes them in a few milliseconds


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_threads(config: RunConfig) -> int:
    """Return how many CPU threads each place of the virtual mesh can have.

    They share the processors that may be used. So it is the same for each number of processes, as it
    may change bits.
    """
    return max(1, processors() // config.distributed.virtual.sizes.size)


def default_threads(
    framework: type[Framework], config: RunConfig, info: DataInfo, plan: Plan, model: Any = None
) -> int:
    """Return the number of CPU threads of a process where the config sets none: one for small steps.

    `OMP_NUM_THREADS` is obeyed, whatever the size of the steps.

    The threads of a small step wait for each other longer than they compute, and ten times as long as one
    thread computes where other programs use the processors, too.
    """
    if (asked := asked_threads()) is not None:
        return asked
    work = framework.step_work(config, info, plan, model)
    return 1 if work is not None and work < SMALL_STEP else available_threads(config)
