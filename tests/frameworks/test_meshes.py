"""One virtual mesh has one digest, on whatever mesh of processes; and runs that change theirs keep it."""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.testing.strategy_suite import StrategySuite

pytestmark = pytest.mark.services
VIRTUAL = {"data": 4, "tensor": 2, "pipeline": 2}
GPT = {"hidden_size": 24, "num_layers": 2, "num_heads": 2, "dropout": 0.1}
LLAMA = {
    **GPT,
    "dropout": 0.0,
    "num_heads": 4,
    "num_kv_heads": 2,
    "position": "rotary",
    "normalization": "rms",
    "activation": "swiglu",
    "bias": False,
}
MESHES = {
    "ddp-2": ["nproc=2"],
    "ddp-4": ["nproc=4"],
    "fsdp-2": ["nproc=2", "strategy=fsdp"],
    "fsdp-4": ["nproc=4", "strategy=fsdp"],
    "hsdp-2x2": ["nproc=4", "strategy=hsdp", "shard=2"],
    "tensor-2": ["nproc=2", "tensor=2"],
    "pipeline-2": ["nproc=2", "pipeline=2"],
    "tensor-2-pipeline-2": ["nproc=4", "tensor=2", "pipeline=2"],
    "fsdp-2-tensor-2": ["nproc=4", "strategy=fsdp", "tensor=2"],
    "fsdp-2-pipeline-2": ["nproc=4", "strategy=fsdp", "pipeline=2"],
}
WHOLE = ("ddp-2", "ddp-4", "fsdp-2", "fsdp-4", "hsdp-2x2")  # the meshes without slices and stages
TEXT = {"type": "text", "path": "text.txt", "length": 12}
TOKENS = """
import numpy as np


def tokens():
    x = np.random.default_rng(0).integers(1, 30, size=(260, 10))
    mask = np.ones_like(x)
    mask[::3, 7:] = 0
    rows = {"input_ids": x * mask, "attention_mask": mask, "target": (x[:, 0] > x[:, 1]).astype(int)}
    ends = {"train": (0, 180), "val": (180, 220), "test": (220, 260)}
    return {name: {key: rows[key][slice(*end)] for key in rows} for name, end in ends.items()}
"""
# With dropout in all places, as they have by default; GPT-2's embedding is its output layer, too.
GPT2 = {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 12}
BERT = {
    "model_type": "bert",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 30,
    "max_position_embeddings": 12,
}
CNN = {"filters": [4, 6], "hidden": [8], "dropout": 0.2, "normalization": "batch"}
MODELS: dict[str, Any] = {  # the model, its data, and the virtual mesh
    "gpt": ({"type": "gpt", "params": GPT}, TEXT, VIRTUAL),
    "llama": ({"type": "gpt", "params": LLAMA}, TEXT, VIRTUAL),
    "gpt2": ({"type": "transformers:AutoModelForCausalLM", "config": GPT2}, TEXT, VIRTUAL),
    "bert": (
        {"type": "transformers:AutoModelForSequenceClassification", "config": BERT},
        "rows:tokens",
        VIRTUAL,
    ),
    "cnn": ({"type": "cnn", "params": CNN}, {"type": "digits"}, {"data": 4}),
}
# Batch normalization needs equal parts of a batch.
EQUAL = {"cnn": {"batch_size": 16, "drop_last": True}}
CELLS = [
    (mesh, model, precision)
    for mesh, model, precision in itertools.product(MESHES, MODELS, ["fp32", "bf16"])
    if model != "cnn" or mesh in WHOLE
]


def config(name: str, precision: str) -> dict[str, Any]:
    """Batches of 10 are virtual ranks of 2 and 3 samples, in microbatches of 2."""
    model, data, virtual = MODELS[name]
    return {
        "experiment": {"name": "mesh", "seed": 5},
        "data": data,
        "model": model,
        "training": {
            "max_steps": 12,
            "batch_size": 10,
            "microbatch_size": 2,
            "learning_rate": 0.003,
            "max_grad_norm": 0.5,
            "precision": precision,
            "threads": 1,
            **EQUAL.get(name, {}),
        },
        "evaluation": {"every_n_steps": 6, "batch_size": 64},
        "checkpoint": {"every_n_steps": 4, "every_n_minutes": None},
        "distributed": {"virtual": virtual, "max_restarts": 0},
    }


def train(folder: Path, model: str, precision: str, mesh: list[str]) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(inspect.getsource(argparse)[:20_000])
    (folder / "rows.py").write_text(TOKENS)
    (folder / "config.yaml").write_text(json.dumps(config(model, precision)))
    words = [f"distributed.{one}" for one in mesh]
    return StrategySuite._result(StrategySuite._command(folder, "train", "config.yaml", *words))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function to the result of one process."""
    results: dict[Any, Any] = {}

    def result(model: str, precision: str) -> Any:
        if (model, precision) not in results:
            folder = tmp_path_factory.mktemp("alone")
            results[model, precision] = train(folder, model, precision, [])
        return results[model, precision]

    return result


@pytest.mark.parametrize(("mesh", "model", "precision"), CELLS)
def test_one_digest(mesh: str, model: str, precision: str, alone: Any, tmp_path: Path) -> None:
    result = train(tmp_path, model, precision, MESHES[mesh])
    StrategySuite._compare(result, alone(model, precision))
