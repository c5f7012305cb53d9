"""Print results to stdout: as lines for people or, with `--json`, as one JSON document and nothing else.

The progress of a training goes to stdout, where clouds read metrics from it; with `--json` it goes to stderr.
Log lines (`trainwright: warning: ...`) and errors always go to stderr.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.numerals import number
from trainwright.redact import UNPRINTABLE, printable

if TYPE_CHECKING:
    from trainwright.runs.run import Run
    from trainwright.studies.study import StudyView


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
        say_data(json_document(document))
    elif lines := [*text]:
        say("\n".join(lines))


def json_document(document: Any) -> str:
    """Return a document as JSON.

    A number that is not finite becomes the text `NaN`, `Infinity` or `-Infinity`, as in the journal.
    """
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
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)


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


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as a JSON document: the content of `result.json`, its path and its current status."""
    identity = {"run_id": run.id, "experiment": run.experiment, "path": str(run.path)}
    return run.result | identity | {"status": run.status, "report": existing(run.path / "report.html")}


def study_document(study: StudyView) -> dict[str, Any]:
    """Return a study as a JSON document: the content of `result.json`, its path and its current status."""
    identity = {"study_id": study.id, "path": str(study.path), "status": study.status}
    return study.result | identity | {"report": existing(study.path / "report.html")}


def existing(path: Path) -> str | None:
    """Return the path as text, or None if nothing exists there."""
    return str(path) if path.exists() else None
