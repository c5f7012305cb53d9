"""The CatBoost framework keeps the contract: with rows and features sampled and ordered boosting, and with other trees."""

from typing import Any

from trainyard.testing.framework_suite import FEW_KILLS, FrameworkSuite


class TestCatboost(FrameworkSuite):
    framework = "catboost"
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        samples = {"bootstrap_type": "Bernoulli", "subsample": 0.7, "colsample_bylevel": 0.7, "boosting_type": "Ordered"}
        return {
            "data": {"type": "breast_cancer"},
            "model": {"type": "catboost", "params": {"n_estimators": 64, "max_depth": 4, **samples}},
            "training": {"early_stopping": {"metric": "val_loss", "patience": 45}, "threads": 1},
        }


class TestLossguide(FrameworkSuite):
    framework = "catboost"
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "diabetes"},
            "model": {"type": "catboost", "params": {"grow_policy": "Lossguide", "max_leaves": 6, "colsample_bylevel": 0.7}},
            "training": {"max_steps": 40, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }
