"""Keras models in ONNX, of each backend in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright.testing.exporter_suite import write_rows

pytestmark = pytest.mark.services  # each backend needs seconds to start

_SCRIPT = """
import json, sys
import trainwright
from trainwright.records.artifact import read_certificate
for name, target, params, transform in (
    ("two", "churn", {"activation": "gelu", "normalization": "layer"}, "none"),
    ("classes", "city", {"normalization": "batch", "dropout": 0.2}, "none"),
    ("values", "income", {"activation": "silu"}, "log1p"),
):
    data = {"type": "csv", "path": "rows.csv", "target": target, "impute": "median", "missing_target": "drop"}
    data |= {} if transform == "none" else {"target_transform": transform}
    model = {"type": "mlp", "framework": "keras", "params": {**params, "hidden": [8]}}
    config = {"data": data, "model": model, "training": {"max_steps": 8, "threads": 1, "batch_size": 32}}
    run = trainwright.train(config, quiet=True, runs_dir="runs")
    try:
        path = trainwright.export(run, f"{name}.onnx", "onnx")
    except trainwright.errors.InputError as error:
        print("refused:", error)
        continue
    known = read_certificate(path)
    trainwright.predict(run, "rows.csv").to_csv(f"{name}.csv", index=False)
    print(json.dumps([name, known.compared["equal_labels"], known.compared["rows"]]))
"""


def _of_backend(folder: Path, backend: str) -> list[str]:
    """Train and export models with a backend; return what was printed."""
    write_rows(folder / "rows.csv")
    variables = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT],
        cwd=folder,
        env=variables,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_models(tmp_path: Path, backend: str) -> None:
    found = [json.loads(line) for line in _of_backend(tmp_path, backend)]
    assert [one[:2] for one in found] == [["two", 1], ["classes", 1], ["values", None]]
    assert all(rows["edge"] > 15 and rows["test"] > 20 for _, _, rows in found)
    for name in ("two", "values"):
        own = _columns(tmp_path / f"{name}.csv")
        given = _columns_of(
            subprocess.run(
                [sys.executable, "-I", f"{name}.onnx.reader.py", "predict", "rows.csv"],
                cwd=tmp_path,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        assert list(given) == list(own)
        for column, values in own.items():
            if values[0].replace(".", "").isdigit():
                np.testing.assert_allclose(np.array(given[column], float), np.array(values, float), rtol=1e-5)
            else:
                assert given[column] == values


def _columns(path: Path) -> dict[str, list[str]]:
    return _columns_of(path.read_text())


def _columns_of(text: str) -> dict[str, Any]:
    header, *lines = (line.split(",") for line in text.splitlines())
    return dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))


def test_jax_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    lines = _of_backend(tmp_path, "jax")
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("refused: Keras models of the backend jax cannot be exported to ONNX")
        assert "export with --format keras" in line
