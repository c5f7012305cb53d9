"""The identity of this machine, and the end of its processes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from trainwright.digest import sha256_bytes


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
