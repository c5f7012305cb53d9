"""Where errors end: each becomes one message on stderr, and an exit code; with `--json`, also a document on stdout."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from trainyard.cli.commands import cli
from trainyard.cli.output import json_document, say
from trainyard.engine.signals import EXIT_CODES, Stopped
from trainyard.errors import ConfigError, TrainyardError

log = logging.getLogger("trainyard")


def run(words: Sequence[str]) -> int:
    """Runs a command line, and returns its exit code.

    `--debug` may stand anywhere, as it is asked for when the rest is typed already.
    """
    debug, as_json = "--debug" in words, "--json" in words
    with _log_to_stderr(logging.DEBUG if debug else logging.INFO):
        try:
            code = cli.main([word for word in words if word != "--debug"], "trainyard", standalone_mode=False)
            return code if isinstance(code, int) else 0
        except SystemExit:
            raise
        except BaseException as error:
            if debug and not isinstance(error, click.ClickException):
                traceback.print_exc()
            return _end(error, as_json)


def _end(error: BaseException, as_json: bool) -> int:
    """Tells the user what happened; the exit code says it to programs."""
    message, code = _told(error)
    if isinstance(error, click.ClickException):
        error.show()
    else:
        _to_stderr(f"trainyard: {message}")
    if as_json:
        problems = [vars(problem) for problem in error.problems] if isinstance(error, ConfigError) else []
        document: dict[str, Any] = {
            "type": type(error).__name__,
            "message": message,
            "exit_code": code,
            "problems": problems,
        }
        say(json_document({"error": document}))
    return code


def _told(error: BaseException) -> tuple[str, int]:
    """The message for an error, and its exit code."""
    if isinstance(error, TrainyardError):
        return f"error: {error}", error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, Stopped):
        again = (
            f"resume with: trainyard resume {error.run_id}" if error.run_id else "give the same command again"
        )
        return f"{error.status} before a step was made: nothing is lost; {again}", EXIT_CODES[error.status]
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted", EXIT_CODES["interrupted"]
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(["error", *([str(error.filename)] if error.filename else []), error.strerror]), 1
    return f"internal error: {_one_line(error)}; run again with --debug", 1


def _one_line(error: BaseException) -> str:
    """Type, text and place; the place is the innermost one that is not in an installed library."""
    text = " ".join(str(error).split())
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename
    ]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at the moment: a progress bar may have put itself before it."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno != logging.INFO else ""
        _to_stderr(f"trainyard: {level}{record.getMessage()}")


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextmanager
def _log_to_stderr(level: int) -> Iterator[None]:
    handler, before, propagated = _Stderr(), log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False  # a library that configures the root logger would show every line twice
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = propagated
