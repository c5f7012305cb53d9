"""Plan the mesh of a run before there are devices for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.api.configs import check
from trainwright.config import Config, Overrides
from trainwright.config.overrides import with_settings
from trainwright.config.schema import bounds
from trainwright.errors import ConfigError
from trainwright.records.mesh_estimate import BETWEEN, SPEED, WITHIN, Machines

if TYPE_CHECKING:
    from trainwright.records.mesh_estimate import MeshPlan


def plan(
    config: Config,
    overrides: Overrides = (),
    *,
    gpus: int | None = None,
    memory: float | None = None,
    per_machine: int | None = None,
    within: float = WITHIN,
    between: float = BETWEEN,
    speed: float = SPEED,
) -> MeshPlan:
    """Estimate memory, communication and time of a step on the config's mesh, and on the three best others.

    The estimates are made from shapes alone: no device is used, and no memory for the model. If the config
    cannot train in `gpus` processes, the nearest mesh that can is in its place, with what has to change.

    Args:
        config: The config.
        overrides: Values in place of the config's.
        gpus: The number of processes, one for each GPU; default: those of the config.
        memory: The bytes of memory of each; default: that of a GPU here, or its share of this machine's.
        per_machine: The processes of a machine; default: 8 of `gpus`, or `distributed.nproc`.
        within: Bytes per second that a process sends to others of its machine.
        between: Bytes per second that it sends to other machines.
        speed: Floating-point operations per second of a process.

    Raises:
        ConfigError: The config has problems.
        InputError: The data cannot be read, the mesh is impossible, or models of this kind have no estimates.
    """
    from trainwright.runs.planning import estimated

    refusals: list[str] = []
    if gpus is None:
        resolved = check(config, overrides)
    else:
        try:
            asked = with_settings(overrides, {"distributed.nproc": gpus, "distributed.nnodes": 1})
            resolved = check(config, asked)
        except ConfigError as error:
            resolved = check(config, overrides)  # which fails if the number is not to blame
            refusals = [f"{one.path}: {one.message}" for one in error.problems]
    run = resolved.config
    nproc = gpus or bounds(run.distributed.nproc)[1]
    size = gpus or nproc * run.distributed.nnodes
    each = min(size, per_machine or (nproc if gpus is None else 8))
    placed = run.distributed.model_copy(update={"nproc": each, "nnodes": -(-size // each)})
    is_free = str(resolved.sources["distributed.virtual.data"]) == "default"
    machines = Machines(size, memory, each, within, between, speed)
    run = run.model_copy(update={"distributed": placed})
    return estimated(run, machines, is_free=is_free, refusals=refusals)
