"""Say what an error means: a message, an exit code, and a document."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from trainwright.engine.signals import Stopped
from trainwright.errors import ConfigError, InputError, TrainwrightError
from trainwright.records.status import EXIT_CODES
from trainwright.redact import printable, redacted

# Commands of other tools.
_OTHER_COMMANDS = {
    "fit": "train",
    "run": "train",
    "start": "train",
    "eval": "evaluate",
    "test": "evaluate",
    "score": "evaluate",
    "infer": "predict",
    "continue": "resume",
    "new": "init",
    "ls": "runs list",
    "list": "runs list",
    "show": "runs show",
    "compare": "runs compare",
    "diff": "runs compare",
    "rm": "runs clean",
    "clean": "runs clean",
    "sync": "runs sync",
    "cv": "cross-validate",
    "check": "config check",
    "validate": "config check",
    "schema": "config schema",
    "kill": "stop",
    "search": "tune",
    "sweep": "tune",
    "optimize": "tune",
    "hpo": "tune",
    "verify": "reproduce",
    "validate-config": "config check",
    "version": "--version",
    "help": "--help",
}
_LONGEST_NAME = 255  # bytes
# Options of other tools, by the command that has an answer to them; "": of every command.
_OTHER_OPTIONS = {
    ("resume", "last"): "write `trainwright resume last`",
    ("resume", "latest"): "write `trainwright resume last`",
    ("resume", "run"): "give the run alone: `trainwright resume RUN`",
    ("", "config"): "give the file alone: `trainwright train CONFIG`",
    ("", "config-file"): "give the file alone: `trainwright train CONFIG`",
    ("", "force"): "nothing is overwritten: each run has a folder of its own",
    ("", "overwrite"): "nothing is overwritten: each run has a folder of its own",
    ("", "verbose"): "all is said unless --quiet is given; --debug shows tracebacks",
}
_DANGEROUS = ("--trust", "--allow-change")  # proposed by errors that explain them, never by spelling
_NEAR = 0.8  # similarity of a name that is proposed
log = logging.getLogger("trainwright")


def report(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Tell the user on stderr what happened; return the exit code, and the error as a document."""
    if log.isEnabledFor(logging.DEBUG) and not isinstance(error, click.ClickException):
        to_stderr("".join(traceback.format_exception(error)).rstrip())
    word, message, code = _explain(error)
    message = redacted(message)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        to_stderr(message)  # the help
    else:
        to_stderr("\n".join([*_usage(error), f"trainwright: {word}{message}"]))
    problems = [vars(problem) for problem in error.problems] if isinstance(error, ConfigError) else []
    return code, {"type": type(error).__name__, "message": message, "exit_code": code, "problems": problems}


def to_stderr(text: str) -> None:
    """Print text for people to stderr, without secrets."""
    sys.stderr.write(printable(redacted(text)) + "\n")
    sys.stderr.flush()


def _usage(error: BaseException) -> list[str]:
    """Return how to call the command, if it was called wrongly."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return []
    return [error.ctx.get_usage(), f"Try '{error.ctx.command_path} --help' for help."]


def _explain(error: BaseException) -> tuple[str, str, int]:
    """Return the word before the message for an error, the message, and the exit code."""
    if isinstance(error, TrainwrightError):
        return "error: ", str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return "error: ", _usage_message(error), error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "", "interrupted", EXIT_CODES["interrupted"]
    if isinstance(error, Stopped):
        return "", _stopped(error), EXIT_CODES[error.status]
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "error: ", _too_long(error), InputError.exit_code
    return *_failed(error), 1


def _usage_message(error: click.ClickException) -> str:
    """Return the message of a wrong command line; of an unknown option or command, with what to write."""
    text = error.format_message()
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return text
    command = error.ctx.command
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error, command)
    unknown = re.search(r"No such command '([^']+)'", text)
    if unknown is None or not isinstance(command, click.Group):
        return text
    other = _OTHER_COMMANDS.get(unknown[1]) if error.ctx.parent is None else None
    shown = [
        name
        for name in command.list_commands(error.ctx)
        if (found := command.get_command(error.ctx, name)) is not None and not found.hidden
    ]
    near = [other] if other else difflib.get_close_matches(unknown[1], shown, 1, _NEAR)
    hint = f"Did you mean '{near[0]}'?" if near else f"See '{error.ctx.command_path} --help'."
    return f"No such command '{unknown[1]}'. {hint}"


def _unknown_option(error: click.NoSuchOption, command: click.Command) -> str:
    """Return the message for an option that a command has not, with what to write instead."""
    from trainwright.config.habits import key_meant
    from trainwright.config.synonyms import KEY_HINTS, fold

    name = error.option_name.partition("=")[0]
    bare, said = name.lstrip("-"), f"No such option '{name}'."
    hint = _OTHER_OPTIONS.get((command.name or "", bare)) or _OTHER_OPTIONS.get(("", bare))
    if hint is not None:
        return f"{said} Instead, {hint}."
    if any(one.name == "overrides" for one in command.params):
        if (key := key_meant(bare.replace("-", "_"))) is not None:
            return f"{said} Settings have no dashes: write {key}=VALUE."
        if (known := KEY_HINTS.get(fold(bare))) is not None:
            return f"{said} Instead, {known}."
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    shown = [word for one in options for word in (*one.opts, *one.secondary_opts) if word not in _DANGEROUS]
    if near := difflib.get_close_matches(name, shown, 1, _NEAR):
        return f"{said} Did you mean '{near[0]}'?"
    return said


def _stopped(error: Stopped) -> str:
    again = (
        f"resume with: trainwright resume {error.run_id}" if error.run_id else "give the same command again"
    )
    return f"{error.status} before the first step: nothing is lost; {again}"


def _failed(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SystemExit):
        return "error: ", f"the code of the model or the data ended the process with sys.exit({error.code!r})"
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return "error: ", "the working directory no longer exists: change to another one"
    if isinstance(error, OSError) and error.strerror:
        return "error: ", ": ".join([*([str(error.filename)] if error.filename else []), error.strerror])
    return "internal error: ", f"{_one_line(error)}; run again with --debug"


def _too_long(error: OSError) -> str:
    """Return which part of a path is too long for the file system."""
    name = max(Path(str(error.filename or "")).parts, key=lambda part: len(os.fsencode(part)), default="")
    size = len(os.fsencode(name))
    if size <= _LONGEST_NAME:
        return f"the path {error.filename} is too long for the file system: choose a shorter one"
    return (
        f"the name '{name[:40]}...' has {size} bytes, and file systems take {_LONGEST_NAME} at most: "
        "choose a shorter one"
    )


def _is_nowhere() -> bool:
    """Return whether the working directory was removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _one_line(error: BaseException) -> str:
    """Return type, text and location; the location is the innermost one outside of installed libraries."""
    text = " ".join(str(error).split())
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename
    ]
    location = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{location}"
