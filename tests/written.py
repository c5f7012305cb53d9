"""Records that tests write by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.records.document import FORMAT, dump


def write_record(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file of a run as Trainwright does, with the SHA-256 of its content."""
    path.write_bytes(
        dump({"format": FORMAT} | {key: value for key, value in data.items() if key != "sha256"})
    )
