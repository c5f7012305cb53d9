"""Our own server: a folder with all that containers, Kubernetes, or a script need to run replicas of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from trainwright.monitoring.alerts import rules
from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import quoted, render, request, write_image
from trainwright.servers.requirements import write_requirements

_MIB = 2**20
_STEP = 256  # MiB, of which a limit of memory is a multiple
_BASE = 512  # MiB, of Python, the server and the libraries
_COPIES = 4  # of the model: read, opened, and two for a reload
_KEY = "/run/secrets/api-key"


class OwnServer(Server):
    """The layout for `trainwright serve`, which reads any format that predicts."""

    summary = "our own server: by containers, compose, Kubernetes, KServe, or a script (the default)"
    # What is small and exact first: ONNX Runtime has 20 MB, where TensorFlow and PyTorch have hundreds.
    formats: ClassVar[Sequence[str]] = ("native", "sklearn", "onnx", "pt2", "keras")

    def write(self, package: Package, folder: Path) -> str:
        """Write the folder; see `Server.write`."""
        artifact = package.copy_artifact(folder / "model").relative_to(folder).as_posix()
        write_requirements(folder, package.certificate, ["serve", *package.extras])
        flags = ["--trust"] if package.executes_code else []
        start = [
            "python",
            "-m",
            "trainwright",
            "serve",
            artifact,
            "--host",
            "0.0.0.0",
            "--port",
            "8000",
            *flags,
        ]
        beside = [one.name for one in folder.glob("model.reference.json")]
        write_image(
            folder, package, start, port=8000, health="/health", copied=beside, options=["--key-file", _KEY]
        )
        size = package.model_bytes / _MIB
        values = {
            "model": artifact,
            "flags": flags,
            "memory": int(-(-(_BASE + _COPIES * size) // _STEP) * _STEP),
            "megabytes": f"{package.model_bytes / 1e6:.3g}",
            "request": quoted(request(package)),
        }
        render(Path(__file__).with_name("templates"), folder, package, values)
        (folder / "prometheus" / "alerts.yml").write_text(
            rules(labels={"service": package.name}, job=package.name), encoding="utf-8"
        )
        return f"./run.sh --replicas {package.replicas}"
