"""The Keras framework keeps the contract.

With dropout, batch normalization and microbatches, and with all that decides.
"""

from importlib.util import find_spec
from typing import Any

import pytest

from trainwright.testing.framework_suite import FEW_KILLS, FrameworkSuite

pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("keras", "tensorflow")), reason="Keras or TensorFlow is not installed"
)


class TestKeras(FrameworkSuite):
    framework = "keras"
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer", "weight": "mean radius"},
            "model": {
                "type": "keras_mlp",
                "params": {"hidden": [16], "dropout": 0.2, "normalization": "batch"},
            },
            "training": {
                "class_weights": "balanced",
                "max_steps": 47,
                # No batch is a single microbatch: TensorFlow would trace another graph for it in each process.
                "batch_size": 52,
                "microbatch_size": 15,
                "learning_rate": 0.01,
                "scheduler": {"type": "plateau", "metric": "val_loss", "factor": 0.5, "patience": 0},
                "early_stopping": {"metric": "val_f1", "patience": 9},
                "max_grad_norm": 1.0,
                "threads": 1,
            },
            "evaluation": {"every_n_steps": 3},
        }

    def test_a_run_imports_no_other_framework(self, first_output: list[str]) -> None:
        super().test_a_run_imports_no_other_framework(first_output)
        imported = set(first_output[-2].split())
        assert "tensorflow" in imported
        assert not imported & {"jax", "transformers"}
