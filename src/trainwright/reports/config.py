"""Make the section of the page with the config: what the user set, and all of it, with keys highlighted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from markupsafe import Markup

from trainwright.config.emit import emit
from trainwright.redact import redacted
from trainwright.reports.rundir import Json, RunFiles

Section = dict[str, Any]

_YAML_KEY = re.compile(r"^(\s*(?:- +)*)([^\s#'\"\[{:][^:#]*?)(:)(?=\s|$)(.*)$")


def section(run: RunFiles) -> Section | None:
    """Return the config with its keys highlighted: what the user set of it, where that is known, and all."""
    if not run.config:
        return None
    chosen = _chosen(run.settings, "", run.set_keys) if run.set_keys else {}
    return {"set": _highlighted(emit(chosen)) if chosen else None, "all": _highlighted(run.config)}


def _chosen(values: Json, prefix: str, keys: Collection[str]) -> dict[str, Any]:
    """Return the values that the user set, by section; the model's type is always shown."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in keys or name == "model.type":
            made[key] = value
        elif isinstance(value, Mapping) and (inner := _chosen(value, f"{name}.", keys)):
            made[key] = inner
    return made


def _highlighted(source: str) -> Markup:
    return Markup("\n").join(_yaml_line(line) for line in redacted(source).splitlines())


def _yaml_line(line: str) -> Markup:
    if line.lstrip().startswith("#"):
        return Markup("<i>{}</i>").format(line)
    match = _YAML_KEY.match(line)
    return Markup("{}<b>{}</b>{}{}").format(*match.groups()) if match else Markup("{}").format(line)
