"""pt2: a program of torch.export, which any torch from its version on can run."""

from __future__ import annotations

from pathlib import Path

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require


class Pt2Exporter(PreparedExporter):
    """An exporter of programs of torch.export."""

    summary = "a folder: a program of torch.export, for PyTorch alone"
    runtime = "trainwright.exporters.pt2.runtime"
    packages = ("torch", "numpy")
    extra = "torch"
    frameworks = ("torch",)
    executes_code = True

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.pt2`; see `PreparedExporter.write_model`."""
        torch = require("torch", "torch")
        from trainwright.exporters.programs import program_of

        torch.export.save(program_of(predictor, "pt2"), folder / "model.pt2")
