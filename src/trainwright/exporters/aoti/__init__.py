"""aoti: a program that AOTInductor has compiled for this kind of CPU."""

from __future__ import annotations

from pathlib import Path

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require


class AotiExporter(PreparedExporter):
    """An exporter of packages of AOTInductor."""

    summary = "a folder: a compiled package of AOTInductor, for this kind of machine"
    runtime = "trainwright.exporters.aoti.runtime"
    packages = ("torch", "numpy")
    extra = "torch"
    frameworks = ("torch",)
    executes_code = True

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.pt2`, compiled; see `PreparedExporter.write_model`."""
        torch = require("torch", "torch")
        from trainwright.exporters.programs import exporting, program_of

        program = program_of(predictor, "aoti")
        with exporting("aoti", "pt2"):
            torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
