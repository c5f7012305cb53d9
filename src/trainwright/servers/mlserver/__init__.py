"""MLServer: a folder with our runtime, which answers the open inference protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import render, write_image
from trainwright.servers.requirements import write_requirements

_PORT = 8080
# Workers of MLServer 1.7 ask for an event loop in a way that newer loops refuse.
_PACKAGES = ("mlserver>=1.7,<2", "uvloop>=0.17,<0.22")


class MlserverServer(Server):
    """The layout of `mlserver start FOLDER`."""

    summary = "MLServer: settings and a runtime for the open inference protocol, REST and gRPC"
    formats: ClassVar[Sequence[str]] = ("native", "sklearn", "onnx", "pt2", "keras")

    def write(self, package: Package, folder: Path) -> str:
        """Write the folder; see `Server.write`."""
        artifact = package.copy_artifact(folder / "model").relative_to(folder).as_posix()
        write_requirements(folder, package.certificate, package.extras, *_PACKAGES)
        settings = {
            "host": "0.0.0.0",
            "http_port": _PORT,
            "grpc_port": _PORT + 1,
            "metrics_port": _PORT + 2,
            "parallel_workers": package.replicas,
        }
        model = {
            "name": package.name,
            "implementation": "runtime.TrainwrightRuntime",
            "inputs": [
                {"name": one["name"], "datatype": _datatype(one["dtype"]), "shape": [-1, *one["shape"]]}
                for one in package.certificate.inputs
            ],
            "parameters": {
                "uri": f"./{artifact}",
                "version": package.version,
                "extra": {"trust": package.executes_code},
            },
        }
        for name, content in (("settings.json", settings), ("model-settings.json", model)):
            (folder / name).write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        copied = ["runtime.py", "settings.json", "model-settings.json"]
        write_image(
            folder, package, ["mlserver", "start", "."], port=_PORT, health="/v2/health/live", copied=copied
        )
        render(Path(__file__).with_name("templates"), folder, package, {})
        return (
            "python -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/mlserver start ."
        )


def _datatype(dtype: str) -> str:
    return {"float64": "FP64", "float32": "FP32", "string": "BYTES"}.get(dtype, dtype.upper())
