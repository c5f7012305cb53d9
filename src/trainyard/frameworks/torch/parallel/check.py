"""Measures how the processes of a world reach each other: `python -m ... check FOLDER`, in each of them."""

from __future__ import annotations

import json
import platform
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainyard.frameworks.torch.parallel.launch import RESULT
from trainyard.frameworks.torch.parallel.world import join
from trainyard.version import VERSION
from trainyard.world import World

_SMALL, _LARGE = 2, 25 << 18  # elements of 4 bytes: 8 bytes, 25 MiB
_SKEW = 1.0  # seconds
_SLOW_SECONDS, _SLOW_BYTES = 0.01, 50e6  # of a small message, and per second


def measure(world: World) -> dict[str, Any]:
    """Return what was measured, and what is wrong; collective.

    Returns:
        `processes`, their `hosts` and `versions`, the latency of a small all-reduce in seconds, the bandwidth
        of one of 25 MiB in bytes per second, the greatest difference of two clocks in seconds, `problems`.
    """
    small, large = _seconds(_SMALL, 50), _seconds(_LARGE, 5)
    clocks = world.gather(time.time())  # the all-reduce before it lets them begin together
    versions = world.gather(
        {"trainyard": VERSION, "torch": torch.__version__, "python": platform.python_version()}
    )
    measured: dict[str, Any] = {
        "processes": world.size,
        "hosts": world.gather(socket.gethostname()),
        "versions": versions,
        "latency_seconds": small,
        "bytes_per_second": 4 * _LARGE / large,
        "clock_skew_seconds": max(clocks) - min(clocks),
    }
    return measured | {"problems": _problems(measured)}


def _seconds(elements: int, times: int) -> float:
    """Return the median time of an all-reduce of so many floats."""
    values, seconds = torch.zeros(elements), []
    for _ in range(times):
        start = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _problems(measured: dict[str, Any]) -> list[str]:
    problems = []
    for library in ("trainyard", "torch", "python"):
        found = sorted({one[library] for one in measured["versions"]})
        if len(found) > 1:
            problems.append(
                f"the processes have different versions of {library} ({', '.join(found)}): install one"
            )
    if measured["clock_skew_seconds"] > _SKEW:
        skew = measured["clock_skew_seconds"]
        problems.append(f"the clocks of the machines differ by {skew:.1f} s: synchronize them (NTP)")
    latency, rate = measured["latency_seconds"], measured["bytes_per_second"]
    if latency > _SLOW_SECONDS or rate < _SLOW_BYTES:
        problems.append(
            f"the processes reach each other slowly ({1e3 * latency:.1f} ms, {rate / 1e6:.0f} MB/s): does "
            "GLOO_SOCKET_IFNAME (or NCCL_SOCKET_IFNAME) name the fast network interface?"
        )
    return problems


def here() -> dict[str, Any]:
    """Measure as one of the processes that a launcher has started; return nothing but in the main one."""
    world = join("gloo")
    measured = measure(world)
    return measured if world.is_main else {}


if __name__ == "__main__":
    if result := here():
        (Path(sys.argv[1]) / RESULT).write_text(json.dumps(result), encoding="utf-8")
