"""Write `docs/config.md`, and the table of formats in `docs/export.md`: `make docs`, or run this file.

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
EXPORTS = Path(__file__).with_name("export.md")
_OPTIONS = "<!-- the options of onnx: make docs -->\n"
_BEGIN, _END = "<!-- the formats: make docs -->\n", "<!-- end -->\n"


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


def formats() -> str:
    """Return the table of the formats of exports, by framework."""
    frameworks = sorted(plugins.BUILT_IN["framework"])
    heads = ["format", *frameworks, "it holds", "opening it runs code in it"]
    lines = [heads, ["---"] * len(heads)]
    for name in sorted(plugins.BUILT_IN["exporter"]):
        cls = plugins.adapter("exporter", name)
        legacy = f" (legacy: use `{cls.successor}`)" if cls.successor else ""
        takes = ["yes" if cls.takes(one) else "no" for one in frameworks]
        lines.append([f"`{name}`{legacy}", *takes, cls.holds, "yes" if cls.executes_code else "no"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def options() -> str:
    """Return the table of the values of `--option quantize`."""
    values = plugins.adapter("exporter", "onnx").choices["quantize"]
    lines = [
        "| `quantize` | |",
        "| --- | --- |",
        *(f"| `{name}` | {said} |" for name, said in values.items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def render_exports() -> str:
    """Return the content of `docs/export.md` with its tables."""
    text = EXPORTS.read_text(encoding="utf-8")
    for begin, table in ((_BEGIN, formats()), (_OPTIONS, options())):
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{_END}{rest.partition(_END)[2]}"
    return text


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    EXPORTS.write_text(render_exports(), encoding="utf-8")
