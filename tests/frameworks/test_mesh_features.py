"""The options of training and other models than `gpt` have the bits of one process on meshes, too."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.errors import ModelError
from trainwright.testing.strategy_suite import StrategySuite

MODELS = """
import numpy as np
import torch
from torch import nn


class Odd(nn.Module):
    # A scalar, a layer of one row, one of few rows, and more dimensions.
    def __init__(self):
        super().__init__()
        self.scale, self.cube = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.full((1, 3, 5), 0.1))
        self.up, self.one, self.three, self.out = (
            nn.Linear(64, 33), nn.Linear(33, 1), nn.Linear(33, 3), nn.Linear(4, 10)
        )

    def forward(self, x):  # (samples, 64) -> (samples, 10)
        h = torch.tanh(self.up(x)) * self.scale
        return self.out(torch.cat([self.one(h), self.three(h)], 1) + self.cube.sum())


class Asking(nn.Module):
    # Its forward pass asks for a value, so it cannot be called on the device meta.
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def draw_parameters(self, module, name):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def forward(self, x):
        return self.last(torch.relu(self.first(x / (1 + x[0, 0].item()))))


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 32), nn.Linear(32, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.feed = norm(64), Feed()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.feed(self.norm(x)))


class Blocks(nn.Module):
    def __init__(self, batch=False, ink=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(nn.BatchNorm1d if batch else nn.LayerNorm) for _ in range(2))
        self.out, self.ink = nn.Linear(64, 10), nn.Linear(64, 1) if ink else None

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return {"label": self.out(x), "ink": self.ink(x)[:, 0]} if self.ink is not None else self.out(x)


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, memory):
        return x + torch.tanh(self.own(x)) * self.key(memory) + self.value(memory)


class Decoder(nn.Module):
    # Both layers use what the first one made, twice each; the last one also what the first block made.
    def __init__(self):
        super().__init__()
        self.memory, self.out = nn.Linear(64, 16), nn.Linear(16, 10)
        self.layers = nn.ModuleList(Reading() for _ in range(3))

    def forward(self, x):
        memory = self.memory(x)
        first = self.layers[0](memory, memory=memory)
        return self.out(self.layers[2](self.layers[1](first, memory), first))


class Chain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.Linear(32, 10))


def two():
    draws = np.random.default_rng(0)
    x = draws.normal(size=(300, 64)).astype("f4")
    rows = {
        "features": x,
        "target": np.argmax(x[:, :10], 1),
        "ink": x.sum(1),
        "weight": (1 + 1.7 * (x[:, 0] > 0)).astype("f4"),
    }
    ends = {"train": (0, 200), "val": (200, 250), "test": (250, 300)}
    return {name: {key: rows[key][slice(*end)] for key in rows} for name, end in ends.items()}


def few():
    # 20 samples in batches of 6: the last one of an epoch has 2.
    ends = {"train": (0, 20), "val": (200, 203), "test": (250, 251)}
    x = np.random.default_rng(0).normal(size=(300, 64)).astype("f4")
    rows = {"features": x, "target": np.arange(300) % 10}
    return {name: {key: rows[key][slice(*end)] for key in rows} for name, end in ends.items()}


def tokens():
    x = np.random.default_rng(0).integers(1, 30, size=(260, 10))
    mask = np.ones_like(x)
    mask[::3, 7:] = 0
    rows = {"input_ids": x, "attention_mask": mask, "target": (x[:, :5].sum(1) > x[:, 5:].sum(1)).astype(int)}
    ends = {"train": (0, 180), "val": (180, 220), "test": (220, 260)}
    return {name: {key: rows[key][slice(*end)] for key in rows} for name, end in ends.items()}
