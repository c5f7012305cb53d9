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

_DELETES = "`trainwright runs delete RUN`, or `trainwright runs clean`"
# What to write instead of commands of other tools: `RUN` and the like stand for the user's own.
_OTHER_COMMANDS = {
    word: meant
    for words, meant in {
        "fit start launch learn": "trainwright train CONFIG",
        "run": "`trainwright train CONFIG`, or `trainwright runs list`",
        "finetune fine-tune warm-start": "trainwright fork RUN",
        "continue restart restore": "trainwright resume RUN",
        "submit": "`trainwright create CONFIG`, then `trainwright work RUN` where it is to be trained",
        "worker agent join": "trainwright work RUN_OR_STUDY",
        "eval test score validation": "trainwright evaluate RUN",
        "infer inference predict-proba predict_proba classify": "trainwright predict RUN FILE",
        "sample chat complete": "trainwright generate RUN",
        "new quickstart create-config generate-config automl": "trainwright init FILE --target COLUMN",
        "ls list ps experiments history": "trainwright runs list",
        "models": "`trainwright config names model` for what can be trained, or `trainwright runs list`",
        "show status info inspect summary metrics params describe": "trainwright runs show RUN",
        "logs log tail watch": "`trainwright runs show RUN`; its folder has losses and events in journal/",
        "ui dashboard view plot open card diagnose": "trainwright report RUN",
        "compare diff": "trainwright runs compare RUN RUN",
        "rm delete remove": _DELETES,
        "clean gc prune": "trainwright runs clean",
        "sync upload": "trainwright runs sync RUN",
        "kill cancel abort terminate pause": "trainwright stop RUN",
        "cv kfold crossval cross_validate cross-val crossvalidate": "trainwright cross-validate CONFIG",
        "check validate validate-config lint": "trainwright config check CONFIG",
        "schema": "trainwright config schema",
        "names": "trainwright config names",
        "search sweep optimize optimise hpo hyperopt tuning": "trainwright tune CONFIG",
        "study trials trial": "`trainwright studies list`, then `trainwright studies show STUDY`",
        "verify rerun replay": "trainwright reproduce RUN",
        "shap importance interpret explainability": "trainwright explain RUN",
        "save convert": "trainwright export RUN PATH",
        "serving endpoint predict-server": "trainwright serve RUN",
        "deploy dockerize containerize": "trainwright package RUN -o FOLDER",
        "watch": "trainwright monitor URL",
        "bench compare-models leaderboard": "trainwright benchmark CONFIG --models NAME,NAME",
        "env devices": "trainwright doctor",
        "version": "trainwright --version",
        "help": "trainwright --help",
    }.items()
    for word in words.split()
}
# The same for commands of a group.
_OTHER_SUBCOMMANDS = {
    "runs": {
        **dict.fromkeys(("ls", "ps"), "list"),
        **dict.fromkeys(("gc", "prune"), "clean"),
        **dict.fromkeys(("rm", "remove"), "delete"),
        **dict.fromkeys(("status", "info", "log", "logs", "describe"), "show"),
        "diff": "compare",
    },
    "studies": {"ls": "list", **dict.fromkeys(("status", "info", "trials"), "show")},
    "data": {
        **dict.fromkeys(("ls", "list", "versions", "history"), "log"),
        **dict.fromkeys(("checkout", "pull", "download", "export"), "get"),
        **dict.fromkeys(("rm", "remove"), "delete"),
        **dict.fromkeys(("push", "commit", "save", "create"), "add"),
        **dict.fromkeys(("info", "describe", "status"), "show"),
        **dict.fromkeys(("prune", "clean"), "gc"),
        **dict.fromkeys(("compare",), "diff"),
        **dict.fromkeys(("validate", "test"), "check"),
    },
    "config": {**dict.fromkeys(("validate", "lint"), "check"), **dict.fromkeys(("ls", "list"), "names")},
}
# What an argument is, by its name, where it is missing.
_A_RUN = "It is a path, a URL, a run id, or `last` for the newest; `trainwright runs list` shows all."
_MISSING = {
    "run": _A_RUN,
    "runs": _A_RUN,
    "config": "It is a YAML file; `trainwright init FILE --target COLUMN` writes one.",
}
_LONGEST_NAME = 255  # bytes
_OVERWRITES = "nothing is overwritten: each run has a folder of its own"
_FILE = "give the file alone: `trainwright train CONFIG`"
_TRAINING = ("train", "create", "tune", "cross-validate", "benchmark")
_ROWS = "give the file after the run: `trainwright predict RUN FILE`"
_METRICS = "all metrics are computed that evaluation.metrics of the run's config names"
_SETTINGS = "settings follow the file: `trainwright train CONFIG training.epochs=3`"
_LAST = "write `trainwright resume last`"
_FORMAT = "write --format NAME: `trainwright export RUN PATH --format onnx`"
_QUANTIZE = (
    "write --quantize WAY: `trainwright compress RUN --quantize int8-dynamic`, or int4-weight-only ..."
)
_PRUNE = "write --prune SHARE: `trainwright compress RUN --prune 0.5`"
_TARGET = "write --target COLUMN"
# Options of other tools, by the command that has an answer to them; "": of every command.
_OTHER_OPTIONS = {
    **{("resume", name): _LAST for name in ("last", "latest")},
    ("train", "last"): f"{_LAST}, which goes on with the newest run or study",
    ("resume", "run"): "give the run alone: `trainwright resume RUN`",
    **{
        ("resume", name): "a fork begins at an earlier step: `trainwright fork RUN --step N`"
        for name in ("step", "from-step", "checkpoint")
    },
    **{(command, "force"): _OVERWRITES for command in _TRAINING},
    **{("init", name): _TARGET for name in ("label", "label-column", "target-column", "y")},
    **{("init", name): "write --model auto, which compares a few models" for name in ("presets", "preset")},
    **{
        ("cross-validate", name): "write --folds N"
        for name in ("k", "n-splits", "splits", "cv", "kfold", "n-folds")
    },
    **{("", name): _FILE for name in ("config", "config-file", "cfg", "c")},
    **{("", name): _SETTINGS for name in ("set", "override", "overrides", "param", "opts")},
    ("", "overwrite"): _OVERWRITES,
    ("", "V"): "write `trainwright --version`",
    **{(command, "dry-run"): "write `trainwright config check CONFIG`" for command in _TRAINING},
    **{("predict", name): _ROWS for name in ("input", "data", "file", "input-file")},
    **{("evaluate", name): _METRICS for name in ("metric", "metrics")},
    **{("export", name): _FORMAT for name in ("to", "type", "as", "f", "output-format", "export-format")},
    **{
        ("compress", name): _QUANTIZE
        for name in ("bits", "dtype", "precision", "int8", "int4", "fp16", "bf16", "fp8", "quantization", "w")
    },
    **{("compress", name): _PRUNE for name in ("sparsity", "amount", "pruning", "prune-ratio", "ratio")},
    ("", "verbose"): "all is said unless --quiet is given; --debug shows tracebacks",
}
_KEY_IN_YAML = re.compile(
    r"((?:training|tuning|evaluation|checkpoint|logging|data|distributed)\.[\w.]+): (?=\w)"
)
_SECTIONS = {"tune": "tuning"}  # by command, the section that an option may mean a key of
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
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{text} {_MISSING.get(error.param.name or '', '')}".strip()
    if text.startswith("Got unexpected extra argument") and _takes_files(command):
        return f"{text}. Quote a pattern of files, so that the shell leaves it alone: 'part-*.csv'"
    unknown = re.search(r"No such command '([^']+)'", text)
    if unknown is None or not isinstance(command, click.Group):
        return text
    return f"No such command '{unknown[1]}'. {_instead(unknown[1], error.ctx, command)}"


