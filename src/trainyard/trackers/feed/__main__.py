"""A feeder process: `python -m trainyard.trackers.feed RUN_DIR INDEX PID`, PID being the training process that starts it.

Exit status: 0 everything is sent; 1 not everything; 2 what the user gave (options, an extra) is wrong: retrying is vain.
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

from trainyard import registry
from trainyard.errors import InputError
from trainyard.regular import open_regular
from trainyard.trackers.base import Tracker
from trainyard.trackers.feed.card import expanded, read_run, without_secrets
from trainyard.trackers.feed.feeder import Feeder
from trainyard.trackers.feed.state import state_file

INTERVAL = 2.0  # seconds between two looks at the journal: few large batches cost a tracker least
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds, while a tracker fails
PATIENCE = 10.0  # seconds that a tracker may fail once the training is over
NICENESS = 10

log = logging.getLogger("trainyard.trackers.feed")


class Training:
    """The training process, seen from its feeder.

    Our standard input is a pipe from it. One byte says that it is done, an end without it that it died. A process that
    it forked may keep the pipe open, so our parent's process id is watched as well: it changes when the parent dies.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.is_over = False
        self.crashed = False

    def wait(self, seconds: float) -> None:
        """Waits for its end, for `seconds` at most; when it is over, just waits, for a second at most."""
        if self.is_over:
            time.sleep(min(seconds, 1.0))
            return
        ready, _, _ = select.select([0], [], [], seconds)
        if ready:
            self.is_over = True
            self.crashed = not os.read(0, 1)
        elif os.getppid() != self._pid:
            self.is_over = self.crashed = True


def main(run_dir: Path, index: int, pid: int) -> int:
    """Feeds one tracker until its training is over and everything is sent."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # they are meant for the training; it tells us
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    training = Training(pid)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    try:
        run = read_run(run_dir)
        name, options = run.trackers[index]
    except InputError as error:
        log.error("%s", error)
        return error.exit_code
    if run.working_directory.is_dir():
        os.chdir(run.working_directory)  # what the config says of files is relative to it
    file = state_file(run_dir, index, name)
    with open_regular(file.with_suffix(".log"), "ab", depth=2) as lock:
        if not take(lock, training):
            log.error("another process feeds this tracker")
            return 1
        return feed(Feeder(run.card, file, lambda: connect(name, options)), training, options)


def take(lock: BinaryIO, training: Training) -> bool:
    """Waits until no other process feeds this tracker: a killed attempt's feeder may still be at work."""
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
    """The tracker `name`, with its options.

    Raises:
        InputError: there is no such tracker, it is not installed, or its options are wrong.
    """
    adapter: type[Tracker] = registry.adapter("tracker", name)
    try:
        params = adapter.Params.model_validate(expanded(options), strict=False)
    except ValidationError as error:
        raise InputError(f"tracking.{name}: {error}") from error
    return adapter(params)


def feed(feeder: Feeder, training: Training, options: dict[str, Any]) -> int:
    """Forwards at intervals; while the tracker fails, tries again after growing pauses."""
    pause, failing_since = 0.0, 0.0
    while True:
        training.wait(pause)
        over = training.is_over  # before reading: then nothing can have been written after the last look
        try:
            feeder.forward()
            if over:
                feeder.finish(training.crashed)
                return 0
            pause, failing_since = INTERVAL, 0.0
        except Exception as error:  # a foreign library may raise anything, and must end nothing
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
    sys.exit(main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3])))