"""
MESHES = {
    "ddp-2": ["nproc=2"],
    "fsdp-2": ["nproc=2", "strategy=fsdp"],
    "hsdp-2x2": ["nproc=4", "strategy=hsdp", "shard=2"],
    "tensor-2": ["nproc=2", "tensor=2"],
    "pipeline-2": ["nproc=2", "pipeline=2"],
    "tensor-2-pipeline-2": ["nproc=4", "tensor=2", "pipeline=2"],
    "fsdp-2-pipeline-2": ["nproc=4", "strategy=fsdp", "pipeline=2"],
    "fsdp-1-pipeline-2": ["nproc=2", "strategy=fsdp", "pipeline=2"],
}
GPT = {"type": "gpt", "params": {"hidden_size": 24, "num_layers": 2, "num_heads": 2, "dropout": 0.1}}
TEXT = {"type": "text", "path": "text.txt", "length": 12}
SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "max_position_embeddings": 32}
LLAMA = {"model_type": "llama", **SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
BERT = {"model_type": "bert", **SIZES, "num_attention_heads": 2, "vocab_size": 30}
LORA = {"r": 4, "dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]}
CAUSAL, CLASSIFIER = "transformers:AutoModelForCausalLM", "transformers:AutoModelForSequenceClassification"
ALL, STAGES = {"data": 4, "tensor": 2, "pipeline": 2}, {"data": 4, "pipeline": 2}
FEED = {"colwise": ["blocks.*.feed.up"], "rowwise": ["blocks.*.feed.down"]}
# What of the config differs from `config` below: model, data, virtual mesh, plan, and options of training.
CASES: dict[str, dict[str, Any]] = {
    "options": {
        "model": GPT,
        "data": TEXT,
        "virtual": ALL,
        "log_grad_norm": True,
        "ema": {"decay": 0.9},
        "weight_decay": 0.1,
        "layer_decay": 0.8,
        "activation_checkpointing": ["blocks.*"],
        "freeze": [{"match": "*embedding*", "until_step": 3}, {"match": "blocks.1.*norm*"}],
        "parameter_groups": [{"match": "*mlp*", "learning_rate": 0.001}],
    },
    "values": {"model": GPT, "data": TEXT, "virtual": ALL, "max_grad_norm": None, "max_grad_value": 0.01},
    "fp16": {"model": GPT, "data": TEXT, "virtual": ALL, "precision": "fp16"},
    "overflow": {  # of the first steps' gradients, which are skipped
        "model": "models:Blocks",
        "data": {"type": "digits", "standardize": False},
        "virtual": ALL,
        "plan": FEED,
        "precision": "fp16",
    },
    "offload": {"model": GPT, "data": TEXT, "virtual": ALL, "offload": True, "ema": {"decay": 0.9}},
    "muon": {"model": GPT, "data": TEXT, "virtual": STAGES, "optimizer": "muon"},
    "adafactor": {"model": GPT, "data": TEXT, "virtual": STAGES, "optimizer": "adafactor"},
    "odd": {"model": "models:Odd"},
    "asking": {"model": "models:Asking"},
    "decoder": {"model": "models:Decoder"},
    "chain": {"model": "models:Chain", "virtual": STAGES, "class_weights": "balanced"},
    "long_chain": {"model": "models:Chain", "virtual": {"data": 4, "pipeline": 4}},
    "heads": {
        "model": {"type": "models:Blocks", "params": {"ink": True}},
        "data": {"type": "models:two", "weight": "weight"},
        "virtual": STAGES,
        "heads": {"ink": {"loss": "mse", "weight": 0.3}},
        "class_weights": "balanced",
    },
    "batch_norm": {
        "model": {"type": "models:Blocks", "params": {"batch": True}},
        "virtual": {"data": 2, "tensor": 2},
        "plan": FEED,
        "batch_size": 32,
        "microbatch_size": 16,
        "drop_last": True,
    },
    # Batches, and evaluations, of fewer samples than there are virtual ranks; the best model is an earlier one.
    "small": {
        "model": "models:Blocks",
        "data": {"type": "models:few", "task": "classification"},
        "virtual": ALL,
        "plan": FEED,
        "batch_size": 6,
        "max_steps": 30,
        "learning_rate": 0.05,
        "early_stopping": {"patience": 2},
    },
    "text": {
        "model": {
            "type": "text_transformer",
            "params": {"hidden_size": 16, "num_layers": 2, "num_heads": 2},
        },
        "data": "models:tokens",
        "virtual": ALL,
    },
    "table": {
        "model": {"type": "transformer", "params": {"hidden_size": 16, "num_layers": 2, "num_heads": 2}},
        "virtual": ALL,
        "max_steps": 2,
    },
    "llama": {"model": {"type": CAUSAL, "config": LLAMA}, "data": TEXT, "virtual": ALL},
    "llama_bf16": {
        "model": {"type": CAUSAL, "config": {**LLAMA, "tie_word_embeddings": True}},
        "data": TEXT,
        "virtual": ALL,
        "precision": "bf16",
    },
    "lora": {"model": {"type": CAUSAL, "config": LLAMA, "lora": LORA}, "data": TEXT, "virtual": ALL},
    "llama_classes": {
        "model": {"type": CLASSIFIER, "config": {**LLAMA, "vocab_size": 30, "pad_token_id": 0}},
        "data": "models:tokens",
        "virtual": ALL,
    },
    "bert": {"model": {"type": CLASSIFIER, "config": BERT}, "data": "models:tokens", "virtual": STAGES},
    "bert_bf16": {
        "model": {"type": CLASSIFIER, "config": BERT},
        "data": "models:tokens",
        "virtual": STAGES,
        "precision": "bf16",
    },
}
PAIRS = [  # the first one of each case is on a mesh that it is likely to fail on
    ("options", "tensor-2-pipeline-2"),
    ("muon", "pipeline-2"),
    ("odd", "fsdp-2"),
    ("asking", "fsdp-2"),
    ("decoder", "fsdp-2"),
    ("batch_norm", "tensor-2"),
    ("bert_bf16", "fsdp-2"),
    ("lora", "tensor-2"),
    *((case, one) for case in ("options", "fp16", "overflow") for one in ("fsdp-2", "fsdp-2-pipeline-2")),
    *((case, "tensor-2-pipeline-2") for case in ("fp16", "overflow")),
    *(("offload", one) for one in ("fsdp-2", "hsdp-2x2", "tensor-2-pipeline-2")),
    ("small", "fsdp-2-pipeline-2"),
    *(("small", one) for one in ("hsdp-2x2", "tensor-2-pipeline-2")),
    *(("values", one) for one in ("fsdp-2", "tensor-2-pipeline-2")),
    ("adafactor", "pipeline-2"),
    ("odd", "hsdp-2x2"),
    *((case, "fsdp-2-pipeline-2") for case in ("chain", "heads")),
    ("long_chain", "fsdp-1-pipeline-2"),  # one unit in two stages of a process, and nobody to sum with
    *((case, "tensor-2-pipeline-2") for case in ("text", "table", "llama_classes")),
    *((case, one) for case in ("llama", "llama_bf16", "lora") for one in ("fsdp-2", "tensor-2-pipeline-2")),
    *(("bert", one) for one in ("ddp-2", "fsdp-2", "pipeline-2")),
]


def config(case: dict[str, Any]) -> dict[str, Any]:
    """Batches of 10 are virtual ranks of 2 and 3 samples, in microbatches of 2."""
    options = dict(case)
    places = {name: options.pop(name) for name in ("virtual", "plan", "offload") if name in options}
    return {
        "experiment": {"name": "features", "seed": 5},
        "model": options.pop("model"),
        "data": options.pop("data", {"type": "digits"}),
        "training": {
            "max_steps": 5,
            "batch_size": 10,
            "microbatch_size": 2,
            "learning_rate": 0.003,
            "max_grad_norm": 0.5,
            "threads": 1,
            **options,
        },
        "evaluation": {"every_n_steps": 3, "batch_size": 128},
        "checkpoint": {"every_n_steps": 4, "every_n_minutes": None},
        "distributed": {"virtual": {"data": 4}, "max_restarts": 0, **places},
    }


def write(folder: Path) -> None:
    (folder / "text.txt").write_text(inspect.getsource(argparse)[:8000])
    (folder / "models.py").write_text(MODELS)


def train(folder: Path, case: str, mesh: list[str]) -> Any:
    write(folder)
    (folder / "config.yaml").write_text(json.dumps(config(CASES[case])))
    words = [f"distributed.{one}" for one in mesh]
    return StrategySuite._result(StrategySuite._command(folder, "train", "config.yaml", *words))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function to the result of one process."""
    results: dict[str, Any] = {}

    def result(case: str) -> Any:
        if case not in results:
            results[case] = train(tmp_path_factory.mktemp("alone"), case, [])
        return results[case]

    return result


