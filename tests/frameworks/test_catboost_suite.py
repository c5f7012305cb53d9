"""The contract suite for CatBoost: sampling, ordered boosting, other trees, categories, constraints."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_catboost import table

from trainwright.testing.framework_suite import FEW_KILLS, FrameworkSuite


class TestCatboost(FrameworkSuite):
    framework = "catboost"
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        samples = {
            "bootstrap_type": "Bernoulli",
            "subsample": 0.7,
            "colsample_bylevel": 0.7,
            "boosting_type": "Ordered",
        }
        return {
            "data": {"type": "breast_cancer", "weight": "mean radius"},
            "model": {"type": "catboost", "params": {"n_estimators": 64, "max_depth": 4, **samples}},
            "training": {
                "class_weights": "balanced",
                "early_stopping": {"metric": "val_loss", "patience": 45},
                "threads": 1,
            },
        }


class TestLossguide(FrameworkSuite):
    framework = "catboost"
    starts_afresh = False
    kills = FEW_KILLS

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "diabetes", "target_transform": "quantile"},
            "model": {
                "type": "catboost",
                "params": {"grow_policy": "Lossguide", "max_leaves": 6, "colsample_bylevel": 0.7},
            },
            "training": {"max_steps": 40, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }


class TestCategories(FrameworkSuite):
    framework = "catboost"
    starts_afresh = False
    kills = FEW_KILLS
    data: ClassVar[Path]
    params: ClassVar[dict[str, Any]] = {"colsample_bylevel": 0.7, "learning_rate": 0.3}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def table(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Write the data before the config refers to it."""
        cls.data = tmp_path_factory.mktemp("categories") / "data.csv"
        cls.data.write_text(table(), encoding="utf-8")

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"path": str(cls.data), "target": "answer"},
            "model": {"type": "catboost", "params": cls.params},
            "training": {"max_steps": 40, "threads": 1},
            "evaluation": {"every_n_steps": 3},
        }


@pytest.mark.soak
class TestConstraints(TestCategories):
    kills = FEW_KILLS[:1]
    params: ClassVar[dict[str, Any]] = {"monotone_constraints": {"n": 1}, "learning_rate": 0.3}
