"""Lines about long work."""

import logging
import threading

from trainwright.process.alarms import announced


def test_long_work_is_said_once_and_short_work_is_not() -> None:
    """The lines are taken by the handler itself: a line of the timer's thread reaches pytest's only later."""
    lines: list[str] = []
    said = threading.Event()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            said.set()

    log = logging.getLogger("trainwright")
    level, handler = log.level, Said()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with announced("reading a.csv", silence=0.001):
            assert said.wait(60)
        with announced("reading b.csv", silence=60):
            pass
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert lines == ["reading a.csv ..."]
