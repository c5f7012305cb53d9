"""Attempts in several processes: starting them on this machine, and joining those of a launcher."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.schema import RunConfig
from trainwright.engine.signals import STATUS_OF, Stopped
from trainwright.errors import CheckpointError, InputError, TrainwrightError, WorldError
from trainwright.frameworks.base import Processes
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.require import import_rule, importing_by
from trainwright.runs.cleanup import discard_folder
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.frameworks import framework_name
from trainwright.runs.objects import Objects
from trainwright.runs.processes.nodes import agree
from trainwright.runs.processes.placement import placed_config
from trainwright.runs.processes.state import state_records
from trainwright.runs.request import Request
from trainwright.runs.wiring import Components
from trainwright.safe_files import write_atomically
from trainwright.storage.copies import download_records
from trainwright.world import RESTARTS, RETRYABLE, World, portable, ranks_of_environment

log = logging.getLogger("trainwright")
_REQUEST, _RUN = "request", "agreed-run"
_FLAGS = ("TORCH_", "OMP_")
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, in <linux/prctl.h>
_ELSEWHERE = "define them in a module that can be imported, or start your script with torchrun"


@dataclass(frozen=True)
class _Outcome:
    """The end of the attempt in the process `rank`; `is_retryable`: another try may succeed.

    `restart` counts the times that the processes were started again before.
    """

    rank: int
    error: BaseException | None
    is_retryable: bool
    restart: int
    time: float


def launch(request: Request, config: RunConfig) -> Result:
    """Make an attempt in new processes, which begin again if one of them dies; return the run's result.

    Raises:
        InputError: The framework trains in one process, or an object cannot be sent to others.
        TrainwrightError: What the processes raise: the first of their errors.
        Stopped: A signal came before the first step, or a second one before the end of a step.
    """
    processes = _processes(config, request.objects.model)
    content = _packed(request)
    with tempfile.TemporaryDirectory(prefix="trainwright-") as name:
        folder = Path(name)
        (folder / _REQUEST).write_bytes(content)
        command = [sys.executable, "-P", "-m", "trainwright", "take-part", str(folder)]
        failure: TrainwrightError | None = None
        signum = None
        try:
            signum = processes.launch(config, command, folder)
        except TrainwrightError as error:
            failure = error
        outcomes, run = _outcomes(folder), _agreed_run(folder)
    if config.distributed.nnodes > 1:
        _discard(request, run)
    ended = sorted(outcomes, key=lambda one: one.time)
    errors = [one.error for one in ended if one.error is not None]
    causes = [error for error in errors if not isinstance(error, WorldError)]  # which are only consequences
    if causes:
        raise _named(causes[0], ended) if len(causes) == 1 < len(errors) else causes[0]
    if failure and errors:  # which may say what has come between the processes
        raise WorldError(f"{failure}: {errors[0]}") from errors[0]
    if failure or (errors and signum is None):  # else it has ended one before another
        raise failure or errors[0]
    run = run or request.run
    if config.distributed.nnodes > 1:
        download_records(run)  # the working copy of another node may be the newer one
    result = run.result()
    if signum is not None and (result is None or result.status not in STATUS_OF.values()):
        stopped = Stopped(STATUS_OF.get(signal.Signals(signum), "preempted"))
        stopped.run = run if run.attempts() else None
        raise stopped
    return run.require_result()


def _named(error: BaseException, outcomes: Sequence[_Outcome]) -> BaseException:
    """Let an error that one process alone has met say so."""
    rank = next(one.rank for one in outcomes if one.error is error)
    if isinstance(error, TrainwrightError) and error.args:
        error.args = (f"process {rank}: {error.args[0]}", *error.args[1:])
    return error


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
    context = (os.getpid(), str(Path.cwd()), list(sys.path), set(os.environ))
    try:
        content = pickle.dumps((request, import_rule()))
    except Exception as error:
        raise InputError(
            f"the objects given in Python cannot be sent to other processes ({error}); {_ELSEWHERE}"
        ) from error
    if b"__main__" in content:
        raise InputError(f"the objects given in Python are of classes of the main script; {_ELSEWHERE}")
    if (model := request.objects.model) is not None:
        plugins.adapter("framework", framework_name(request.resolved.config, model)).check_sendable(model)
    return pickle.dumps((context, content))


def _outcomes(folder: Path) -> list[_Outcome]:
    """Return the outcomes of the last start; there may have been more processes before."""
    outcomes = [pickle.loads(path.read_bytes()) for path in folder.glob("outcome-*")]
    last = max((one.restart for one in outcomes), default=0)
    return [one for one in outcomes if one.restart == last]


def _restarts() -> int:
    """Return how often the processes were started again."""
    return int(os.environ.get(RESTARTS) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def take_part(folder: Path, run_attempt: Callable[[Request], Result]) -> int:
    """Take part in an attempt that `launch` has started, and return the exit code of this process.

    It is `RETRYABLE` where another try may help: the launcher starts all processes again then.

    Args:
        folder: The folder in which `launch` left the request.
        run_attempt: `attempt.run_attempt`, which imports this module.
    """
    rank, outcome = os.environ["RANK"], folder / f"outcome-{os.environ['RANK']}"
    outcome.unlink(missing_ok=True)
    error: BaseException | None = None
    if rank == "0" and (restarts := os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) != "0":
        log.warning("a process died; restarting all of them from the newest commit (restart %s)", restarts)
    try:
        (launcher, cwd, path, variables), content = pickle.loads((folder / _REQUEST).read_bytes())
        end_with(launcher)
        os.chdir(cwd)
        sys.path[:] = path
        for name in set(os.environ) - variables:
            if name.startswith(_FLAGS):  # the launcher has set it, and it is not part of the run
                del os.environ[name]
        request, rule = pickle.loads(content)
        if run := _agreed_run(folder):  # another node may be the main one now
            request = replace(request, run=run)
        with importing_by(rule):
            config = placed_config(request, request.run.manifest())
            world = join(config, request.objects.model)
            agreed = agree(world, request)
            if world.local_rank == 0:
                write_atomically(folder / _RUN, str(agreed.run.path).encode())
            run_attempt(replace(agreed, objects=request.objects, world=world))
    except (Exception, Stopped) as raised:
        error = raised
    is_retryable = error is not None and _is_retryable(error)
    if error is not None:
        if is_retryable and not isinstance(error, WorldError):  # all begin again, and this is why
            log.error("process %s: %s", rank, error if isinstance(error, TrainwrightError) else repr(error))
        error = portable(error)
    part = folder / f".outcome-{rank}"
    part.write_bytes(pickle.dumps(_Outcome(int(rank), error, is_retryable, _restarts(), time.time())))
    part.replace(outcome)
    others = (one.is_retryable for one in _outcomes(folder) if one.error is not None)
    return RETRYABLE if is_retryable and all(others) else 0


def end_with(launcher: int) -> None:
    """Get a SIGTERM when the launcher dies, so that this process saves and exits."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != launcher:  # it has died already
        os.kill(os.getpid(), signal.SIGTERM)


def _is_retryable(error: BaseException) -> bool:
    """Return whether another attempt may go better: a process, a disk or a store has failed."""
    if isinstance(error, WorldError | CheckpointError):
        return True
    return not isinstance(error, TrainwrightError | Stopped) or isinstance(error.__cause__, OSError)


# --- processes that a launcher of the user's has started


def is_launched() -> bool:
    """Return whether a launcher, such as torchrun or srun, has started this process as one of several."""
    return ranks_of_environment() is not None


def is_restarted() -> bool:
    """Return whether a launcher has started this process again, after one has died."""
    return is_launched() and _restarts() > 0


def join(config: RunConfig, model: Any = None) -> World:
    """Return the world of the processes that a launcher has started, this one being one of them.

    Raises:
        InputError: The framework trains in one process.
        WorldError: The processes do not find each other.
    """
    return _processes(config, model).join(config)


def _processes(config: RunConfig, model: Any) -> Processes:
    """Return the functions of the framework that start the processes of a run.

    Raises:
        InputError: The framework trains in one process.
    """
    processes: Processes | None = plugins.adapter("framework", framework_name(config, model)).processes()
    if processes is None:
        raise InputError(f"distributed.nproc: {config.model.type} is trained in one process; leave it out")
    return processes


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
