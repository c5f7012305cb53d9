"""Write `docs/config.md` from the schema: `make docs`, or `python docs/generate.py`.

Only Trainwright's own adapters are described, whatever plugins are installed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainwright import plugins
from trainwright.config.adapters import Kind
from trainwright.config.reference import reference
from trainwright.runs.catalog import Catalog

TARGET = Path(__file__).with_name("config.md")


class BuiltIn(Catalog):
    """The catalog without plugins."""

    def names(self, kind: Kind, framework: str | None = None) -> Sequence[str]:
        """Return the names that Trainwright's own adapters give a meaning."""
        if kind in ("framework", "tracker"):
            return sorted(plugins.BUILT_IN[kind])
        if kind == "dataset":
            return [name for name in super().names(kind) if _is_ours(name)]
        if framework is not None or kind == "metric":
            return super().names(kind, framework)
        frameworks = self.names("framework")
        return list(
            dict.fromkeys(name for own in frameworks for name in super(BuiltIn, self).names(kind, own))
        )


def _is_ours(data_type: str) -> bool:
    return bool(plugins.dataset_of(data_type).__module__.startswith("trainwright."))


def render() -> str:
    """Return the content of `docs/config.md`."""
    return reference(BuiltIn()).rstrip("\n") + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
