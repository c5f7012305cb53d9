"""Say what is going on where nothing has been printed for two seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trainwright.alarms import call_later

SILENCE = 2.0  # seconds
log = logging.getLogger("trainwright")


@contextmanager
def announced(work: str, silence: float = SILENCE) -> Iterator[None]:
    """Log one line if the work takes longer than `silence` seconds.

    Args:
        work: What is done, as `reading a.csv`.
        silence: Seconds without a line.
    """
    alarm = call_later(silence, lambda: log.info("%s ...", work))
    try:
        yield
    finally:
        alarm.cancel()
