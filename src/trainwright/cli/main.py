"""The entry point: installs signal handlers, then runs a command and turns its outcome into an exit code.

0 done; 1 failed; 2 wrong input; 3 `different`; 75 preempted (SIGTERM); 130 interrupted (Ctrl-C).

Nothing heavy is imported here, and click only when the handlers are in place: a preemption in the first
milliseconds must end as cleanly as any other.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from trainwright.cli.streams import open_missing_descriptors, safe_streams
from trainwright.engine.signals import STATUS_OF
from trainwright.records.status import EXIT_CODES
from trainwright.require import close_process

_SINGLE = ("train", "resume")  # commands of one run
_TRAINING = (*_SINGLE, "work", "take-part", "reproduce", "cross-validate", "benchmark", "tune", "why")


def command() -> NoReturn:
    """Run the command of this process and exit with its code."""
    open_missing_descriptors()
    if _verb(sys.argv[1:]) in _SINGLE:
        close_process()
    with safe_streams():
        code = main()
        # Skip the interpreter's own shutdown: with numerical libraries loaded, it takes a fifth of a second.
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name (default: those of the process) and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _early_signals(words):
        from trainwright.cli.boundary import run

        return run(words)


@contextmanager
def _early_signals(words: Sequence[str]) -> Iterator[None]:
    """Let a signal end the process while a training command loads, and after its run has ended.

    In between, the engine installs its own handlers.
    """
    signals = list(STATUS_OF) if _verb(words) in _TRAINING else []
    previous = {signum: signal.signal(signum, _end_at_once) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _verb(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _end_at_once(number: int, _: FrameType | None) -> None:
    # An exception will not do: raised in the middle of an import, it could be swallowed there.
    signum = signal.Signals(number)
    status = STATUS_OF[signum]
    with suppress(OSError):  # nobody may be reading
        os.write(2, f"trainwright: {status} by {signum.name}: nothing had started\n".encode())
    os._exit(EXIT_CODES[status])
