"""The contract suite for LightGBM: sampled rows and features, goss, and dart."""

from typing import Any

from trainwright.testing.framework_suite import FEW_KILLS, FrameworkSuite

SAMPLES = {
    "subsample": 0.7,
    "subsample_freq": 1,
    "colsample_bytree": 0.7,
    "colsample_bynode": 0.8,
    "extra_trees": True,
}


class TestLightgbm(FrameworkSuite):
    framework = "lightgbm"

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer"},
            "model": {
                "type": "lightgbm",
                "params": {"n_estimators": 60, "num_leaves": 8, **SAMPLES, "subsample_freq": 3},
            },
            "training": {
                "scheduler": {"type": "plateau", "metric": "val_loss", "factor": 0.5, "patience": 0},
                "early_stopping": {"metric": "val_loss", "patience": 45},
                "threads": 1,
            },
        }


class TestGoss(FrameworkSuite):
    framework = "lightgbm"
    starts_afresh = False
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        goss = {
            "data_sample_strategy": "goss",
            "learning_rate": 0.08,
            "num_leaves": 6,
            "min_child_samples": 4,
        }
        return {
            "data": {"type": "wine", "weight": "alcohol"},
            "model": {"type": "lightgbm", "params": {**goss, "colsample_bytree": 0.7}},
            "training": {"class_weights": "balanced", "max_steps": 40, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }


class TestDart(FrameworkSuite):
    framework = "lightgbm"
    starts_afresh = False
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        dart = {"boosting": "dart", "drop_rate": 0.3, "skip_drop": 0.2, "num_leaves": 6, "objective": "huber"}
        return {
            "data": {"type": "diabetes", "target_transform": "sqrt"},
            "model": {
                "type": "lightgbm",
                "params": {**dart, "subsample": 0.7, "subsample_freq": 1, "colsample_bytree": 0.7},
            },
            "training": {"max_steps": 40, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }
