"""executorch: a program for phones and embedded devices, which ExecuTorch runs without torch and Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require


class ExecutorchExporter(PreparedExporter):
    """An exporter of `.pte` files, which take one row: their memory is planned ahead.

    ExecuTorch's passes lose the bounds of sizes that vary, in a convolution or an attention, say.
    """

    summary = "a folder: a .pte file for phones and embedded devices, one row a call"
    runtime = "trainwright.exporters.executorch.runtime"
    packages = ("executorch", "torch", "numpy")
    extra = "executorch"
    frameworks = ("torch",)
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "backend": {
            "xnnpack": "fast kernels for CPUs of phones and computers",
            "portable": "plain C++, for any device",
        }
    }

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write `model.pte`; see `PreparedExporter.write_model`."""
        torch = require("torch", "torch")
        require("executorch", "executorch")
        from trainwright.exporters.programs import exporting, module_of

        module, samples = module_of(predictor, rows=1)
        with exporting("executorch", "pt2"):
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            program = torch.export.export(module, tuple(samples.values()))
            parts = [XnnpackPartitioner()] if self.options["backend"] == "xnnpack" else []
            lowered = to_edge_transform_and_lower(program, partitioner=parts).to_executorch()
            (folder / "model.pte").write_bytes(lowered.buffer)
