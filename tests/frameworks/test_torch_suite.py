"""The torch framework keeps the contract: with dropout and microbatches, and with everything that decides."""

from typing import Any

from trainyard.testing.framework_suite import FrameworkSuite


class TestTorch(FrameworkSuite):
    framework = "torch"

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer"},
            "model": {
                "type": "mlp",
                "params": {"hidden": [32, 16], "dropout": 0.2, "normalization": "batch"},
            },
            "training": {
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
