"""Write the files of a package from templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.servers.base import Package
from trainwright.servers.requirements import PYTHON

_SUFFIX = ".j2"
_SHOWN = 6  # inputs in a README
# Debian's packages that wheels expect, by the name of what imports them.
_SYSTEM: Mapping[str, Sequence[str]] = {"lightgbm": ("libgomp1",)}


def render(templates: Path, folder: Path, package: Package, values: Mapping[str, Any]) -> None:
    """Write a file for each template of a folder, at its path there; scripts can be executed.

    Args:
        templates: The folder of the templates, `run.sh.j2`.
        folder: Where the files are written.
        package: The model.
        values: The values that the templates name beside those of every package. Nothing is escaped: names
            are checked, and all others are ours.
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
    known = package.certificate
    common = {
        "name": package.name,
        "version": package.version,
        "replicas": package.replicas,
        "python": PYTHON,
        "digest": known.run["digest"],
        "about": _about(package),
    }
    for name in environment.list_templates(extensions=[_SUFFIX[1:]]):
        path = folder / name.removesuffix(_SUFFIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = environment.get_template(name).render({**common, **values})
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def write_image(
    folder: Path,
    package: Package,
    start: Sequence[str],
    *,
    port: int,
    health: str,
    copied: Sequence[str] = (),
    options: Sequence[str] = (),
) -> None:
    """Write the `Containerfile` of an image that serves a model, and what its build leaves out.

    Args:
        folder: The package, whose requirements and folder `model` go into the image.
        package: The model.
        start: The command.
        port: The port that it listens on.
        health: The path there that answers while it lives.
        copied: Other files of the package that the command reads.
        options: Of the command, where who runs the image may give others.
    """
    system = {name for module in package.certificate.versions for name in _SYSTEM.get(module, ())}
    copied = ["model", *copied]
    values = {"start": list(start), "options": list(options), "port": port, "health": health}
    here = Path(__file__).with_name("templates")
    render(here, folder, package, {**values, "copied": copied, "system": sorted(system)})
    ignored = "".join(
        f"{line}\n" for line in ("*", *(f"!{name}" for name in (*copied, "requirements.txt", "wheels")))
    )
    for name in (".containerignore", ".dockerignore"):
        (folder / name).write_text(ignored, encoding="utf-8")


def _about(package: Package) -> str:
    """Return what a README says of the model, as a table of Markdown."""
    known = package.certificate
    inputs = [f"`{one['name']}` ({one['dtype']})" for one in known.inputs]
    more = [f"and {len(inputs) - _SHOWN} more"] if len(inputs) > _SHOWN else []
    rows = {
        "model": f"{known.run['model']}, {known.run['task'].replace('_', ' ')}",
        "run": f"`{package.version}`, digest `{known.run['digest']}`",
        "format": f"`{known.format}`, {package.model_bytes / 1e6:.3g} MB; its certificate says how it was "
        "compared with its run",
        "terms of use": known.licence or "not stated",
        "takes": ", ".join([*inputs[:_SHOWN], *more]),
        "gives": ", ".join(f"`{one['name']}`" for one in known.outputs),
        "versions": ", ".join(f"{name} {version}" for name, version in known.versions.items())
        + f"; Python {PYTHON}",
    }
    lines = [f"| {name} | {_cell(text)} |" for name, text in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def request(package: Package) -> dict[str, Any]:
    """Return a request that our own server answers, made from what the training data held."""
    from trainwright.datasets.images.preparation import ImagePreparation
    from trainwright.datasets.tables.preparation import TabularPreparation, from_json
    from trainwright.datasets.texts.preparation import TextPreparation

    kept = package.certificate.data.get("preparation")
    preparation = from_json(kept) if kept else None
    match preparation:
        case TabularPreparation(steps=None):
            return {"rows": [{one.name: one.example for one in preparation.columns}]}
        case ImagePreparation():
            return {"images": ["(a file in base64)"]}
        case TextPreparation():
            return {"texts": ["..."]}
    return {"rows": [example(package)]}


def example(package: Package) -> dict[str, Any]:
    """Return a row for the model, as a request has it, in which there is something to fill in."""
    values = {"float64": 0.5, "string": "..."}
    return {one["name"]: values.get(one["dtype"], 0) for one in package.certificate.inputs}


def quoted(value: Any) -> str:
    """Return JSON for a place between the single quotes of a shell."""
    return json.dumps(value, ensure_ascii=False).replace("'", "'\\''")
