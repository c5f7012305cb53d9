"""litert: a file for phones and embedded devices, which LiteRT (once TensorFlow Lite) runs."""

from __future__ import annotations

from pathlib import Path

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require


class LitertExporter(PreparedExporter):
    """An exporter of `.tflite` files, which take one row."""

    summary = "a folder: a .tflite file for phones and embedded devices, one row a call"
    runtime = "trainwright.exporters.litert.runtime"
    packages = ("ai_edge_litert", "numpy")
    extra = "litert"
    frameworks = ("torch",)

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.tflite`; see `PreparedExporter.write_model`."""
        require("torch", "torch")
        require("litert_torch", "litert")
        from trainwright.exporters.programs import exporting, module_of

        module, samples = module_of(predictor, rows=1)
        with exporting("litert", "pt2"):
            import litert_torch

            litert_torch.convert(module, tuple(samples.values())).export(str(folder / "model.tflite"))