def _takes_files(command: click.Command) -> bool:
    return any(
        param.name in ("file", "data") and isinstance(param, click.Argument) for param in command.params
    )


def _instead(word: str, ctx: click.Context, command: click.Group) -> str:
    """Return what to write instead of a command that a group has not."""
    if ctx.parent is None and (line := _OTHER_COMMANDS.get(word.lower())) is not None:
        return f"Write {line if '`' in line else f'`{line}`'}"
    shown = [
        name
        for name in command.list_commands(ctx)
        if (found := command.get_command(ctx, name)) is not None and not found.hidden
    ]
    if command.name == "runs" and word.lower() in ("rm", "delete", "remove"):
        return f"Write {_DELETES}"
    meant = _OTHER_SUBCOMMANDS.get(command.name or "", {}).get(word.lower())
    if near := [meant] if meant else difflib.get_close_matches(word, shown, 1, _NEAR):
        return f"Did you mean '{f'{command.name} ' if ctx.parent else ''}{near[0]}'?"
    return f"There are: {', '.join(shown)}"


def _unknown_option(error: click.NoSuchOption, command: click.Command) -> str:
    """Return the message for an option that a command has not, with what to write instead."""
    name = error.option_name.partition("=")[0]
    bare, said = name.lstrip("-"), f"No such option '{name}'."
    hint = _OTHER_OPTIONS.get((command.name or "", bare)) or _OTHER_OPTIONS.get(("", bare))
    if hint is not None:
        return f"{said} Instead, {hint}."
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    shown = [word for one in options for word in (*one.opts, *one.secondary_opts) if word not in _DANGEROUS]
    if near := [word for word in shown if bare and word.startswith(f"--{bare}")]:
        return f"{said} Did you mean '{near[0]}'?"
    if any(one.name == "overrides" for one in command.params):
        meant = _setting(bare.replace("-", "_"), _SECTIONS.get(command.name or "", ""))
        if meant is not None:
            return f"{said} {meant}."
    if near := difflib.get_close_matches(name, shown, 1, _NEAR):
        return f"{said} Did you mean '{near[0]}'?"
    return f"{said} There are: {', '.join(word for word in shown if word.startswith('--'))}"


def _setting(key: str, section: str) -> str | None:
    """Return what to write for an option that is a setting of the config; None if it is none.

    Args:
        key: The option, as a key.
        section: The section that the command is about, whose keys come first; may be empty.
    """
    from trainwright.config.hints import key_hint
    from trainwright.config.normalize import fields_of, key_meant

    dotted = f"{section}.{key}" if section else key
    inside = key_meant(dotted) if section else None
    if section and key in fields_of(""):
        section, dotted, inside = "", key, None
    if key in fields_of(section) or inside not in (None, dotted):
        return f"Settings have no dashes: write {inside or dotted}=VALUE"
    if (known := key_hint(dotted)) is not None:
        return "Instead, " + _KEY_IN_YAML.sub(r"\1=", known)
    return None if (meant := key_meant(key)) is None else f"Settings have no dashes: write {meant}=VALUE"


def _stopped(error: Stopped) -> str:
    if error.run:
        return f"{error.status}; resume with: trainwright resume {error.run.id}"
    return f"{error.status} before the first step: nothing is lost; give the same command again"


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
    if not error.filename:
        return "a path is too long for the file system: choose a shorter one"
    name = max(Path(str(error.filename)).parts, key=lambda part: len(os.fsencode(part)), default="")
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
