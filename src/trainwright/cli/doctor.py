"""`doctor`: show what this machine and this installation offer, and what is wrong with them."""

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

import click

import trainwright
from trainwright import plugins
from trainwright.cli import options
from trainwright.cli.output import show, size, table
from trainwright.errors import TrainwrightError
from trainwright.require import extras, install_command, installed_version
from trainwright.world import is_follower

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

_NODES = (
    "to check several, start this on each of them with torchrun or srun; each must reach the store of the "
    "runs and the data, and all others on any port"
)


@click.command()
@click.option(
    "--distributed",
    type=click.IntRange(2),
    is_flag=False,
    flag_value=2,
    metavar="[N]",
    help="Also start N processes (default 2), and measure how they reach each other. Under torchrun or srun, "
    "measure its processes.",
)
@options.runs_dir
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, distributed: int | None, runs_dir: str | None, as_json: bool) -> None:
    """Show environment, extras, plugins and devices.

    Exit with 1 if there is a problem, such as a plugin that cannot be imported.
    """
    from trainwright.records.listing import runs_folder

    if is_follower():
        if distributed:
            _processes(distributed)
        return
    facts = {
        "machine": _machine(),
        "extras": _extras(),
        "plugins": _plugins(),
        "devices": _devices(),
        "runs": _runs(runs_folder(runs_dir)),
        "distributed": _processes(distributed) if distributed else None,
    }
    problems = list(_problems(facts))
    show(facts | {"problems": problems}, _lines(facts, problems), as_json)
    ctx.exit(1 if problems else 0)


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return {
        "trainwright": trainwright.__version__,
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
            [sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=120, check=False
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


def _processes(nproc: int) -> dict[str, Any]:
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
            yield f"{_plugin_line(plugin)}; repair or uninstall {plugin['package'].split()[0]}"
    if facts["devices"].get("broken"):
        yield facts["devices"]["error"]
    yield from (facts["distributed"] or {}).get("problems", ())
    if not facts["runs"]["writable"]:
        path = facts["runs"]["path"]
        yield f"{path} is not writable: choose another folder with --runs-dir or TRAINWRIGHT_RUNS"


def _lines(facts: dict[str, Any], problems: list[str]) -> Iterator[str]:
    machine, runs = dict(facts["machine"]), facts["runs"]
    machine["memory"] = size(machine.pop("memory_bytes"))
    rows: list[tuple[str, str]] = [(name.replace("_", " "), str(value)) for name, value in machine.items()]
    rows += [(f"extra {name}", _extra_line(extra)) for name, extra in facts["extras"].items()]
    rows += [("plugin", _plugin_line(plugin)) for plugin in facts["plugins"]]
    rows += [("devices", line) for line in _device_lines(facts["devices"])]
    rows.append(("runs", f"{runs['path']}, {size(runs['free_bytes'])} free"))
    if "hosts" in (facts["distributed"] or {}):
        rows.append(("processes", _processes_line(facts["distributed"])))
        if len(set(facts["distributed"]["hosts"])) == 1:
            rows.append(("nodes", _NODES))
    yield from table(rows)
    yield ""
    yield from (f"problem: {problem}" for problem in problems)
    if not problems:
        yield "no problems found"


def _extra_line(extra: dict[str, Any]) -> str:
    missing = [name for name, version in extra["libraries"].items() if version is None]
    untried = {name: f" (tried: {wanted})" for name, wanted in extra["untried"].items()}
    found = {name: version for name, version in extra["libraries"].items() if version}
    installed = ", ".join(f"{name} {version}{untried.get(name, '')}" for name, version in found.items())
    return installed if not missing else f"{', '.join(missing)} missing: {extra['install']}"


def _plugin_line(plugin: dict[str, Any]) -> str:
    line = f"{plugin['kind']} {plugin['name']!r} of {plugin['package']} ({plugin['target']})"
    if plugin["ignored"]:
        return f"{line} is ignored: {plugin['ignored']}"
    return f"{line} cannot be used: {plugin['error']}" if plugin["error"] else line


def _processes_line(measured: dict[str, Any]) -> str:
    hosts = ", ".join(sorted(set(measured["hosts"])))
    return (
        f"{measured['processes']} on {hosts}: all-reduce {1e6 * measured['latency_seconds']:.0f} us, "
        f"{measured['bytes_per_second'] / 1e6:.0f} MB/s; clocks differ by "
        f"{measured['clock_skew_seconds']:.3f} s"
    )


def _device_lines(devices: dict[str, Any]) -> Iterator[str]:
    if "error" in devices:
        yield devices["error"]
        return
    yield f"cpu, {devices['threads']} torch threads"
    yield from (f"cuda:{index}: {name}" for index, name in enumerate(devices["cuda"]))
