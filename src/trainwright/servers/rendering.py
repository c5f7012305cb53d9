"""Write the files of a package from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SUFFIX = ".j2"


def render(templates: Path, folder: Path, values: dict[str, Any]) -> None:
    """Write a file for each template of a folder, at its path there; scripts can be executed.

    Args:
        templates: The folder of the templates, `run.sh.j2`.
        folder: Where the files are written.
        values: The values that the templates name, which have been checked: nothing is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name in environment.list_templates(extensions=[_SUFFIX[1:]]):
        path = folder / name.removesuffix(_SUFFIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(name).render(values), encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)
