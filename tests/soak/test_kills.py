"""Kills that are drawn at random, in each framework.

In any phase, many in a row, and from outside at any moment.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))

import test_catboost_suite
import test_keras_suite
import test_lightgbm_suite
import test_sklearn_suite
import test_store_kills
import test_torch_suite
import test_xgboost_suite

from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.testing import framework_suite
from trainwright.testing.framework_suite import VICTIM, FrameworkSuite, Kills

# Another seed draws other kills; a failure names its own in the test's parameters.
SEED = int(os.environ.get("TRAINWRIGHT_SOAK_SEED", "0"))
# How often each phase is passed at least, whatever the framework.
PASSES = {
    "start-up": 1,
    "step": 35,
    "evaluation": 3,
    "write": 3,
    "commit": 2,
    "entry": 2,
    "committed": 2,
    "final-evaluation": 1,
    "end": 1,
}


# In a store: the first requests are those of the probe and of the lease, before which there is no run.
REQUESTS = {"request": 30, "answer": 30}
FIRST_IN_STORE = {"request": 7, "answer": 6, "entry": 2}


def drawn(name: str, count: int, more: Mapping[str, int] | None = None) -> Kills:
    """Return kills, each once."""
    draw, kills, passes = random.Random(f"{SEED} {name}"), set[tuple[str, int]](), PASSES | (more or {})
    while len(kills) < count:
        phase = draw.choice(list(passes))
        kills.add((phase, draw.randint(FIRST_IN_STORE.get(phase, 1) if more else 1, passes[phase])))
    return sorted(kills)


class Drawn(FrameworkSuite):
    """A suite whose kills are drawn, and whose runs are killed from outside as well."""

    outside: ClassVar[int] = 4  # how often a run is killed from outside before it may end

    def test_killed_from_outside_again_and_again(
        self, config_file: Path, uninterrupted: RunDir, tmp_path: Path
    ) -> None:
        draw = random.Random(f"{SEED} {type(self).__name__} outside")
        words = [sys.executable, "-m", VICTIM, "never", "0"]
        for _ in range(self.outside):
            runs = list(all_runs(tmp_path))
            where = ["--resume", str(runs[0].path)] if runs else [str(config_file), str(tmp_path)]
            process = subprocess.Popen(
                [*words, *where], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                process.wait(draw.uniform(1, 8))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            if process.wait() == 0:
                break
        runs = list(all_runs(tmp_path))
        if not runs:
            pytest.skip("it never came as far as a run")
        if runs[0].status() != "completed":
            done = framework_suite.spawn("never", 0, "--resume", str(runs[0].path), folder=tmp_path)
            assert done.returncode == 0, done.stderr
        self._assert_same(runs[0], uninterrupted)


class TestTorch(Drawn, test_torch_suite.TestTorch):
    kills = drawn("torch", 16)


class TestKeras(Drawn, test_keras_suite.TestKeras):
    kills = drawn("keras", 12)


class TestXgboost(Drawn, test_xgboost_suite.TestXgboost):
    kills = drawn("xgboost", 12)


class TestXgboostDart(Drawn, test_xgboost_suite.TestDart):
    kills = drawn("dart", 8)


class TestLightgbm(Drawn, test_lightgbm_suite.TestLightgbm):
    kills = drawn("lightgbm", 12)


class TestCatboost(Drawn, test_catboost_suite.TestCatboost):
    kills = drawn("catboost", 10)


class TestCatboostCategories(Drawn, test_catboost_suite.TestCategories):
    kills = drawn("categories", 6)


class TestForest(Drawn, test_sklearn_suite.TestForest):
    kills = drawn("forest", 10)


class TestBoosting(Drawn, test_sklearn_suite.TestBoosting):
    kills = drawn("boosting", 8)


class TestMinibatches(Drawn, test_sklearn_suite.TestMinibatches):
    kills = drawn("minibatches", 10)


class TestInFolder(test_store_kills.TestInFolder):
    kills = drawn("folder", 30, REQUESTS)


class TestInS3(test_store_kills.TestInS3):
    kills = drawn("s3", 30, REQUESTS)
