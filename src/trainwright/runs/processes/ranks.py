"""Attempts in several processes: starting them on this machine, and joining those of a launcher."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.schema import RunConfig
from trainwright.engine.signals import STATUS_OF, Stopped
from trainwright.errors import InputError
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.runs.cleanup import discard_folder
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.frameworks import framework_name
from trainwright.runs.objects import Objects
from trainwright.runs.processes.calls import Call
from trainwright.runs.processes.nodes import agree
from trainwright.runs.processes.placement import placed_config
from trainwright.runs.processes.started import packed, processes_of, restarts, start, take_part_in
from trainwright.runs.processes.state import state_records
from trainwright.runs.request import Request
from trainwright.runs.wiring import Components
from trainwright.safe_files import write_atomically
from trainwright.storage.copies import download_records
from trainwright.world import World, ranks_of_environment

log = logging.getLogger("trainwright")
_RUN = "agreed-run"


def launch(request: Request, config: RunConfig) -> Result:
    """Make an attempt in new processes, which begin again if one of them dies; return the run's result.

    Raises:
        InputError: The framework trains in one process, or an object cannot be sent to others.
        TrainwrightError: What the processes raise: the first of their errors.
        Stopped: A signal came before the first step, or a second one before the end of a step.
    """
    processes = processes_of(config, request.objects.model)
    content = _packed(request)
    with tempfile.TemporaryDirectory(prefix="trainwright-") as name:
        folder = Path(name)
        try:
            signum = start(processes, config, content, folder)
        except InputError:
            _discard(request, _agreed_run(folder))
            raise
        finally:
            run = _agreed_run(folder)
            if config.distributed.nnodes > 1:
                _discard(request, run)
    run = run or request.run
    if config.distributed.nnodes > 1:
        download_records(run)  # the working copy of another node may be the newer one
    result = run.result()
    if signum is not None and (result is None or result.status not in STATUS_OF.values()):
        stopped = Stopped(STATUS_OF.get(signal.Signals(signum), "preempted"))
        stopped.run = run if run.attempts() else None
        raise stopped
    return run.require_result()


def _agreed_run(folder: Path) -> RunDir | None:
    """Return the run that the processes make, once they have found each other."""
    path = folder / _RUN
    return RunDir(Path(path.read_text())) if path.exists() else None


def _discard(request: Request, run: RunDir | None) -> None:
    """Delete the run that this node has made, if the nodes make that of another one, or none."""
    is_used = run is not None and run.path == request.run.path
    if not is_used and not request.keep and not request.run.attempts():
        discard_folder(request.run.path)


def _packed(request: Request) -> bytes:
    """Return what another process needs to make this attempt.

    Raises:
        InputError: It cannot be sent there.
    """
    if request.verdict is not None:
        raise InputError(
            "a verdict cannot be sent to the processes that distributed.nproc starts; start your script with "
            "torchrun"
        )
    content = packed(request)
    if (model := request.objects.model) is not None:
        plugins.adapter("framework", framework_name(request.resolved.config, model)).check_sendable(model)
    return content


def take_part(folder: Path, run_attempt: Callable[[Request], Result]) -> int:
    """Take part in the work that other processes have started, and return the exit code of this one.

    Args:
        folder: The folder in which the work is.
        run_attempt: `attempt.run_attempt`, which imports this module.
    """

    def do(work: Request | Call) -> None:
        if isinstance(work, Call):
            work.make(folder)
        else:
            _attempt(work, folder, run_attempt)

    return take_part_in(folder, do)


def _attempt(request: Request, folder: Path, run_attempt: Callable[[Request], Result]) -> None:
    """Take part in an attempt that `launch` has started."""
    if os.environ["RANK"] == "0" and (count := os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) != "0":
        log.warning("a process died; restarting all of them from the newest commit (restart %s)", count)
    if run := _agreed_run(folder):  # another node may be the main one now
        request = replace(request, run=run)
    config = placed_config(request, request.run.manifest())
    world = join(config, request.objects.model)
    agreed = agree(world, request)
    if world.local_rank == 0:
        write_atomically(folder / _RUN, str(agreed.run.path).encode())
    run_attempt(replace(agreed, objects=request.objects, world=world))


# --- processes that a launcher of the user's has started


def is_launched() -> bool:
    """Return whether a launcher, such as torchrun or srun, has started this process as one of several."""
    return ranks_of_environment() is not None


def is_restarted() -> bool:
    """Return whether a launcher has started this process again, after one has died."""
    return is_launched() and restarts() > 0


def join(config: RunConfig, model: Any = None) -> World:
    """Return the world of the processes that a launcher has started, this one being one of them.

    Raises:
        InputError: The framework trains in one process.
        WorldError: The processes do not find each other.
    """
    return processes_of(config, model).join(config)


def lead(request: Request, config: RunConfig) -> World:
    """Tell the other processes, which wait in `follow`, of the attempt to make; return their world."""
    world = join(config, request.objects.model)
    agree(world, request)
    return world


def follow(config: RunConfig, objects: Objects, run_attempt: Callable[[Request], Result]) -> RunDir | None:
    """Make the attempt that the main process makes, and return its run; None: this is the main process.

    The main process alone finds or creates the run.

    Args:
        config: The config, as far as this process knows it.
        objects: What was given in Python, in this process as in the others.
        run_attempt: `attempt.run_attempt`, which imports this module.

    Raises:
        WorldError: The main process is gone, or has no attempt to make.
        TrainwrightError: What the attempt raises.
    """
    ranks = ranks_of_environment()
    if ranks is None or ranks[0] == 0:
        return None
    world = join(config, objects.model)
    request = agree(world, None)
    run_attempt(replace(request, objects=objects, world=world))
    download_records(request.run)  # how it has ended, if this process has a working copy of its own
    return request.run


def require_same_state(components: Components) -> None:
    """Make sure that all processes begin with the same state, and train on the same data.

    Raises:
        InputError: One loaded different data.
        DivergedError: One begins with a different state: its machine has other packages, processors or files.
    """
    world = components.inputs.world
    if world.size == 1:
        return
    inputs = world.gather(data_inputs(components.bundle).hash)
    others = [str(rank) for rank, data in enumerate(inputs) if data != inputs[0]]
    if others:
        raise InputError(
            f"process {', '.join(others)} loaded different data from process 0: files, and objects in "
            "a store, must have the same content for all processes"
        )
    state_records(components.learner, world)
