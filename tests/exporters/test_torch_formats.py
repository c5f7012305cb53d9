"""Models of PyTorch in its own formats predict what their runs predict, in a process with torch alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from trainwright.exporters.aoti import AotiExporter
from trainwright.exporters.pt2 import Pt2Exporter
from trainwright.exporters.torchscript import TorchscriptExporter
from trainwright.testing.exporter_suite import ExporterSuite

MEDIAN = {"data.impute": "median", "training.batch_size": 32}
PRICE = {"model": "mlp", "data.target": "income", "data.target_transform": "log1p", **MEDIAN}


def change_scale(folder: Path) -> None:
    """Change the scale of the column `age` in what is beside a model."""
    path = folder / "columns.json"
    known = json.loads(path.read_text())
    (age,) = (column for column in known["columns"] if column["name"] == "age")
    age["scale"] *= 1.5
    path.write_text(json.dumps(known))


class TestPt2(ExporterSuite):
    exporter = Pt2Exporter
    form = "pt2"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN, "price": PRICE}

    def damage(self, path: Path) -> None:
        program = torch.export.load(path / "model.pt2")
        with torch.no_grad():
            next(one for one in program.state_dict.values() if one.ndim == 2)[0, 0] += 0.5
        torch.export.save(program, path / "model.pt2")


@pytest.mark.services
class TestTorchscript(ExporterSuite):
    exporter = TorchscriptExporter
    form = "torchscript"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    def damage(self, path: Path) -> None:
        change_scale(path)


@pytest.mark.services
class TestAoti(ExporterSuite):
    exporter = AotiExporter
    form = "aoti"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    def damage(self, path: Path) -> None:
        change_scale(path)
