"""Writes `docs/config.md` from the schema: `make docs`, or `python docs/generate.py`.

Only Trainyard's own adapters are described, even if other packages with adapters are installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard import registry
from trainyard.config.reference import reference
from trainyard.runs.catalog import Catalog

TARGET = Path(__file__).with_name("config.md")


class BuiltIn(Catalog):
    """The catalog without adapters from entry points."""

    def names(self, kind: str, framework: str | None = None) -> Sequence[str]:
        """Return the names of Trainyard's own adapters."""
        names = super().names(kind, framework)
        return [name for name in names if _is_ours(kind, name)] if kind in ("framework", "tracker") else names


def _is_ours(kind: str, name: str) -> bool:
    return bool(registry.adapter(kind, name).__module__.startswith("trainyard."))


def render() -> str:
    """Return the content of `docs/config.md`."""
    return reference(BuiltIn()).rstrip("\n") + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
