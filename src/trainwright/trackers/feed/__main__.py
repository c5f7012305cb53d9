"""A feeder process: `python -m trainwright.trackers.feed RUN_DIR INDEX PID [check]`.

PID is the training process; `check` asks the tracker what it holds, even if everything was sent.

Exit status: 0 if everything was sent, 1 if not, 2 if the config is wrong or an extra is missing (no retry
helps).
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from trainwright import plugins
from trainwright.errors import InputError
from trainwright.safe_files import open_regular
from trainwright.trackers.base import Tracker
from trainwright.trackers.feed.card import expanded, read_feed_inputs, without_secrets
from trainwright.trackers.feed.feeder import Feeder
from trainwright.trackers.feed.state import state_file

INTERVAL = 2.0  # seconds between two reads of the journal: few large batches cost a tracker least
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds, while a tracker fails
PATIENCE = 10.0  # seconds that a tracker may fail once the training is over
NICENESS = 10

log = logging.getLogger("trainwright.trackers.feed")


class Training:
    """The training process, as its feeder sees it.

    Our standard input is a pipe from it. One byte says that it is done; an end of file without that byte,
    that it died. A process that it forked may keep the pipe open, so our parent's process id is watched as
    well: it changes when the parent dies.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.is_over = False
        self.crashed = False

    def wait(self, seconds: float) -> None:
        """Wait for its end, for at most `seconds`; if it is over already, sleep for at most a second."""
        if self.is_over:
            time.sleep(min(seconds, 1.0))
            return
        ready, _, _ = select.select([0], [], [], seconds)
        if ready:
            self.is_over = True
            self.crashed = not os.read(0, 1)
        elif os.getppid() != self._pid:
            self.is_over = self.crashed = True


def main(run_dir: Path, index: int, pid: int, *, check: bool = False) -> int:
    """Feed one tracker until training is over and everything is sent, and return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the training process, which tells us
    os.nice(NICENESS)
    training = Training(pid)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    try:
        run = read_feed_inputs(run_dir)
        name, options = run.trackers[index]
    except InputError as error:
        log.error("%s", error)
        return error.exit_code
    if run.working_directory.is_dir():
        os.chdir(run.working_directory)  # paths in the config are relative to it
    file = state_file(run_dir, index, name)
    with open_regular(file.with_suffix(".log"), "ab", depth=2) as lock:
        if not acquire(lock, training):
            log.error("another process feeds this tracker")
            return 1
        return feed(Feeder(run.card, file, lambda: connect(name, options)), training, options, check=check)


def acquire(lock: BinaryIO, training: Training) -> bool:
    """Wait until no other process feeds this tracker, as the feeder of a killed attempt may.

    Returns:
        Whether we hold the lock; False if training ended and the other process did not.
    """
    since = time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if training.is_over and time.monotonic() - since > PATIENCE:
                return False
        training.wait(0.2)


def connect(name: str, options: dict[str, Any]) -> Tracker:
    """Construct the tracker `name` with its options.

    Raises:
        InputError: There is no such tracker, it is not installed, or its options are wrong.
    """
    adapter: type[Tracker] = plugins.adapter("tracker", name)
    try:
        params = adapter.Params.model_validate(expanded(options), strict=False)
    except ValidationError as error:
        raise InputError(f"tracking.{name}: {error}") from error
    return adapter(params)


def feed(feeder: Feeder, training: Training, options: dict[str, Any], *, check: bool = False) -> int:
    """Forward the journal at intervals; while the tracker fails, retry after growing pauses."""
    pause, failing_since = 0.0, 0.0
    while True:
        training.wait(pause)
        over = training.is_over  # before reading, so that nothing is written after the last read
        try:
            feeder.forward(check=check)
            check = False
            if over:
                feeder.finish(training.crashed)
                return 0
            pause, failing_since = INTERVAL, 0.0
        except Exception as error:  # a tracker's library may raise anything
            message = without_secrets(str(error) or type(error).__name__, options)
            if message != feeder.state.error:
                log.error("%s", message)
            feeder.failed(message)
            if isinstance(error, InputError):
                return error.exit_code
            pause = min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE) if failing_since else FIRST_PAUSE
            failing_since = failing_since or time.monotonic()
            if over and time.monotonic() - failing_since >= PATIENCE:
                return 1


if __name__ == "__main__":
    sys.exit(
        main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3]), check="check" in sys.argv[4:])
    )
