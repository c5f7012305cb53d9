"""Runs that are stopped, killed and resumed, in each framework; `make test` does it in the toy framework."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))

import test_catboost_suite
import test_keras_suite
import test_lightgbm_suite
import test_sklearn_suite
import test_torch_suite
import test_xgboost_suite

from stop_suite import StopSuite


class TestTorch(StopSuite):
    suite = test_torch_suite.TestTorch


class TestKeras(StopSuite):
    suite = test_keras_suite.TestKeras


class TestXgboost(StopSuite):
    suite = test_xgboost_suite.TestXgboost


class TestXgboostDart(StopSuite):
    suite = test_xgboost_suite.TestDart


class TestLightgbm(StopSuite):
    suite = test_lightgbm_suite.TestLightgbm


class TestLightgbmDart(StopSuite):
    suite = test_lightgbm_suite.TestDart


class TestCatboost(StopSuite):
    suite = test_catboost_suite.TestCatboost


class TestMinibatches(StopSuite):
    suite = test_sklearn_suite.TestMinibatches
