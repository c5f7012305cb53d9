"""Weights alone: their tensors are those of the run, also in several files, and rounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

import trainwright
from trainwright.errors import InputError
from trainwright.exporters.safetensors import Bfloat16Exporter, SafetensorsExporter
from trainwright.runs.run import Run
from trainwright.testing.exporter_suite import ExporterSuite

MLP = {"mlp": {"data.impute": "median", "training.batch_size": 32}}


class TestSafetensors(ExporterSuite):
    exporter = SafetensorsExporter
    form = "safetensors"
    takes_rows = False
    models: ClassVar[dict[str, dict[str, Any]]] = MLP

    def damage(self, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    def test_several_files_are_verified(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        path = trainwright.export(run_of("mlp"), tmp_path / "m", max_shard_size=3000)
        files = sorted(path.glob("*.safetensors"))
        assert len(files) > 2
        whole = {name: one for file in files for name, one in load_file(file).items()}
        torch.testing.assert_close(
            whole, dict(trainwright.load(run_of("mlp")).native.state_dict()), rtol=0, atol=0
        )
        assert f"{len(whole)} tensors are equal" in trainwright.verify_certificate(path)

    def test_what_is_of_predictions_is_refused(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        with pytest.raises(InputError, match="safetensors holds weights, which are exact"):
            trainwright.export(run_of("mlp"), tmp_path / "m.safetensors", tolerance=1e-3)
        path = trainwright.export(run_of("mlp"), tmp_path / "m.safetensors")
        with pytest.raises(InputError, match="does not say how rows become predictions"):
            trainwright.verify_certificate(path, "rows.csv")


class TestBfloat16(ExporterSuite):
    exporter = Bfloat16Exporter
    form = "safetensors-bf16"
    takes_rows = False
    models: ClassVar[dict[str, dict[str, Any]]] = MLP

    def damage(self, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
