"""aoti: a program that AOTInductor has compiled for CPUs like this one."""

from __future__ import annotations

import platform
from collections.abc import Mapping
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

    def needs(self) -> Mapping[str, str]:
        """Return system, CPU and torch that the code is compiled for.

        The compiler may use each of the CPU's instructions.
        """
        torch = require("torch", "torch")
        able = torch.cpu.get_capabilities()
        return {
            "system": platform.system(),
            "machine": platform.machine(),
            "instructions": " ".join(sorted(name for name, value in able.items() if value is True)),
            "torch": ".".join(torch.__version__.split(".")[:2]),
        }

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.pt2`, compiled; see `PreparedExporter.write_model`."""
        torch = require("torch", "torch")
        from trainwright.exporters.programs import exporting, program_of

        program = program_of(predictor, "aoti")
        with exporting("aoti", "pt2"):
            torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