@pytest.mark.services
@pytest.mark.parametrize(("case", "mesh"), PAIRS)
def test_the_bits_of_one_process(case: str, mesh: str, alone: Any, tmp_path: Path) -> None:
    StrategySuite._compare(train(tmp_path, case, MESHES[mesh]), alone(case))


@pytest.mark.services
def test_updates_on_the_cpu_change_no_bits_there(alone: Any, tmp_path: Path) -> None:
    CASES["no_offload"] = {**CASES["offload"], "offload": False}
    StrategySuite._compare(train(tmp_path, "no_offload", []), alone("offload"))


OBJECT = """
import hashlib, json, sys, torch, trainwright, models
torch.manual_seed(7)
net = models.Blocks()
overrides = [f"distributed.{one}" for one in sys.argv[1:]]
run = trainwright.train("config.yaml", overrides=overrides, model=net)
assert type(net) is models.Blocks and not any(hasattr(one, "to_local") for one in net.parameters())
weights = b"".join(name.encode() + one.numpy().tobytes() for name, one in net.state_dict().items())
print(json.dumps([run.digest, hashlib.sha256(weights).hexdigest()]))
"""


def of_object(folder: Path, processes: int, *words: str) -> list[Any]:
    """Return the digest of a run that trains an object, and the hash of the object, in each process."""
    write(folder)
    own = {
        name: value for name, value in config({"model": "mlp", "virtual": STAGES}).items() if name != "model"
    }
    (folder / "config.yaml").write_text(json.dumps(own))
    (folder / "script.py").write_text(OBJECT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if processes > 1:
        variables |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "script.py", *words],
            cwd=folder,
            env=variables | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    return [json.loads(one.communicate(timeout=120)[0].splitlines()[-1]) for one in started]


@pytest.mark.services
def test_an_object_comes_back_whole_with_the_weights_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    expected = of_object(tmp_path / "alone", 1)
    assert of_object(tmp_path, 2, "strategy=fsdp") == 2 * expected


REFUSED = [
    (
        {"model": {"type": "models:Blocks", "params": {"batch": True}}, "virtual": STAGES},
        "normalizes over the batch.* pipeline",
    ),
]


@pytest.mark.parametrize(("case", "said"), REFUSED)
def test_what_cannot_be_exact_is_refused_before_training(
    case: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=said):
        trainwright.train(config(case), runs_dir=tmp_path / "runs")
