"""The identity of this machine, the end of its processes, and its memory."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from trainwright.digest import sha256_bytes

_MEMORY_LIMITS = {  # control groups, version 2 and 1: the limit and what is used of it
    "/sys/fs/cgroup/memory.max": "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "/sys/fs/cgroup/memory/memory.usage_in_bytes",
}


def machine_id(*namespaces: str) -> str:
    """Return what tells machines and containers apart, and each start of a machine from the others.

    Args:
        namespaces: Containers that share all of these are the same: `pid`, as process ids are known in it,
            `mnt` and `net`, as files and addresses are.

    Returns:
        Eight hexadecimal digits; empty where the system does not say.
    """
    try:
        own = "".join(str(Path(f"/proc/self/ns/{name}").readlink()) for name in namespaces)
        return sha256_bytes(f"{_boot()}{own}".encode())[:8]
    except (OSError, ValueError):
        return ""


@cache
def _boot() -> str:
    """Return an identifier of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")


def process_has_ended(process: str) -> bool:
    """Return whether a process of this machine, by its id, has ended; False if that is not known."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        return False
    return False


def available_memory() -> int | None:
    """Return the bytes that this process may still use, or None if unknown (outside Linux)."""
    amounts = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        amounts += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    for limit, used in _MEMORY_LIMITS.items():
        try:
            amounts.append(int(Path(limit).read_text("ascii")) - int(Path(used).read_text("ascii")))
        except (OSError, ValueError):  # no such group, or `max`: no limit
            continue
    return max(0, min(amounts)) if amounts else None
