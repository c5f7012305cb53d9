"""Print results to stdout: as lines for people or, with `--json`, as one JSON document and nothing else.

The progress of a training goes to stdout, where clouds read metrics from it; with `--json` it goes to stderr.
Log lines (`trainwright: warning: ...`) and errors always go to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from trainwright.errors import Interrupted
from trainwright.numerals import number
from trainwright.redact import printable

Params = ParamSpec("Params")
Made = TypeVar("Made")


def made_by(verb: Callable[Params, Made], *args: Params.args, **kwargs: Params.kwargs) -> Made:
    """Return the run or the study of a verb, also where Ctrl-C has ended it: its status says so.

    Raises:
        Stopped, KeyboardInterrupt: Ctrl-C has ended it before there was anything to return.
    """
    try:
        return verb(*args, **kwargs)
    except Interrupted as interrupted:
        if interrupted.__cause__ is not None:
            raise interrupted.__cause__ from None
        made: Made = interrupted.run
        return made


def say(text: str) -> None:
    """Print text for people to stdout.

    Results come from files that hold no secrets, so paths in them are printed unchanged and can be copied.
    """
    _print(printable(text))


def say_data(text: str) -> None:
    """Print data for programs to stdout: unchanged, unless stdout is a terminal."""
    _print(printable(text) if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    getattr(sys.stdout, "write_raw", sys.stdout.write)(text + "\n")
    sys.stdout.flush()


def show(document: Any, text: Iterable[str], as_json: bool) -> None:
    """Print the document, or the lines that say the same."""
    if as_json:
        from trainwright.api.documents import json_document

        say_data(json_document(document))
    elif lines := [*text]:
        say("\n".join(lines))


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> list[str]:
    """Return lines with aligned columns; numbers have four significant digits, None is an empty cell."""
    cells = [[_cell(value) for value in row] for row in [*([head] if head else []), *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value, zeros=False)
    return "" if value is None else " ".join(printable(str(value)).splitlines())


def size(count: int) -> str:
    """Return a number of bytes with a unit, for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
