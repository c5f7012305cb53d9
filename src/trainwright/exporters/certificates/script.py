"""The script beside an artifact, which opens it without Trainwright."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

_OURS = re.compile(r"^from (trainwright\.\S+) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


def reader_of(path: Path) -> Path:
    """Return the path of the script that opens an artifact: inside a folder, beside a file."""
    return path / "reader.py" if path.is_dir() else path.with_name(f"{path.name}.reader.py")


def reader_source(runtime: str) -> str:
    """Return the text of the script that opens artifacts of a format: its runtime, with what that imports."""
    return _inlined(runtime, set())


def _inlined(name: str, known: set[str]) -> str:
    """Return the text of a module in which imports of ours are replaced by the texts of their modules."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")

    def imported(line: re.Match[str]) -> str:
        if line[1] in known:
            return ""
        known.add(line[1])
        text = _inlined(line[1], known).split('"""', 2)[2]
        return text.replace("from __future__ import annotations\n", "").strip() + "\n"

    return _OURS.sub(imported, text)
