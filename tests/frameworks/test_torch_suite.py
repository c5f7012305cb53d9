"""The torch framework keeps the contract: with dropout and microbatches, and with everything that decides."""

from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest

from small_runs import assert_same, whole_and_resumed
from trainwright.testing.framework_suite import FrameworkSuite, Kills


class TestTorch(FrameworkSuite):
    framework = "torch"

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer", "weight": "mean radius"},
            "model": {
                "type": "mlp",
                "params": {"hidden": [32, 16], "dropout": 0.2, "normalization": "batch"},
            },
            "training": {
                "class_weights": "balanced",
                "max_steps": 47,
                "batch_size": 50,
                "microbatch_size": 13,
                "learning_rate": 0.01,
                "scheduler": {"type": "plateau", "metric": "val_loss", "factor": 0.5, "patience": 0},
                "early_stopping": {"metric": "val_f1", "patience": 9},
                "max_grad_norm": 1.0,
                "threads": 1,
            },
            "evaluation": {"every_n_steps": 3},
        }


NETS = """
import torch
from torch import nn


class Net(nn.Module):
    "Weights in channels_last and transposed, a buffer that is not persistent, and extra state."

    def __init__(self, in_features, out_features):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1).to(memory_format=torch.channels_last)
        self.dropout = nn.Dropout(0.2)
        self.last = nn.Linear(90, out_features)
        self.last.weight = nn.Parameter(torch.randn(90, out_features).t() * 0.1)
        self.register_buffer("mean", torch.zeros(90), persistent=False)
        self.calls = 0

    def forward(self, x):
        image = x.reshape(-1, 2, 5, 3).contiguous(memory_format=torch.channels_last)
        hidden = torch.relu(self.conv(image)).flatten(1)
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.last(self.dropout(hidden - self.mean)) / (1 + 0.01 * self.calls)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]
"""


class TestTorchMemoryLayouts(FrameworkSuite):
    """Parameters that are not in row-major order, under a fused optimizer, and state beside the weights."""

    framework = "torch"
    starts_afresh = False
    kills: ClassVar[Kills] = (("step", 13), ("commit", 4))
    sources: ClassVar[dict[str, str]] = {"torch_layout_nets.py": NETS}

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer"},
            "model": {"type": "torch_layout_nets:Net", "framework": "torch"},
            "training": {
                "max_steps": 30,
                "batch_size": 50,  # 5 rows of an epoch are left out
                "drop_last": True,
                "learning_rate": 0.01,
                "threads": 1,
            },
            "evaluation": {"every_n_steps": 3},
        }


@pytest.mark.soak
class TestTorchOptimization(FrameworkSuite):
    """Parts that are trained in their own way, one of them later, and averages of weights."""

    framework = "torch"
    starts_afresh = False
    kills: ClassVar[Kills] = (("step", 13), ("evaluation", 3), ("commit", 4), ("end", 1))

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer"},
            "model": {"type": "mlp", "params": {"hidden": [16, 8], "dropout": 0.2, "normalization": "layer"}},
            "training": {
                "max_steps": 36,
                "batch_size": 50,
                "microbatch_size": 13,
                "learning_rate": 0.01,
                "threads": 1,
                **{key: value for name in COMBINED for key, value in FEATURES[name].items()},
            },
            "evaluation": {"every_n_steps": 3},
            "distributed": {"virtual": {"data": 2}},
        }


FEATURES: dict[str, dict[str, Any]] = {
    "decay": {"weight_decay": 0.1},
    "groups": {"parameter_groups": [{"match": "layers.5.*", "lr_ratio": 0.5}]},
    "layers": {"layer_decay": 0.7},
    "freezing": {"freeze": [{"match": "layers.1", "until_step": 12}]},
    "average": {"ema": {"decay": 0.9, "warmup": True}},
    "norm": {"max_grad_norm": 0.5},
    "value": {"max_grad_value": 0.01},
    "checkpointing": {"activation_checkpointing": ["layers"]},
    "bf16": {"precision": "bf16"},
    "muon": {"optimizer": {"type": "muon"}},
    "momentum": {"optimizer": {"type": "sgd", "momentum": 0.9}},
    "by path": {"optimizer": {"type": "torch.optim:ASGD"}},
}
COMBINED = ("decay", "groups", "freezing", "average", "norm", "checkpointing", "muon")
PAIRS = [
    pair for pair in combinations(FEATURES, 2) if not FEATURES[pair[0]].keys() & FEATURES[pair[1]].keys()
]


@pytest.mark.soak
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if set(pair) != {"norm", "value"}], ids="+".join)
def test_two_features_resume_to_the_same_bits(pair: tuple[str, str], tmp_path: Path) -> None:
    given = {f"training.{key}": value for name in pair for key, value in FEATURES[name].items()}
    model = {"model.params": {"hidden": [16, 8], "dropout": 0.2, "normalization": "layer"}}
    ranks = {"distributed.virtual.data": 2, "training.microbatch_size": 3}
    whole, resumed = whole_and_resumed(tmp_path, {**model, **ranks, **given})
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise"
