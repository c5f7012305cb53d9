"""What the commands print: to stdout, as lines for people or, with `--json`, as one JSON document and nothing else.

Progress of a training goes to stdout, where clouds read metrics from it; with `--json` it goes to stderr. Log lines
(`trainyard: warning: ...`) and errors go to stderr always.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.redact import UNPRINTABLE, printable

if TYPE_CHECKING:
    from trainyard.runs.run import Run


def say(text: str) -> None:
    """Print to stdout what is meant for people.

    Results hold no secrets, as they come from files that hold none; so their paths are printed as they are, to be copied.
    """
    _print(printable(text))


def say_data(text: str) -> None:
    """Print to stdout what is meant for programs: unchanged, unless a terminal shows it."""
    _print(printable(text) if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    getattr(sys.stdout, "write_raw", sys.stdout.write)(text + "\n")
    sys.stdout.flush()


def show(document: Any, text: Iterable[str], as_json: bool) -> None:
    """Print the document, or the lines that say the same."""
    if as_json:
        say_data(json_document(document))
    else:
        for line in text:
            say(line)


def json_document(document: Any) -> str:
    """Return JSON; a number that is not finite becomes the text `NaN`, `Infinity` or `-Infinity`, as in the journal."""
    text = json.dumps(_plain(document), indent=2, allow_nan=False, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> list[str]:
    """Lines with aligned columns; numbers to four places, an empty cell for None."""
    cells = [[_cell(value) for value in row] for row in [*([head] if head else []), *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return "" if value is None else " ".join(printable(str(value)).splitlines())


def size(count: int) -> str:
    """A number of bytes, for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def run_document(run: Run) -> dict[str, Any]:
    """A run as JSON: what `result.json` says, and where it lies; its status is that of this moment."""
    found = {"run_id": run.id, "experiment": run.experiment, "path": str(run.path)}
    return run.result | found | {"status": run.status, "report": existing(run.path / "report.html")}


def existing(path: Path) -> str | None:
    """The path as text, if there is something."""
    return str(path) if path.exists() else None
