"""The contract suite for XGBoost: sampled rows and features, dart, and a boundary at every round."""

from typing import Any

from trainwright.testing.framework_suite import KILLS, FrameworkSuite

SAMPLES = {"subsample": 0.7, "colsample_bytree": 0.7, "colsample_bylevel": 0.8, "colsample_bynode": 0.8}
# A round takes a millisecond and only every 50th is a boundary, so fewer checkpoints are written.
FEWER = {("write", 8): ("write", 3), ("commit", 4): ("commit", 2)}
FEW_WRITES = tuple(FEWER.get(kill, kill) for kill in KILLS)


class TestXgboost(FrameworkSuite):
    framework = "xgboost"
    kills = FEW_WRITES

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "breast_cancer"},
            "model": {"type": "xgboost", "params": {"n_estimators": 120, "max_depth": 4, **SAMPLES}},
            "training": {
                "scheduler": {"type": "plateau", "metric": "val_loss", "factor": 0.5, "patience": 0},
                "early_stopping": {"metric": "val_loss", "patience": 100},
                "threads": 1,
            },
        }


class TestDart(FrameworkSuite):
    framework = "xgboost"
    starts_afresh = False
    kills = (("step", 13), ("evaluation", 3), ("commit", 2))

    @classmethod
    def config(cls) -> dict[str, Any]:
        dart = {
            "booster": "dart",
            "rate_drop": 0.2,
            "skip_drop": 0.2,
            "sample_type": "weighted",
            "one_drop": True,
        }
        return {
            "data": {"type": "iris", "weight": "petal length (cm)"},
            "model": {"type": "xgboost", "params": {"n_estimators": 120, "max_depth": 3, **dart, **SAMPLES}},
            "training": {"class_weights": "balanced", "scheduler": {"type": "cosine"}, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }


class TestEveryRound(FrameworkSuite):
    framework = "xgboost"
    starts_afresh = False
    kills = (("step", 29), ("evaluation", 3), ("commit", 1))

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "diabetes", "target_transform": "log1p"},
            "model": {
                "type": "xgboost",
                "params": {"max_depth": 3, "learning_rate": 0.1, "objective": "reg:absoluteerror"},
            },
            "training": {"max_steps": 40, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }
