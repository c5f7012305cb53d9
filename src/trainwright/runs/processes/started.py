"""Processes that do a piece of work together on this machine: started here, and heard when they end."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.schema import RunConfig
from trainwright.engine.signals import Stopped
from trainwright.errors import CheckpointError, InputError, OtherFormatError, TrainwrightError, WorldError
from trainwright.frameworks.base import Processes
from trainwright.require import import_rule, importing_by
from trainwright.runs.frameworks import framework_name
from trainwright.world import FINAL, RESTARTS, RETRYABLE, portable

log = logging.getLogger("trainwright")
ELSEWHERE = "define them in a module that can be imported, or start your script with torchrun"
_WORK = "work"
_FLAGS = ("TORCH_", "OMP_")
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_OTHERS_SECONDS = 5.0  # that the others have to meet the same error, and to write how they end
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, in <linux/prctl.h>


@dataclass(frozen=True)
class Outcome:
    """The end of the work in the process `rank` of `size`; `is_retryable`: another try may succeed.

    `restart` counts the times that the processes were started again before.
    """

    rank: int
    size: int
    error: BaseException | None
    is_retryable: bool
    restart: int
    time: float


def processes_of(config: RunConfig, model: Any = None) -> Processes:
    """Return the functions of the framework that start the processes of a run.

    Raises:
        InputError: The framework trains in one process.
    """
    processes: Processes | None = plugins.adapter("framework", framework_name(config, model)).processes()
    if processes is None:
        raise InputError(f"distributed.nproc: {config.model.type} is trained in one process; leave it out")
    return processes


def packed(work: Any) -> bytes:
    """Return what another process needs to do the work.

    Raises:
        InputError: It cannot be sent there.
    """
    context = (os.getpid(), str(Path.cwd()), list(sys.path), set(os.environ))
    try:
        content = pickle.dumps((work, import_rule()))
    except Exception as error:
        raise InputError(
            f"the objects given in Python cannot be sent to other processes ({error}); {ELSEWHERE}"
        ) from error
    if b"__main__" in content:
        raise InputError(f"the objects given in Python are of classes of the main script; {ELSEWHERE}")
    return pickle.dumps((context, content))


def start(processes: Processes, config: RunConfig, content: bytes, folder: Path) -> int | None:
    """Start processes that do the work, which begin again if one of them dies; wait for their end.

    Args:
        processes: Starts them.
        config: Says how many there are.
        content: The work; see `packed`.
        folder: A folder of their own, which gets their outcomes.

    Returns:
        The signal that ended them, if one did.

    Raises:
        TrainwrightError: The first error of a process that others do not follow from.
    """
    (folder / _WORK).write_bytes(content)
    command = [sys.executable, "-P", "-m", "trainwright", "take-part", str(folder)]
    failure: TrainwrightError | None = None
    signum = None
    try:
        with _keeping_handlers():
            signum = processes.launch(config, command, folder)
    except WorldError as error:
        failure = error
    ended = sorted(_outcomes(folder), key=lambda one: one.time)
    errors = [one.error for one in ended if one.error is not None]
    causes = [error for error in errors if not isinstance(error, WorldError)]  # which are only consequences
    if causes:
        alone = sum(not isinstance(error, Stopped) for error in causes) == 1 < ended[0].size
        raise _named(causes[0], ended) if alone else causes[0]
    if failure and errors:  # which may say what has come between the processes
        raise WorldError(f"{failure}: {errors[0]}") from errors[0]
    if failure or (errors and signum is None):  # else it has ended one before another
        raise failure or errors[0]
    return signum


def _named(error: BaseException, outcomes: Sequence[Outcome]) -> BaseException:
    """Let an error that one process alone has met say so."""
    rank = next(one.rank for one in outcomes if one.error is error)
    if isinstance(error, TrainwrightError) and error.args:
        error.args = (f"process {rank}: {error.args[0]}", *error.args[1:])
    return error


@contextlib.contextmanager
def _keeping_handlers() -> Iterator[None]:
    """Restore the handlers of signals, which torch's agent replaces in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {one: signal.getsignal(one) for one in _HANDLED} if is_main else {}
    try:
        yield
    finally:
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)


def _outcomes(folder: Path) -> list[Outcome]:
    """Return the outcomes of the last start; there may have been more processes before."""
    outcomes = []
    for path in folder.glob("outcome-*"):
        with contextlib.suppress(FileNotFoundError):  # its process has started again
            outcomes.append(pickle.loads(path.read_bytes()))
    last = max((one.restart for one in outcomes), default=0)
    return [one for one in outcomes if one.restart == last]


def restarts() -> int:
    """Return how often the processes were started again."""
    return int(os.environ.get(RESTARTS) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def take_part_in(folder: Path, do: Callable[[Any], None]) -> int:
    """Do the work that `start` has left in a folder, and return the exit code of this process.

    It is `RETRYABLE` where another try may help: the launcher starts all processes again then. It is `FINAL`
    where none would: the launcher ends the others, which may wait for this one in a kernel forever.

    Args:
        folder: The folder.
        do: Does the work.
    """
    rank, size, local_size = (
        os.environ.get(name, "1") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    outcome = folder / f"outcome-{rank}"
    outcome.unlink(missing_ok=True)
    error: BaseException | None = None
    try:
        (launcher, cwd, path, variables), content = pickle.loads((folder / _WORK).read_bytes())
        end_with(launcher)
        os.chdir(cwd)
        sys.path[:] = path
        for name in set(os.environ) - variables:
            if name.startswith(_FLAGS):  # the launcher has set it, and it is not part of the run
                del os.environ[name]
        work, rule = pickle.loads(content)
        with importing_by(rule):
            do(work)
    except (Exception, Stopped) as raised:
        error = raised
    is_retryable = error is not None and _is_retryable(error)
    if error is not None:
        if is_retryable and not isinstance(error, WorldError):  # all begin again, and this is why
            log.error("process %s: %s", rank, error if isinstance(error, TrainwrightError) else repr(error))
        error, said = portable(error), traceback.format_exception(error)  # which would be lost on the way
        error.add_note(f"In process {rank}:\n{''.join(said).rstrip()}")
    part = folder / f".outcome-{rank}"
    ended = Outcome(int(rank), int(size), error, is_retryable, restarts(), time.time())
    part.write_bytes(pickle.dumps(ended))
    part.replace(outcome)
    if error is None or isinstance(error, Stopped):
        return 0
    if not is_retryable:
        _let_end(folder, int(local_size))
        return FINAL
    others = (one.is_retryable for one in _outcomes(folder) if one.error is not None)
    return RETRYABLE if all(others) else 0


def _let_end(folder: Path, count: int) -> None:
    """Give the processes of this machine time to end themselves: with this one, the launcher ends them."""
    deadline = time.monotonic() + _OTHERS_SECONDS
    while len(_outcomes(folder)) < count and time.monotonic() < deadline:
        time.sleep(0.05)


def end_with(launcher: int) -> None:
    """Get a SIGTERM when the launcher dies, so that this process saves and exits."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != launcher:  # it has died already
        os.kill(os.getpid(), signal.SIGTERM)


def _is_retryable(error: BaseException) -> bool:
    """Return whether another attempt may go better: a process, a disk or a store has failed.

    What the user gave stays wrong, also where the system has said so: a file that is not there.
    """
    if isinstance(error, InputError | OtherFormatError):
        return False
    if isinstance(error, WorldError | CheckpointError):
        return True
    return not isinstance(error, TrainwrightError | Stopped) or isinstance(error.__cause__, OSError)
