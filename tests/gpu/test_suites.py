"""The contract suite on a GPU: runs are killed, resumed and repeated there, to the same bits."""

from typing import Any, ClassVar

import pytest
import torch

from trainwright.frameworks.xgboost.library import _cuda_unavailable
from trainwright.testing.framework_suite import FrameworkSuite, Kills

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: `make gpu`"),
]
GPU = {"device": "cuda"}


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
                **GPU,
                "determinism": "bitwise",
                "precision": "fp16",
                "class_weights": "balanced",
                "max_steps": 47,
                "batch_size": 50,
                "microbatch_size": 13,
                "learning_rate": 0.01,
                "max_grad_norm": 1.0,
                "ema": 0.9,
            },
            "evaluation": {"every_n_steps": 3},
        }


class TestXgboost(FrameworkSuite):
    framework = "xgboost"
    kills: ClassVar[Kills] = (("step", 13), ("evaluation", 3), ("commit", 2))

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def installed(cls) -> None:
        pytest.importorskip("xgboost", reason="needs xgboost: pip install 'xgboost<3.3'")
        if reason := _cuda_unavailable():
            pytest.skip(reason)

    @classmethod
    def config(cls) -> dict[str, Any]:
        params = {"n_estimators": 40, "max_depth": 4, "subsample": 0.7, "colsample_bytree": 0.7}
        return {
            "data": {"type": "breast_cancer", "weight": "mean radius"},
            "model": {"type": "xgboost", "params": params},
            "training": {**GPU, "threads": 1},
        }
