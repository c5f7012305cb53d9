"""The scikit-learn framework keeps the contract.

As trees are added, minibatch by minibatch, and in a single step.
"""

from typing import Any, ClassVar

from trainwright.testing.framework_suite import (
    FEW_KILLS,
    ONE_STEP_KILLS,
    ONE_STEP_THREE_KILLS,
    FrameworkSuite,
    Kills,
)


class TestForest(FrameworkSuite):
    framework = "sklearn"

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "wine"},
            "model": {
                "type": "random_forest",
                "params": {"n_estimators": 33, "iterations_per_step": 1, "max_depth": 4, "max_samples": 0.5},
            },
            "training": {"early_stopping": {"metric": "val_loss", "patience": 30}, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }


class TestBoosting(FrameworkSuite):
    framework = "sklearn"
    starts_afresh = False
    kills: ClassVar[Kills] = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "diabetes", "target_transform": "quantile"},
            "model": {
                "type": "hist_gradient_boosting",
                "params": {"max_iter": 50, "iterations_per_step": 2, "max_features": 0.5, "max_depth": 3},
            },
            "training": {"scheduler": {"type": "cosine", "final_lr_ratio": 0.1}, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }


class TestMinibatches(FrameworkSuite):
    framework = "sklearn"
    starts_afresh = False
    kills: ClassVar[Kills] = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "wine", "weight": "alcohol"},
            "model": {
                "type": "sklearn_mlp",
                "params": {"hidden_layer_sizes": [16], "learning_rate_init": 0.01},
            },
            "training": {
                "class_weights": "balanced",
                "max_steps": 47,
                "batch_size": 24,
                "scheduler": "linear",
                "threads": 1,
            },
            "evaluation": {"every_n_steps": 3},
        }


class TestOneStep(FrameworkSuite):
    framework = "sklearn"
    starts_afresh = False
    kills: ClassVar[Kills] = ONE_STEP_KILLS
    three_kills: ClassVar[Kills] = ONE_STEP_THREE_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "wine"},
            "model": {"type": "svm", "params": {"C": 10}},
            "training": {"threads": 1},
        }
