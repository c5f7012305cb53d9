"""TorchServe, legacy as that is: a store with an archive, and its configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from trainwright.errors import InputError
from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import example, quoted, render


class TorchserveServer(Server):
    """The layout of `torchserve --ts-config config.properties`."""

    summary = "TorchServe: an archive and config.properties"
    formats: ClassVar[Sequence[str]] = ("mar",)
    successor = "trainwright"

    def write(self, package: Package, folder: Path) -> str:
        """Write the folder; see `Server.write`."""
        artifact = package.copy_artifact(folder / "model-store")
        if artifact.suffix != ".mar":
            raise InputError(f"TorchServe opens archives that end in .mar: rename {artifact.name}")
        settings = {
            "defaultVersion": True,
            "marName": artifact.name,
            "minWorkers": package.replicas,
            "maxWorkers": package.replicas,
            "batchSize": 16,
            "maxBatchDelay": 5,
            "responseTimeout": 60,
        }
        models = json.dumps({package.name: {package.version: settings}})
        values = {"models": models, "archive": artifact.name, "request": quoted(example(package))}
        render(Path(__file__).with_name("templates"), folder, package, values)
        return "torchserve --start --ncs --model-store model-store --ts-config config.properties"
