"""Turn every error into a message on stderr and an exit code; with `--json`, also into a document."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trainwright.cli.commands import cli
from trainwright.cli.errors import report, to_stderr
from trainwright.cli.output import say_data
from trainwright.cli.streams import safe_streams
from trainwright.world import is_follower

log = logging.getLogger("trainwright")


def run(words: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    `--debug` may stand anywhere, because it is added when the rest is typed already.
    """
    debug, as_json = "--debug" in words, "--json" in words
    with safe_streams(), _log_to_stderr(logging.DEBUG if debug else logging.INFO):
        try:
            code = cli.main(
                [word for word in words if word != "--debug"], "trainwright", standalone_mode=False
            )
            return code if isinstance(code, int) else 0
        except BaseException as error:
            code, document = report(error)
            if as_json:
                from trainwright.api.documents import json_document

                say_data(json_document({"error": document}))
            return code


class _Stderr(logging.Handler):
    """Write to what `sys.stderr` is at the moment: a progress bar may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno != logging.INFO else ""
        to_stderr(f"trainwright: {level}{record.getMessage()}")


@contextmanager
def _log_to_stderr(level: int) -> Iterator[None]:
    handler, before, propagated = _Stderr(), log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR if is_follower() else level)
    log.propagate = False  # a library that configures the root logger would show every line twice
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = propagated
