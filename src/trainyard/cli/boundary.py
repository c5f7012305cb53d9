"""Turn every error into a message on stderr and an exit code; with `--json`, also into a document."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from trainyard.cli.commands import cli
from trainyard.cli.output import json_document, say_data
from trainyard.cli.streams import safe_streams
from trainyard.engine.signals import Stopped
from trainyard.errors import ConfigError, TrainyardError
from trainyard.records.status import EXIT_CODES
from trainyard.redact import printable, redacted

log = logging.getLogger("trainyard")


def run(words: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    `--debug` may stand anywhere, because it is added when the rest is typed already.
    """
    debug, as_json = "--debug" in words, "--json" in words
    with safe_streams(), _log_to_stderr(logging.DEBUG if debug else logging.INFO):
        try:
            code = cli.main([word for word in words if word != "--debug"], "trainyard", standalone_mode=False)
            return code if isinstance(code, int) else 0
        except BaseException as error:
            if debug and not isinstance(error, click.ClickException):
                _to_stderr(traceback.format_exc().rstrip())
            return _report(error, as_json)


def _report(error: BaseException, as_json: bool) -> int:
    """Tell the user what happened, and return the exit code."""
    word, message, code = _explain(error)
    message = redacted(message)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        _to_stderr(message)  # the help
    else:
        _to_stderr("\n".join([*_usage(error), f"trainyard: {word}{message}"]))
    if as_json:
        problems = [vars(problem) for problem in error.problems] if isinstance(error, ConfigError) else []
        document: dict[str, Any] = {
            "type": type(error).__name__,
            "message": message,
            "exit_code": code,
            "problems": problems,
        }
        say_data(json_document({"error": document}))
    return code


def _usage(error: BaseException) -> list[str]:
    """Return how to call the command, if it was called wrongly."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return []
    return [error.ctx.get_usage(), f"Try '{error.ctx.command_path} --help' for help."]


def _explain(error: BaseException) -> tuple[str, str, int]:
    """Return the word before the message for an error, the message, and the exit code."""
    if isinstance(error, TrainyardError):
        return "error: ", str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return "error: ", error.format_message(), error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "", "interrupted", EXIT_CODES["interrupted"]
    if isinstance(error, Stopped):
        return "", _stopped(error), EXIT_CODES[error.status]
    return *_failed(error), 1


def _stopped(error: Stopped) -> str:
    again = f"resume with: trainyard resume {error.run_id}" if error.run_id else "give the same command again"
    return f"{error.status} before a step was made: nothing is lost; {again}"


def _failed(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SystemExit):
        return "error: ", f"code of the model or the data ended the process by sys.exit({error.code!r})"
    if isinstance(error, OSError) and error.strerror:
        return "error: ", ": ".join([*([str(error.filename)] if error.filename else []), error.strerror])
    return "internal error: ", f"{_one_line(error)}; run again with --debug"


def _one_line(error: BaseException) -> str:
    """Return type, text and location; the location is the innermost one outside of installed libraries."""
    text = " ".join(str(error).split())
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename
    ]
    location = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{location}"


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at the moment: a progress bar may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        level = f"{record.levelname.lower()}: " if record.levelno != logging.INFO else ""
        _to_stderr(f"trainyard: {level}{record.getMessage()}")


def _to_stderr(text: str) -> None:
    sys.stderr.write(printable(redacted(text)) + "\n")
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
