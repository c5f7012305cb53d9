"""Models of PyTorch in its own formats predict what their runs predict, in a process with torch alone."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import trainwright
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.exporters.aoti import AotiExporter
from trainwright.exporters.certificates.files import files_of
from trainwright.exporters.executorch import ExecutorchExporter
from trainwright.exporters.litert import LitertExporter
from trainwright.exporters.mar import MarExporter
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

    def test_a_module_that_counts_rows_with_python(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call alone takes that number for a constant."""
        monkeypatch.chdir(tmp_path)
        draws = np.random.default_rng(0)
        images = draws.normal(size=(60, 2, 3)).astype(np.float32)
        np.savez("images.npz", features=images, target=draws.integers(0, 2, 60))
        config = {"data": {"type": "npz", "path": "images.npz"}, "model": "mlp", "training": {"max_steps": 1}}
        module = Counting()
        run = trainwright.train(config, model=module, runs_dir="runs", quiet=True)
        path = trainwright.export(run, tmp_path / "model", "pt2", model=module)
        program = torch.export.load(path / "model.pt2").module()
        own = trainwright.load(run, model=module).outputs({"features": images})
        with torch.no_grad():
            np.testing.assert_allclose(program(torch.from_numpy(images)).numpy(), own, atol=1e-6)


@pytest.mark.services
class TestTorchscript(ExporterSuite):
    exporter = TorchscriptExporter
    form = "torchscript"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    def damage(self, path: Path) -> None:
        change_scale(path)

    def test_the_code_of_a_module_is_compiled(self, run_of: Any, tmp_path: Path) -> None:
        for method in ("trace", "script"):
            trainwright.export(run_of("mlp"), tmp_path / method, "torchscript", options={"method": method})
            known = json.loads((tmp_path / method / "certificate.json").read_text())
            assert known["options"] == {"method": method}
        with pytest.raises(InputError, match=r"option method=x: this format has method=trace\|script"):
            trainwright.export(run_of("mlp"), tmp_path / "x", "torchscript", options={"method": "x"})


@pytest.mark.services
class TestAoti(ExporterSuite):
    exporter = AotiExporter
    form = "aoti"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    def damage(self, path: Path) -> None:
        change_scale(path)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("instructions", "avx2 avx1024", r"instructions that this CPU lacks \(avx1024\)"),
            ("machine", "riscv64", "compiled for .* on riscv64"),
            ("torch", "2.1", "and torch 2.1; this is torch 2"),
        ],
    )
    def test_another_machine(
        self, artifact_of: Any, tmp_path: Path, name: str, value: str, said: str
    ) -> None:
        """The code would crash there, or compute something else."""
        path = artifact_of("mlp", tmp_path) / "columns.json"
        known = json.loads(path.read_text())
        certificate = json.loads((path.parent / "certificate.json").read_text())
        assert certificate["needs"] == known["needs"]
        path.write_text(json.dumps({**known, "needs": {**known["needs"], name: value}}))
        certificate["files"] = files_of(path.parent)
        (path.parent / "certificate.json").write_text(json.dumps(certificate))
        with pytest.raises((InputError, DifferentArtifactError), match=said):
            trainwright.api.verify_certificate(path.parent, trust=True)


@pytest.mark.services
class TestExecutorch(ExporterSuite):
    exporter = ExecutorchExporter
    form = "executorch"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        pytest.importorskip("executorch")

    def damage(self, path: Path) -> None:
        change_scale(path)

    def test_plain_kernels(self, run_of: Any, tmp_path: Path) -> None:
        sizes = {}
        for backend in ("portable", "xnnpack"):
            path = tmp_path / backend
            trainwright.export(run_of("mlp"), path, "executorch", options={"backend": backend})
            sizes[backend] = b"XnnpackBackend" in (path / "model.pte").read_bytes()
        assert sizes == {"portable": False, "xnnpack": True}


@pytest.mark.services
class TestLitert(ExporterSuite):
    exporter = LitertExporter
    form = "litert"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        pytest.importorskip("litert_torch")  # which needs an environment of its own

    def damage(self, path: Path) -> None:
        change_scale(path)


@pytest.mark.services
class TestMar(ExporterSuite):
    exporter = MarExporter
    form = "mar"
    models: ClassVar[dict[str, dict[str, Any]]] = {"mlp": MEDIAN}

    def damage(self, path: Path) -> None:
        folder = path.with_suffix(".files")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
            names = archive.namelist()
        change_scale(folder)
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.write(folder / name, name)


class Counting(nn.Module):
    """A module that makes Python's number of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        rows = len(features)
        outputs: torch.Tensor = self.layer(features.reshape(rows, 6))
        return outputs
