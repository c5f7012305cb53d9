"""Examine what this machine and this installation offer, and what is wrong with them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.errors import TrainwrightError
from trainwright.require import extras, install_command, installed_version
from trainwright.version import VERSION

_COLLECTIONS = ("all", "bench", "dev")  # extras that only collect others
# In a process of its own: a library may crash or hang while it looks for devices, and that is a result, too.
_DEVICES = """
import json, torch
cuda = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "cuda": [f"{one.name}, {one.total_memory / 2**30:.0f} GiB" for one in cuda],
    "threads": torch.get_num_threads(),
}))
"""


def examined(runs_dir: Path | str | None, processes: int | None) -> dict[str, Any]:
    """Return the facts, and the problems among them, as a JSON document.

    Args:
        runs_dir: The folder of the runs; see `runs_folder`.
        processes: The number of processes that measure how they reach each other; None: none do.
    """
    from trainwright.records.listing import runs_folder

    facts = {
        "machine": _machine(),
        "extras": _extras(),
        "plugins": _plugins(),
        "devices": _devices(),
        "runs": _runs(runs_folder(runs_dir)),
        "distributed": measured(processes) if processes else None,
    }
    return facts | {"problems": list(_problems(facts))}


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return {
        "trainwright": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu_threads": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": memory,
    }


def _extras() -> dict[str, dict[str, Any]]:
    """Return each extra: its libraries with versions (None if missing), and its install command.

    `untried` has the versions that are wanted of those that are installed in another one.
    """
    found: dict[str, dict[str, Any]] = {}
    for extra, requirements in extras().items():
        if extra in _COLLECTIONS:
            continue
        entry = found[extra] = {"libraries": {}, "untried": {}, "install": install_command(extra)}
        for requirement in requirements:
            name = re.split(r"[^\w.-]", requirement)[0]
            wanted = requirement.removeprefix(name).partition(";")[0].strip()
            version = entry["libraries"][name] = installed_version(name)
            if version is not None and not _is_within(version, wanted):
                entry["untried"][name] = wanted
    return found


def _is_within(version: str, wanted: str) -> bool:
    """Return whether a version is within bounds such as `<26,>=18`; only `>=` and `<` are looked at."""
    release = _release(version)
    bounds = re.findall(r"(>=|<)\s*([\d.]+)", wanted)
    return all(release >= _release(one) if sign == ">=" else release < _release(one) for sign, one in bounds)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, without zeros at the end: (2, 13) of 2.13.0+cpu."""
    numbers = [int(one) for one in re.split(r"[^\d.]", version)[0].split(".") if one]
    while numbers and not numbers[-1]:
        del numbers[-1]
    return tuple(numbers)


def _plugins() -> list[dict[str, Any]]:
    """Return the plugins; `error` says why one cannot be used, `ignored` why one never is."""
    return [
        {
            "kind": plugin.kind,
            "name": plugin.name,
            "package": plugin.package,
            "target": plugin.target,
            "ignored": plugin.ignored or None,
            "error": None if plugin.ignored else plugins.error_of(plugin),
        }
        for plugin in plugins.installed()
    ]


def _devices() -> dict[str, Any]:
    if installed_version("torch") is None:
        return {"error": "torch is not installed: accelerators cannot be detected"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _DEVICES], capture_output=True, text=True, timeout=120, check=False
        )
        devices: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return devices
    except subprocess.TimeoutExpired:
        return {"error": "torch did not answer within 120 s", "broken": True}
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return {"error": f"torch cannot be imported: {last[0]}", "broken": True}


def _runs(path: Path) -> dict[str, Any]:
    """Return where runs are made. The folder need not exist, so the nearest existing one is examined."""
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return {
        "path": str(path.absolute()),
        "writable": writable,
        "free_bytes": shutil.disk_usage(nearest).free,
    }


def measured(nproc: int) -> dict[str, Any]:
    """Return what processes measure of each other; `problems` says what is wrong."""
    for _, framework in plugins.adapters("framework"):
        if (processes := framework.processes()) is not None:
            try:
                return dict(processes.check(nproc))
            except TrainwrightError as error:
                return {"problems": [str(error)]}
    return {"problems": ["no framework trains in several processes"]}


def _problems(facts: dict[str, Any]) -> Iterator[str]:
    if not facts["extras"]:
        yield (
            "trainwright is not installed as a package, so its extras are unknown: "
            "run `pip install -e .` in its sources"
        )
    for plugin in facts["plugins"]:
        if plugin["error"]:
            yield f"{in_words(plugin)}; repair or uninstall {plugin['package'].split()[0]}"
    if facts["devices"].get("broken"):
        yield facts["devices"]["error"]
    yield from (facts["distributed"] or {}).get("problems", ())
    if not facts["runs"]["writable"]:
        path = facts["runs"]["path"]
        yield f"{path} is not writable: choose another folder with --runs-dir or TRAINWRIGHT_RUNS"


def in_words(plugin: dict[str, Any]) -> str:
    """Return a line about a plugin."""
    line = f"{plugin['kind']} {plugin['name']!r} of {plugin['package']} ({plugin['target']})"
    if plugin["ignored"]:
        return f"{line} is ignored: {plugin['ignored']}"
    return f"{line} cannot be used: {plugin['error']}" if plugin["error"] else line
