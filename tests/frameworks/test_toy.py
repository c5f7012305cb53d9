"""A framework of another package comes in through its entry point, and keeps the contract."""

from typing import Any

from stop_suite import StopSuite
from trainwright.testing.framework_suite import FrameworkSuite


class TestToy(FrameworkSuite):
    framework = "toy"

    @classmethod
    def config(cls) -> dict[str, Any]:
        return {
            "data": {"type": "iris"},
            "model": {"type": "toy", "params": {"noise": 0.1}},
            "training": {"epochs": 8, "batch_size": 24, "learning_rate": 0.1, "optimizer": "momentum"},
            "evaluation": {"every_n_steps": 7},
        }


class TestStops(StopSuite):
    suite = TestToy
