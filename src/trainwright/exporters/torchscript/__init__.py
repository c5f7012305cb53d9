"""TorchScript: legacy, for C++ programs that load no other format yet; pt2 took its place."""

from __future__ import annotations

from pathlib import Path

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require


class TorchscriptExporter(PreparedExporter):
    """An exporter of frozen TorchScript, traced."""

    summary = "a folder: frozen TorchScript"
    runtime = "trainwright.exporters.torchscript.runtime"
    packages = ("torch", "numpy")
    extra = "torch"
    frameworks = ("torch",)
    executes_code = True
    successor = "pt2"

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.pt`; see `PreparedExporter.write_model`."""
        torch = require("torch", "torch")
        from trainwright.exporters.programs import exporting, module_of

        module, samples = module_of(predictor)
        with exporting("torchscript"), torch.no_grad():
            traced = torch.jit.trace(module, tuple(samples.values()))
            torch.jit.freeze(traced).save(str(folder / "model.pt"))
