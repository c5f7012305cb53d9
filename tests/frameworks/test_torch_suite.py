"""The torch framework keeps the contract: with dropout and microbatches, and with everything that decides."""

from typing import Any, ClassVar

from trainyard.testing.framework_suite import FrameworkSuite, Kills


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
