"""Runs with `schedule: zero_bubble` have the digest of one process, whatever the mesh and the options."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.testing.strategy_suite import StrategySuite

pytestmark = pytest.mark.services
ZERO_BUBBLE = ["distributed.schedule=zero_bubble", "distributed.pipeline=2"]
MESHES = {
    "pipeline-2": ["distributed.nproc=2"],
    "tensor-2-pipeline-2": ["distributed.nproc=4", "distributed.tensor=2"],
    "fsdp-2-pipeline-2": ["distributed.nproc=4", "distributed.strategy=fsdp"],
    "checkpointing": ["distributed.nproc=2", "training.activation_checkpointing=[blocks.*]"],
}
CONFIG: dict[str, Any] = {
    "experiment": {"name": "mesh", "seed": 5},
    "data": {"type": "text", "path": "text.txt", "length": 12},
    "model": {
        "type": "gpt",
        "params": {
            "hidden_size": 24,
            "num_layers": 4,
            "num_heads": 2,
            "dropout": 0.1,
            "tie_embeddings": True,
        },
    },
    "training": {
        "max_steps": 6,
        "batch_size": 20,
        "microbatch_size": 2,
        "learning_rate": 0.003,
        "max_grad_norm": 0.5,
        "threads": 1,
    },
    "evaluation": {"every_n_steps": 3, "batch_size": 64},
    "checkpoint": {"every_n_steps": 4, "every_n_minutes": None},
    "distributed": {"virtual": {"data": 2, "tensor": 2, "pipeline": 4}, "max_restarts": 0},
}


def _train(folder: Path, *words: str) -> Any:
    (folder / "text.txt").write_text(inspect.getsource(argparse)[:20_000])
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    return StrategySuite._command(folder, "train", "config.yaml", *words)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One process, which makes no pass in two parts."""
    return StrategySuite._result(_train(tmp_path_factory.mktemp("alone")))


@pytest.mark.parametrize("mesh", MESHES)
def test_one_digest(mesh: str, alone: Any, tmp_path: Path) -> None:
    result = StrategySuite._result(_train(tmp_path, *ZERO_BUBBLE, *MESHES[mesh]))
    StrategySuite._compare(result, alone)
