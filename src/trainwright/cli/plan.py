"""`plan`: what a run would need on its mesh, and on others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

import trainwright
from trainwright.api.documents import mesh_plan
from trainwright.cli import options
from trainwright.cli.output import show, size, table
from trainwright.records.mesh_estimate import BETWEEN, SPEED, WITHIN

if TYPE_CHECKING:
    from trainwright.records.mesh_estimate import MeshEstimate, MeshPlan

_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("file", metavar="CONFIG")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="Plan for N processes, one for each GPU.")
@click.option(
    "--memory",
    callback=options.size,
    metavar="SIZE",
    help="The memory of each, such as 80GB.  [default: that of a GPU here, or a share of this machine's]",
)
@click.option(
    "--per-machine", type=click.IntRange(1), metavar="N", help="Processes of a machine.  [default: 8 GPUs]"
)
@click.option(
    "--within", type=_POSITIVE, default=WITHIN / 1e9, show_default=True, help="GB/s within a machine."
)
@click.option(
    "--between", type=_POSITIVE, default=BETWEEN / 1e9, show_default=True, help="GB/s between machines."
)
@click.option(
    "--speed", type=_POSITIVE, default=SPEED / 1e12, show_default=True, help="TFLOP/s of a process."
)
@options.as_json
def plan(
    file: str,
    overrides: Sequence[str],
    gpus: int | None,
    memory: int | None,
    per_machine: int | None,
    within: float,
    between: float,
    speed: float,
    as_json: bool,
) -> None:
    """Estimate what a run needs on its mesh, and on others.

    These are memory, communication and the time of a step, for the mesh of the config and for the three best
    others. The estimates are made from shapes alone: no device is used, and no memory for the model.
    """
    made = trainwright.plan(
        file,
        overrides,
        gpus=gpus,
        memory=memory,
        per_machine=per_machine,
        within=1e9 * within,
        between=1e9 * between,
        speed=1e12 * speed,
    )
    show(mesh_plan(made), _lines(made), as_json)


def _lines(made: MeshPlan) -> Iterator[str]:
    machines, meshes = made.machines, [made.own, *made.others]
    processes = "1 process" if machines.processes == 1 else f"{machines.processes} processes"
    yield f"{made.parameters:,} parameters, {processes}, {machines.per_machine} on a machine"
    yield ""
    yield from made.changes
    if made.changes:
        yield ""
    first = "proposed" if made.changes else "config"
    heads = ["", first, *(f"other {number}" for number in range(1, len(meshes)))]
    yield from table(_rows(meshes), heads)
    yield ""
    from trainwright.config.emit import inline

    for head, one in zip(heads[1:], meshes, strict=True):
        yield f"{head}: distributed: {inline(one.lines(machines.per_machine))}"
        if one.has_other_bits:
            yield f"{head}: this needs another virtual mesh than the config's, and so gives other bits"
    yield from (f"left out: {line}" for line in made.refused)
    yield (
        f"assumed: {size(int(machines.memory or 0))} for each process; it sends "
        f"{machines.bandwidth_within / 1e9:g} GB/s within a machine and {machines.bandwidth_between / 1e9:g} "
        f"GB/s between machines, and computes {machines.speed / 1e12:g} TFLOP/s; no communication is hidden "
        "behind computation; the kernels are those of a CPU"
    )


def _rows(meshes: Sequence[MeshEstimate]) -> Iterator[Sequence[str]]:
    yield (
        "data x shard x tensor x pipeline",
        *(
            " x ".join(str(getattr(one.mesh, axis)) for axis in ("data", "shard", "tensor", "pipeline"))
            for one in meshes
        ),
    )
    yield "strategy", *(one.strategy for one in meshes)
    for kind in meshes[0].memory._fields:
        counts = [getattr(one.memory, kind) for one in meshes]
        if any(counts):
            yield kind, *(size(int(count)) for count in counts)
    yield "memory", *(size(int(one.memory.total)) for one in meshes)
    yield "fits", *("yes" if one.fits else "no" for one in meshes)
    for axis in ("data", "shard", "tensor", "pipeline"):
        if any(axis in one.sent for one in meshes):
            yield f"sent per step, {axis}", *(size(int(one.sent.get(axis, 0))) for one in meshes)
    yield "bubble", *(f"{one.bubble:.1%}" for one in meshes)
    yield "seconds per step", *(f"{one.seconds:.3g}" for one in meshes)
