"""`doctor`: what this machine and this installation offer."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click

import trainyard
from trainyard.cli import options
from trainyard.cli.output import show, size, table

_GATHERED = ("all", "dev")  # extras that only gather others
# In a process of its own: a library that crashes or hangs while it looks for devices is a finding, too.
_DEVICES = """
import json, torch
cuda = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "cuda": [f"{found.name}, {found.total_memory / 2**30:.0f} GiB" for found in cuda],
    "threads": torch.get_num_threads(),
}))
"""


@click.command()
@options.runs_dir
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, runs_dir: str | None, as_json: bool) -> None:
    """Show the environment, the extras and the devices."""
    from trainyard.records.listing import default_runs_dir

    place = Path(runs_dir) if runs_dir else default_runs_dir()
    found = {"machine": _machine(), "extras": _extras(), "devices": _devices(), "runs": _runs(place)}
    problems = list(_problems(found))
    show(found | {"problems": problems}, _lines(found, problems), as_json)
    ctx.exit(1 if problems else 0)


def _machine() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    affinity = getattr(os, "sched_getaffinity", None)  # not outside Linux
    return {
        "trainyard": trainyard.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu_threads": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": pages,
    }


def _extras() -> dict[str, dict[str, Any]]:
    """Each extra: its libraries with the installed versions (None where missing), and the command that brings it."""
    found: dict[str, dict[str, Any]] = {}
    for requirement in _requirements():
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra\s*==\s*['\"]([\w-]+)", requirement)
        if name and extra and extra[1] not in _GATHERED:
            command = f"pip install 'trainyard[{extra[1]}]'"
            entry = found.setdefault(extra[1], {"libraries": {}, "install": command})
            entry["libraries"][name[0]] = _version(name[0])
    return found


def _requirements() -> list[str]:
    try:
        return metadata.requires("trainyard") or []
    except metadata.PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    if _version("torch") is None:
        return {"error": "torch is not installed: no accelerators can be looked for"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=120, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"error": "torch did not answer within 120 s", "broken": True}
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return {"error": f"torch cannot be imported: {last[0]}", "broken": True}


def _runs(place: Path) -> dict[str, Any]:
    """Where runs are made: it need not be there yet, so the nearest folder that is there is asked."""
    nearest = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return {
        "path": str(place.absolute()),
        "writable": writable,
        "free_bytes": shutil.disk_usage(nearest).free,
    }


def _problems(found: dict[str, Any]) -> Iterator[str]:
    if not found["extras"]:
        yield "trainyard is not installed as a package, so its extras are not known: run `pip install -e .` in its sources"
    if found["devices"].get("broken"):
        yield found["devices"]["error"]
    if not found["runs"]["writable"]:
        yield f"{found['runs']['path']} cannot be written: choose another place with --runs-dir or TRAINYARD_RUNS"


def _lines(found: dict[str, Any], problems: list[str]) -> Iterator[str]:
    machine, runs = dict(found["machine"]), found["runs"]
    machine["memory"] = size(machine.pop("memory_bytes"))
    rows: list[tuple[str, str]] = [(name.replace("_", " "), str(value)) for name, value in machine.items()]
    rows += [(f"extra {name}", _extra_line(extra)) for name, extra in found["extras"].items()]
    rows += [("devices", line) for line in _device_lines(found["devices"])]
    rows.append(("runs", f"{runs['path']}, {size(runs['free_bytes'])} free"))
    yield from table(rows)
    yield ""
    yield from (f"problem: {problem}" for problem in problems)
    if not problems:
        yield "no problems found"


def _extra_line(extra: dict[str, Any]) -> str:
    missing = [name for name, version in extra["libraries"].items() if version is None]
    there = ", ".join(f"{name} {version}" for name, version in extra["libraries"].items() if version)
    return there if not missing else f"{', '.join(missing)} missing: {extra['install']}"


def _device_lines(devices: dict[str, Any]) -> Iterator[str]:
    if "error" in devices:
        yield devices["error"]
        return
    yield f"cpu, {devices['threads']} torch threads"
    yield from (f"cuda:{index}: {name}" for index, name in enumerate(devices["cuda"]))
