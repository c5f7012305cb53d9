"""What FSDP2 would drop, forget or mix up, of models that use their parameters in other ways."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_wrapping import names_of
from torch import nn

from trainwright.errors import ModelError, WorldError
from trainwright.frameworks.torch.network import translated
from trainwright.testing.strategy_suite import StrategySuite

MODELS = """
import torch
from torch import nn


class Uses(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.first = kind, nn.Linear(64, 12)
        self.blocks = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.out = nn.Linear(12, 10)
        if kind == "hook":
            self.blocks[0].weight.register_hook(lambda gradient: gradient / 3)
        if kind == "empty":
            self.none = nn.Parameter(torch.zeros(0, 5))
        if kind == "shared":
            self.blocks[2].weight = self.blocks[0].weight
        if kind == "list":
            self.kept = [self.blocks[0].weight]
        if kind == "closure":
            weight = self.out.weight
            self.function = lambda x: x @ weight.t()
        if kind == "attention":  # which takes another kernel for evaluations, if it has no hooks
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(12, 2, 11, batch_first=True) for _ in "ab")
        if kind == "limited":
            self.table = nn.Embedding(4, 12, max_norm=0.5)
        if kind == "root":
            self.experts = nn.ModuleDict({str(one): nn.Linear(12, 12) for one in range(4)})

    def forward(self, x):  # (samples, 64) -> (samples, 10)
        number = int(10 * x.sum().abs()) % 4  # depends on the samples
        x = self.first(x)
        if self.kind == "attention":
            x = torch.stack([x, x.flip(1), x.roll(1, 1)], 1)  # (samples, 3, 12)
            for block in self.blocks:
                x = block(x)
            return self.out(x.mean(1))
        if self.kind == "limited":
            x = x + self.table.weight.sum() + self.table(torch.tensor([number]))
        if self.kind == "root":
            x = x + self.experts[str(number)](x)
        for block in self.blocks[number : number + 1] if self.kind == "list_of_experts" else self.blocks:
            x = block(x) if self.kind == "plain" else x + torch.tanh(block(x))  # the first: stages can be
        if self.kind == "twice":
            x = x + self.blocks[0](x)
        if self.kind == "list":
            x = x + (self.kept[0] ** 2).sum()
        return self.function(x) if self.kind == "closure" else self.out(x)
"""


def train(folder: Path, kind: str, virtual: dict[str, int], *mesh: str, **training: Any) -> Any:
    """Return what the command did, in a folder of its own."""
    (folder / "models.py").write_text(MODELS)
    config = {
        "model": {"type": "models:Uses", "kind": kind},
        "data": {"type": "digits"},
        "training": {"max_steps": 3, "batch_size": 10, "threads": 1, "max_grad_norm": 0.5, **training},
        "distributed": {"virtual": virtual, "max_restarts": 0},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return StrategySuite._command(folder, "train", "config.yaml", *(f"distributed.{one}" for one in mesh))


@pytest.mark.services
@pytest.mark.parametrize("kind", ["hook", "empty", "shared", "twice", "attention"])
def test_the_bits_of_one_process(kind: str, tmp_path: Path) -> None:
    results, training = [], {"precision": "bf16"} if kind == "attention" else {}
    for mesh in ([], ["nproc=2", "strategy=fsdp"]):
        folder = tmp_path / str(len(mesh))
        folder.mkdir()
        results.append(StrategySuite._result(train(folder, kind, {"data": 4}, *mesh, **training)))
    StrategySuite._compare(*results)
    assert results[1]["determinism"]["tier"] == "bitwise"


@pytest.mark.services
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("list", r"something keeps the parameter blocks\.0\.weight besides"),
        ("closure", r"something keeps the parameter out\.weight besides"),
        ("root", r"the model uses experts\.\d.* with some parts of a batch"),
        ("list_of_experts", r"the model uses blocks\.\d with some parts of a batch"),
        ("limited", r"the model changes its weights when it is called \(table\.weight\)"),
    ],
)
def test_what_would_not_be_exact_is_refused(kind: str, reason: str, tmp_path: Path) -> None:
    done = train(tmp_path, kind, {"data": 4}, "nproc=2", "strategy=fsdp")
    assert done.returncode == 2
    assert re.search(reason, done.stderr), done.stderr


@pytest.mark.services
def test_a_stage_in_which_nothing_is_ever_trained(tmp_path: Path) -> None:
    freeze = [{"match": "first"}, {"match": "blocks"}]
    results = []
    for mesh in ([], ["nproc=2", "pipeline=2"]):
        folder = tmp_path / str(len(mesh))
        folder.mkdir()
        done = train(folder, "plain", {"data": 2, "pipeline": 2}, *mesh, freeze=freeze)
        results.append(StrategySuite._result(done))
    StrategySuite._compare(*results)


def test_members_that_share_a_weight_are_gathered_with_the_model() -> None:
    module = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})
    module["layers"][2].weight = module["layers"][0].weight
    assert names_of(module) == ["layers.1"]
    with pytest.raises(ModelError, match=r"layers\.0 shares a parameter with a module outside it"):
        names_of(module, strategy="fsdp", wrap=["layers.*"])


def test_a_lost_connection_within_the_model_is_one_of_processes() -> None:
    """Else the process would end for good, and all others with it, instead of beginning again."""
    lost = RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")
    assert isinstance(translated(lost, "step 3"), WorldError)
    assert not isinstance(translated(RuntimeError("shape '[4]' is invalid"), "step 3"), WorldError)
