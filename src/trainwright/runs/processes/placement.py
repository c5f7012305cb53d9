"""The placement of an attempt: that of the attempt before, unless it is given another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trainwright.config import Overrides, Resolved
from trainwright.config.distributed import bounds
from trainwright.config.schema import RunConfig
from trainwright.process.environ import asked_threads
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.runs.lookup import mesh_of_overrides
from trainwright.runs.processes.threads import available_threads, processors
from trainwright.runs.request import Request

log = logging.getLogger("trainwright")


def placed_config(request: Request, before: Manifest | None) -> RunConfig:
    """Return the config with the placement of the next attempt.

    A resume keeps the placement of the attempt before, which keeps the bits, unless it is given another.
    """
    return resumed_config(request.run, request.resolved, request.placement, before).config


def resumed_config(
    run: RunDir, resolved: Resolved, given: Mapping[str, Any], before: Manifest | None = None
) -> Resolved:
    """Return the config of a run with the placement of its next attempt; `given` has keys that replace it."""
    before = before or run.manifest()
    known = before.placement if before else {}
    if before and before.config_sha256 != run.config_sha256():  # it was edited
        known = known | resolved.placement(explicit=True)
    return resolved.with_placement({**known, **given})


def repeated_placement(run: RunDir, own: Resolved, overrides: Overrides) -> dict[str, Any]:
    """Return the placement in which a run is repeated: that of its last attempt, on one node.

    Args:
        run: The run.
        own: Its config.
        overrides: The mesh that is asked for instead.

    Raises:
        InputError: An override is wrong, or about more than the mesh.
    """
    mesh = mesh_of_overrides(run, own, overrides, "reproduce")
    placement = run.require_manifest().placement | {"distributed.nnodes": 1} | mesh
    distributed = own.with_placement(placement).config.distributed
    if mesh and not distributed.exact:
        log.warning(
            "distributed.exact is false: the bits of run %s are those of its mesh, and another one is not "
            "expected to give them",
            run.id,
        )
    wanted, here = bounds(distributed.nproc)[1], processors()
    if wanted > here and not mesh and distributed.exact:
        log.info(
            "%d processes share %d processors; any mesh that divides the virtual one has the same bits: "
            "trainwright reproduce %s distributed.nproc=1",
            *(wanted, here, run.id),
        )
    return placement


def config_and_threads(request: Request, before: Manifest | None) -> tuple[RunConfig, int | None]:
    """Return the config with the placement of an attempt that begins now, and its number of threads.

    None: neither the config nor an earlier attempt gives a number.
    """
    config, known = placed_config(request, before), before.placement if before else {}
    threads, available = config.training.threads, available_threads(config)
    if threads is not None and known.get("training.threads") == threads > available:
        log.info(
            "the run keeps the %d threads that it began with, which keeps its bits, on %d processors; "
            "training.threads=%d changes that",
            *(threads, available, available),
        )
    asked = asked_threads()
    if threads is not None and "training.threads" not in known and asked not in (None, threads):
        log.info(
            "%d threads, as training.threads says, and not the %d of OMP_NUM_THREADS",
            *(threads, asked),
            extra={"once": True},
        )
    return config, threads


def say_threads(config: RunConfig, threads: int) -> None:
    """Log a number of threads that was chosen by the size of the steps."""
    if asked_threads() is not None:
        return
    if config.training.threads is None and threads < (available := available_threads(config)):
        log.info(
            "%d of %d threads: the steps are too small to share; training.threads=%d changes that",
            *(threads, available, available),
        )
