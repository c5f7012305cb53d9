"""BentoML: a service of rows, batched by its own dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import quoted, render, request
from trainwright.servers.requirements import write_requirements


class BentomlServer(Server):
    """The layout of `bentoml build FOLDER`."""

    summary = "BentoML: service.py and bentofile.yaml"
    formats: ClassVar[Sequence[str]] = ("native", "sklearn", "onnx", "pt2", "keras")

    def write(self, package: Package, folder: Path) -> str:
        """Write the folder; see `Server.write`."""
        artifact = package.copy_artifact(folder / "model").relative_to(folder).as_posix()
        wheel = write_requirements(folder, package.certificate, package.extras, "bentoml>=1.4,<2")
        values = {
            "model": artifact,
            "wheel": f"wheels/{wheel.name}",
            "trust": package.executes_code,
            "request": quoted(request(package)),
        }
        render(Path(__file__).with_name("templates"), folder, package, values)
        return (
            "python -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/bentoml serve ."
        )
