"""Stages whose blocks were measured: they take equal times, and the run keeps them."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainwright.config import load
from trainwright.frameworks.torch.parallel.pipeline.measured import measured_split
from trainwright.frameworks.torch.parallel.pipeline.split import balanced
from trainwright.records.decision import journalled_decisions
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import build
from trainwright.testing.strategy_suite import StrategySuite


def test_the_longest_stage_is_as_short_as_can_be() -> None:
    """Compared with all divisions of some blocks."""
    draw = random.Random(0)
    for _ in range(200):
        sizes = [draw.randint(1, 9) for _ in range(draw.randint(1, 7))]
        before, after, stages = draw.randint(0, 20), draw.randint(0, 20), draw.randint(1, len(sizes))

        def longest(firsts: Any, sizes: Any = sizes, ends: Any = (before, after)) -> int:
            edges = [*firsts, len(sizes)]
            times = [sum(sizes[start:stop]) for start, stop in itertools.pairwise(edges)]
            times[0] += ends[0]
            times[-1] += ends[1]
            return max(times)

        all_firsts = [(0, *some) for some in itertools.combinations(range(1, len(sizes)), stages - 1)]
        assert longest(balanced(sizes, stages, before, after)) == min(map(longest, all_firsts))


class _Block(nn.Module):
    """A layer that is applied some times, so that its time says nothing of its size."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.layer, self.dropout = times, nn.Linear(64, 64), nn.Dropout(0.1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, *, hidden: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        self.calls += 1
        for _ in range(self.times):
            hidden = self.dropout(self.layer(hidden).tanh()) * mask
        return hidden, None


class _Model(nn.Module):
    def __init__(self, times: list[int], head: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.blocks = nn.ModuleList(_Block(one) for one in times)
        self.head, self.out = nn.Linear(64, 64), head

    def forward(self, x: Tensor) -> Tensor:
        hidden, mask = x * self.scale, (self.scale > 0).float()
        for block in self.blocks:
            hidden, _ = block(hidden=hidden, mask=mask)
        for _ in range(self.out):
            hidden = self.head(hidden).tanh()
        return hidden


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("times", "head", "first"),
    [([60, 1, 1, 1], 1, ["blocks.1"]), ([1, 1, 1, 60], 1, ["blocks.3"]), ([9, 9, 9, 9], 60, ["blocks.3"])],
)
def test_stages_of_equal_times(times: list[int], head: int, first: list[str], device: str) -> None:
    """By parameters, each stage would have two blocks. The model is as it was."""
    with torch.device(device):
        model = _Model(times, head)
    model.out = head
    before = {name: one.clone() for name, one in model.state_dict().items()}
    modules, state = dict(model.named_modules()), torch.get_rng_state()
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    found = measured_split(
        model, 2, torch.device("cpu"), lambda module: module(x), lambda outputs: outputs.square().mean()
    )
    assert found == first
    assert dict(model.named_modules()) == modules
    assert torch.equal(torch.get_rng_state(), state)
    assert all(one.grad is None and one.device.type == device for one in model.parameters())
    after = model.state_dict()
    assert device == "meta" or all(torch.equal(after[name], one) for name, one in before.items())


def test_what_was_chosen_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """A later attempt measures nothing."""
    model = {"type": "transformer", "hidden_size": 16, "num_layers": 4, "num_heads": 2}
    mesh = {"virtual": {"data": 1, "pipeline": 3}, "pipeline_split": "measured"}
    config = load({"data": "digits", "model": model, "distributed": mesh}, adapters=Catalog()).config
    with caplog.at_level("INFO"):
        first: Any = build(config, 1, Objects()).learner
    assert "pipeline_split: encoder.layers." in caplog.text
    (chosen,) = first.choices().values()
    assert [*first._pipeline.stages.firsts][1:] == [int(name[-1]) for name in json.loads(chosen)]
    caplog.clear()
    for later in ((1, 2), (2, 3)):
        names = json.dumps([f"encoder.layers.{index}" for index in later])
        learner: Any = build(config, 1, Objects(), {"distributed.pipeline_split": names}).learner
        assert learner._pipeline.stages.firsts == (0, *later)
        assert learner.choices() == {"distributed.pipeline_split": names}
    assert "pipeline_split" not in caplog.text


CONFIG: dict[str, Any] = {
    "experiment": {"name": "measured", "seed": 5},
    "data": {"type": "digits"},
    "model": {"type": "uneven:Net"},
    "training": {"max_steps": 6, "batch_size": 16, "microbatch_size": 4, "threads": 1},
    "evaluation": {"every_n_steps": 3, "batch_size": 64},
    "checkpoint": {"every_n_steps": 3, "every_n_minutes": None},
    "distributed": {
        "virtual": {"data": 1, "pipeline": 2},
        "pipeline_split": "measured",
        "max_restarts": 0,
    },
}
NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.times, self.layer, self.dropout = times, nn.Linear(64, 64), nn.Dropout(0.1)

    def forward(self, x):
        for _ in range(self.times):
            x = self.dropout(torch.tanh(self.layer(x)))
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(times) for times in (1, 1, 1, 60))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
TWO = ["distributed.nproc=2", "distributed.pipeline=2"]


def _command(folder: Path, *words: str) -> dict[str, Any]:
    return StrategySuite._result(StrategySuite._command(folder, *words))


def _train(folder: Path, *words: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "uneven.py").write_text(NET)
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    return _command(folder, "train", "config.yaml", *words)


@pytest.mark.services
def test_what_was_measured_is_recorded(tmp_path: Path) -> None:
    """A run has the digest of one whose config names the blocks, in one process, and is repeated with them."""
    first = _train(tmp_path / "measured", *TWO)
    (run,) = (tmp_path / "measured" / "runs" / "measured").iterdir()
    chosen = {"distributed.pipeline_split": json.dumps(["blocks.3"])}
    assert journalled_decisions(run / "journal").choices() == chosen
    named = _train(tmp_path / "named", 'distributed.pipeline_split=["blocks.3"]')
    assert named["digest"] == first["digest"]
    again = _command(tmp_path / "measured", "reproduce", run.name, "--trust")
    assert again["verdict"] == "identical"
