"""`doctor`: show what this machine and this installation offer, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from trainwright.api.doctor import examined, in_words, measured
from trainwright.cli import options
from trainwright.cli.output import show, size, table
from trainwright.world import is_follower

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
    if is_follower():
        if distributed:
            measured(distributed)
        return
    document = examined(runs_dir, distributed)
    show(document, _lines(document), as_json)
    ctx.exit(1 if document["problems"] else 0)


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    machine, runs = dict(facts["machine"]), facts["runs"]
    machine["memory"] = size(machine.pop("memory_bytes"))
    rows: list[tuple[str, str]] = [(name.replace("_", " "), str(value)) for name, value in machine.items()]
    rows += [(f"extra {name}", _extra_line(extra)) for name, extra in facts["extras"].items()]
    rows += [("plugin", in_words(plugin)) for plugin in facts["plugins"]]
    rows += [("devices", line) for line in _device_lines(facts["devices"])]
    rows.append(("runs", f"{runs['path']}, {size(runs['free_bytes'])} free"))
    if "hosts" in (facts["distributed"] or {}):
        rows.append(("processes", _processes_line(facts["distributed"])))
        if len(set(facts["distributed"]["hosts"])) == 1:
            rows.append(("nodes", _NODES))
    yield from table(rows)
    yield ""
    yield from (f"problem: {problem}" for problem in facts["problems"])
    if not facts["problems"]:
        yield "no problems found"


def _extra_line(extra: dict[str, Any]) -> str:
    missing = [name for name, version in extra["libraries"].items() if version is None]
    untried = {name: f" (tried: {wanted})" for name, wanted in extra["untried"].items()}
    found = {name: version for name, version in extra["libraries"].items() if version}
    installed = ", ".join(f"{name} {version}{untried.get(name, '')}" for name, version in found.items())
    return installed if not missing else f"{', '.join(missing)} missing: {extra['install']}"


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
