"""TorchScript: legacy, for C++ programs that load no other format yet; pt2 took its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require


class TorchscriptExporter(PreparedExporter):
    """An exporter of frozen TorchScript."""

    summary = "a folder: frozen TorchScript"
    runtime = "trainwright.exporters.torchscript.runtime"
    packages = ("torch", "numpy")
    extra = "torch"
    frameworks = ("torch",)
    executes_code = True
    successor = "pt2"
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "method": {
            "trace": "record the operations of one call",
            "script": "compile the code of the module, with branches that depend on values",
        }
    }

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.pt`; see `PreparedExporter.write_model`."""
        require("torch", "torch")
        from trainwright.exporters.programs import write_script

        write_script(predictor, folder / "model.pt", self.options["method"])
