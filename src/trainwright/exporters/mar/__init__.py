"""mar: an archive for TorchServe, legacy as that is: a frozen TorchScript, and a handler of raw rows."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.require import require
from trainwright.types import Array


class MarExporter(PreparedExporter):
    """An exporter of archives for TorchServe."""

    summary = "a file for TorchServe, with a handler of raw rows"
    suffix = ".mar"
    runtime = "trainwright.exporters.mar.runtime"
    packages = ("torch", "numpy")
    extra = "torch"
    frameworks = ("torch",)
    successor = "pt2"
    executes_code = True

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write the files of the archive; see `PreparedExporter.write_model`."""
        require("torch", "torch")
        from trainwright.exporters.certificates.script import reader_source
        from trainwright.exporters.programs import write_script

        write_script(predictor, folder / "model.pt", "trace")
        inputs = [{**one._asdict(), "shape": list(one.shape)} for one in self.inputs(predictor)]
        (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
        handler = reader_source("trainwright.exporters.mar.handler")
        (folder / "handler.py").write_text(handler, encoding="utf-8")
        model = {
            "modelName": predictor.config.experiment.name,
            "modelVersion": predictor.run.id,
            "serializedFile": "model.pt",
            "handler": "handler.py:handle",
        }
        (folder / "MAR-INF").mkdir()
        manifest = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the archive; see `Exporter.write`."""
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder, "files")
            super().write(predictor, files, metadata)
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for file in sorted(one for one in files.rglob("*") if one.is_file()):
                    archive.write(file, file.relative_to(files).as_posix())

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the features of each column, and all features."""
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(path) as archive:
                archive.extract("columns.json", folder)
            return super().steps(Path(folder), feeds)
