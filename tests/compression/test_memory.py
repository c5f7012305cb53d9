"""The memory of a model is measured in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainwright
from trainwright.compression.measures import peak_memory
from trainwright.records.run_dir import RunDir

pytestmark = pytest.mark.services


def test_memory_holds_the_weights(tmp_path: Path) -> None:
    config = {
        "data": {"type": "iris"},
        "model": {"type": "mlp", "params": {"hidden": [2048, 2048]}},
        "training": {"max_steps": 2},
    }
    run = trainwright.train(config, runs_dir=tmp_path, quiet=True)
    predictor = trainwright.load(run)
    rows = predictor.load_data().splits["test"]
    found = peak_memory(RunDir(run.path), predictor.stored.folder, rows, trust=False)
    weights = predictor.stored.bytes
    assert weights > 16e6
    assert found is not None
    assert 0.9 * weights < found < 5 * weights  # not that of torch, which is more than 100 MB
