"""The memory that `plan` predicts is what the processes of a real run take."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright

MEASURING = Path(__file__).resolve().parent.parent / "measuring"
CONFIG = {
    "data": {"type": "text", "path": "words.txt", "length": 64, "tokenizer": "bpe", "vocab_size": 2000},
    "model": {"type": "gpt", "hidden_size": 256, "num_layers": 8, "num_heads": 4},
    "training": {"max_steps": 3, "batch_size": 8, "threads": 1, "device": "cpu"},
}
FSDP = ["distributed.nproc=2", "distributed.strategy=fsdp"]
PIPELINE = ["distributed.nproc=2", "distributed.pipeline=2", "training.microbatch_size=1"]
CASES = {
    "one process": [],
    "gradients of four virtual ranks": ["distributed.virtual.data=4"],
    "ddp": ["distributed.nproc=2"],
    "ddp, sums of the backend": ["distributed.nproc=2", "distributed.exact=false"],
    "fsdp": FSDP,
    "fsdp, microbatches": [*FSDP, "training.microbatch_size=2"],
    "fsdp, parameters kept": [*FSDP, "distributed.reshard_after_forward=false"],
    "fsdp, averages, 16 bits, activations computed again": [
        *FSDP,
        "training.ema.decay=0.9",
        "training.precision=bf16",
        "training.activation_checkpointing=[blocks.*]",
    ],
    "tensor": ["distributed.nproc=2", "distributed.tensor=2"],
    "pipeline": ["distributed.nproc=2", "distributed.pipeline=2", "training.microbatch_size=2"],
    "gpipe": [*PIPELINE, "distributed.schedule=gpipe"],
    "interleaved": [*PIPELINE, "distributed.schedule=interleaved", "distributed.virtual.pipeline=4"],
    "fsdp in a pipeline": ["distributed.nproc=4", "distributed.strategy=fsdp", "distributed.pipeline=2"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of random words."""
    made = tmp_path_factory.mktemp("planned")
    draw = random.Random(1)
    lines = [" ".join(f"w{draw.randrange(4000)}" for _ in range(12)) for _ in range(3000)]
    (made / "words.txt").write_text("\n".join(lines))
    data = {**CONFIG["data"], "path": str(made / "words.txt")}
    (made / "config.yaml").write_text(json.dumps({**CONFIG, "data": data}))
    return made


def measured(folder: Path, out: Path, words: list[str]) -> float:
    """Train, and return the most bytes of all processes and steps."""
    environment = {
        **os.environ,
        "LIVE_MEMORY": str(out),
        "PYTHONPATH": str(MEASURING),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "trainwright", "train", "config.yaml", "--runs-dir", str(out / "runs")]
    done = subprocess.run(
        [*command, *words], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    peaks = [json.loads(path.read_text()) for path in out.glob("*.json")]
    return float(max(max(one) for one in peaks))


@pytest.mark.services
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_memory_is_as_predicted(folder: Path, tmp_path: Path, words: list[str]) -> None:
    predicted = trainwright.plan(folder / "config.yaml", words).own.memory
    assert predicted.total == pytest.approx(measured(folder, tmp_path, words), rel=0.1)
    assert all(part >= 0 for part in predicted)


LANGUAGE = "transformers:AutoModelForCausalLM"
_LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6}
_GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 4}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_LORA = {"r": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]}
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "llama with lora": ({"type": LANGUAGE, "config": {**_LLAMA, **_HEADS}, "lora": _LORA}, FSDP),
    "gpt2": ({"type": LANGUAGE, "config": _GPT2}, PIPELINE),
    "cnn": ({"type": "cnn", "filters": [64, 128, 256, 512]}, ["distributed.nproc=2"]),
    "resnet": ({"type": "resnet"}, []),
}


@pytest.mark.services
@pytest.mark.parametrize(("model", "words"), MODELS.values(), ids=MODELS)
def test_memory_of_other_models(
    folder: Path, tmp_path: Path, model: dict[str, Any], words: list[str]
) -> None:
    """Frozen parameters, other libraries, and convolutions."""
    config = json.loads((folder / "config.yaml").read_text())
    if model["type"] in ("cnn", "resnet"):
        draw = np.random.default_rng(0)
        images = draw.random((400, 32, 32, 3), dtype=np.float32)
        np.savez(tmp_path / "images.npz", features=images, target=draw.integers(0, 5, 400))
        config["data"] = {"type": "npz", "path": str(tmp_path / "images.npz")}
        config["training"]["batch_size"] = 32
    (tmp_path / "config.yaml").write_text(json.dumps({**config, "model": model}))
    predicted = trainwright.plan(tmp_path / "config.yaml", words).own.memory
    assert predicted.total == pytest.approx(measured(tmp_path, tmp_path, words), rel=0.1)


LARGE = {
    "hidden_size": 8192,
    "num_layers": 80,
    "num_heads": 64,
    "num_kv_heads": 8,
    "intermediate_size": 28672,
    "activation": "swiglu",
    "normalization": "rms",
    "position": "rotary",
    "bias": False,
    "tie_embeddings": False,
}
PLAN = r"""
import json, pathlib, re, sys, trainwright
from trainwright.api.documents import json_document, mesh_plan
made = trainwright.plan(sys.argv[1], sys.argv[2:], gpus=64, memory=80e9)
# Not `ru_maxrss`, which begins at the memory of the process that started this one.
status = pathlib.Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
print(json_document({"peak": peak, **mesh_plan(made)}))
"""


@pytest.mark.services
def test_a_large_model_is_planned_without_its_memory(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line of text, and then another one\n" * 2000)
    config: dict[str, Any] = {
        "data": {"type": "text", "path": str(tmp_path / "text.txt"), "length": 512},
        "model": {"type": "gpt", **LARGE},
        "training": {
            "max_steps": 1,
            "batch_size": 64,
            "microbatch_size": 1,
            "precision": "bf16",
            "activation_checkpointing": ["blocks.*"],
        },
        "distributed": {"strategy": "fsdp"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-c", PLAN, "config.yaml"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak"] < 1.5e9
    block = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    assert found["parameters"] == pytest.approx(80 * block, rel=0.001)  # and small embeddings of bytes
    own = found["meshes"][0]
    assert own["mesh"] == {"pipeline": 1, "data": 1, "shard": 64, "tensor": 1}
    # A 64th of parameters and two moments, and what is gathered of two blocks at a time.
    assert own["memory_bytes"]["optimizer"] == pytest.approx(2 * 4 * 80 * block / 64, rel=0.01)
    assert 4 * 80 * block / 64 <= own["memory_bytes"]["parameters"] <= 4 * (80 * block / 64 + 2 * block)
    assert own["sent_bytes"]["shard"] == pytest.approx(3 * 63 / 64 * 4 * 80 * block, rel=0.01)
    assert len(found["meshes"]) == 4
    assert all(one["fits"] for one in found["meshes"][1:])
