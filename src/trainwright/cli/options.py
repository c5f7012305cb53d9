"""Options that several commands share."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from trainwright.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])

# How a file of rows is read, other than the run's own data.
_READING = {
    "delimiter": "The character between the cells of a CSV FILE.  [default: as in training, or found]",
    "encoding": "The encoding of a CSV FILE.  [default: that of the training data, or detected]",
    "decimal": "The decimal mark of numbers in text.  [default: that of the training data]",
    "sheet": "The sheet of an Excel FILE.  [default: that of the training data, or the first one with rows]",
}
_LOG = logging.getLogger("trainwright")


def _silence(_: click.Context, __: click.Parameter, value: bool) -> bool:
    if value:
        _LOG.setLevel(logging.WARNING)
    return value


def run_argument(command: Command) -> Command:
    """Add the argument RUN."""
    return click.argument("run")(command)


def mesh(command: Command) -> Command:
    """Add the arguments that name another mesh of processes."""

    def check(context: click.Context, _: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if "=" not in word:
                raise click.UsageError(f"Got unexpected extra argument ({word})", context)
        return words

    name = "[distributed.KEY=VALUE]..."
    return click.argument("overrides", nargs=-1, metavar=name, callback=check)(command)


def is_override(text: str) -> bool:
    """Return whether an argument that may be a file is `key.path=value`."""
    return re.match(r"[a-z_]+(\.[a-z_]+)+=", text) is not None and not Path(text).exists()


def runs_dir(command: Command) -> Command:
    """Add `--runs-dir`: the folder of the run directories, or the URL of a store."""
    text = (
        "Where runs are kept: a folder, or the URL of a store such as s3://bucket/runs.  [default: "
        "$TRAINWRIGHT_RUNS, or `runs`]"
    )
    return click.option("--runs-dir", metavar="DIR", help=text)(command)


def as_json(command: Command) -> Command:
    """Add `--json`: one document on stdout instead of lines."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else, on stdout."
    )(command)


def size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Return the bytes that a size such as `5GB` or `500 MiB` stands for."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMGT])(i?)B", value.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        number = re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value.strip())
        examples = f"{number[0]}GB or {number[0]}MiB" if number and float(number[0]) else "5GB or 500MiB"
        raise click.BadParameter(f"{value!r} is not a size; write, for example, {examples}")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "KMGT".index(found[2].upper())))


def trust(command: Command) -> Command:
    """Add `--trust`: import all that a run's config names, and use its variables and hosts."""
    text = (
        "Import any code, fill in any variable and ask any host that the run's config names; for runs that "
        "are yours, or come from someone you trust."
    )
    return click.option("--trust", is_flag=True, help=text)(command)


def reading(command: Command) -> Command:
    """Add options of reading a file of rows, which the command gets as `params`."""

    @wraps(command)
    def with_params(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in ("delimiter", "encoding", "decimal", "sheet")}
        if given["delimiter"] in ("\\t", "tab"):
            given["delimiter"] = "\t"
        params = {name: value for name, value in given.items() if value is not None}
        return command(*args, params=params, **options)

    added: Any = with_params
    for name, text in reversed(_READING.items()):
        kind = click.Choice([".", ","]) if name == "decimal" else None
        added = click.option(f"--{name}", type=kind, help=text)(added)
    return cast(Command, added)


def quiet(command: Command) -> Command:
    """Add `--quiet`: no progress, and only the warnings of the log."""
    text = "No progress and no notes: only warnings, and the result."
    return click.option("-q", "--quiet", is_flag=True, callback=_silence, help=text)(command)


def key_in(file: Path) -> str:
    """Return the key in a file.

    Raises:
        InputError: The file cannot be read, or holds none.
    """
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--key-file {file} cannot be read: {error}") from None
    if not key:
        raise InputError(f"--key-file {file} is empty: it must hold the key")
    return key
