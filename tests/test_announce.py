"""Lines about long work."""

import logging
import threading

import pytest

from trainyard.announce import announced


def test_long_work_is_said_once_and_short_work_is_not(caplog: pytest.LogCaptureFixture) -> None:
    said = threading.Event()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    log = logging.getLogger("trainyard")
    handler = Said()
    log.addHandler(handler)
    try:
        with caplog.at_level("INFO", "trainyard"):
            with announced("reading a.csv", silence=0.001):
                assert said.wait(60)
            with announced("reading b.csv", silence=60):
                pass
    finally:
        log.removeHandler(handler)
    assert [record.getMessage() for record in caplog.records] == ["reading a.csv ..."]
