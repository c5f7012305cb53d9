"""Measures latency, bandwidth and clocks between processes: `python -m ... check FOLDER`, in each of them."""

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

from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel.launch import RESULT
from trainwright.frameworks.torch.parallel.world import join
from trainwright.version import VERSION
from trainwright.world import World

_SMALL, _LARGE = 2, 25 << 18  # elements of 4 bytes: 8 bytes, 25 MiB
_SKEW = 1.0  # seconds
_SLOW_SECONDS, _SLOW_BYTES = 0.01, 50e6  # of a small message, and per second
_HINT = (
    "check on each node: does it reach the launcher's host and port, and the other nodes on any port (a "
    "firewall?); does GLOO_SOCKET_IFNAME name its network interface; has it the same version of torch?"
)


def measure(world: World) -> dict[str, Any]:
    """Return what was measured, and what is wrong; collective.

    Returns:
        `processes`, their `hosts`, the `addresses` and `versions` there, the latency of a small all-reduce
        in seconds, the bandwidth of one of 25 MiB in bytes per second, the greatest difference of two clocks
        in seconds, `problems`.
    """
    small, large = _seconds(_SMALL, 50), _seconds(_LARGE, 5)
    clocks = world.gather(time.time())  # the all-reduce before it lets them begin together
    versions = world.gather(
        {"trainwright": VERSION, "torch": torch.__version__, "python": platform.python_version()}
    )
    measured: dict[str, Any] = {
        "processes": world.size,
        "hosts": world.gather(socket.gethostname()),
        "addresses": world.gather(_address()),
        "versions": versions,
        "latency_seconds": small,
        "bytes_per_second": 4 * _LARGE / large,
        "clock_skew_seconds": max(clocks) - min(clocks),
    }
    return measured | {"problems": _problems(measured)}


def _address() -> str:
    """Return the address of this machine's name; empty if it has none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _seconds(elements: int, times: int) -> float:
    """Return the median time of an all-reduce of `elements` floats."""
    values, seconds = torch.zeros(elements), []
    for _ in range(times):
        start = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _problems(measured: dict[str, Any]) -> list[str]:
    problems = []
    for library in ("trainwright", "torch", "python"):
        found = sorted({one[library] for one in measured["versions"]})
        if len(found) > 1:
            problems.append(
                f"the processes have different versions of {library} ({', '.join(found)}): install one"
            )
    machines = dict(zip(measured["hosts"], measured["addresses"], strict=True))
    for host, address in machines.items():
        if len(machines) > 1 and address.startswith("127."):
            problems.append(
                f"the name {host} leads to {address} there, which no other machine can reach: "
                "correct its /etc/hosts, or set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to its network "
                "interface"
            )
    if measured["clock_skew_seconds"] > _SKEW:
        skew = measured["clock_skew_seconds"]
        problems.append(f"the clocks of the machines differ by {skew:.1f} s: synchronize them (NTP)")
    latency, rate = measured["latency_seconds"], measured["bytes_per_second"]
    if latency > _SLOW_SECONDS or rate < _SLOW_BYTES:
        problems.append(
            f"messages between the processes are slow ({1e3 * latency:.1f} ms, {rate / 1e6:.0f} MB/s): set "
            "GLOO_SOCKET_IFNAME to the fast network interface"
        )
    return problems


def here() -> dict[str, Any]:
    """Run the check in a launched process; only rank 0 returns the result.

    Raises:
        WorldError: The processes do not find each other; the message says what to check.
    """
    try:
        world = join("gloo")
    except WorldError as error:
        raise WorldError(f"{error}\n{_HINT}") from error
    measured = measure(world)
    world.leave()
    return measured if world.is_main else {}


if __name__ == "__main__":
    if result := here():
        (Path(sys.argv[1]) / RESULT).write_text(json.dumps(result), encoding="utf-8")
