"""The number of threads follows the size of a step, unless it is given."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from small_runs import SMALL, crashed
from trainwright.config import load
from trainwright.frameworks.base import Plan
from trainwright.frameworks.lightgbm import LightgbmFramework
from trainwright.frameworks.sklearn.steps import MinibatchStepper
from trainwright.frameworks.torch import TorchFramework
from trainwright.runs.catalog import Catalog
from trainwright.runs.processes import placement, threads
from trainwright.types import DataInfo, features_spec

FREE: dict[str, Any] = {"training.threads": None}


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (threads, placement):
        monkeypatch.setattr(module, "available_threads", lambda _: 4)


def config(model: dict[str, Any], **training: Any) -> Any:
    return load({"model": model, "data": {"type": "iris"}, "training": training}, adapters=Catalog()).config


@pytest.mark.usefixtures("four_processors")
def test_a_small_step_gets_one_thread_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    run = trainwright.train(SMALL, FREE, runs_dir=tmp_path)
    assert "1 of 4 threads: the steps are too small to share; training.threads=4 changes that" in caplog.text
    assert run.manifest["placement"]["training.threads"] == 1
    assert run.manifest["environment"]["threads"] == 1
    assert torch.get_num_threads() == 1
    assert trainwright.train(SMALL, FREE, runs_dir=tmp_path, reuse=True).id == run.id
    caplog.clear()
    given = trainwright.train(SMALL, {"training.threads": 2}, runs_dir=tmp_path)
    assert given.manifest["environment"]["threads"] == 2
    assert "too small" not in caplog.text


def test_what_was_chosen_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_threads", lambda _: 2)
    cut = crashed(tmp_path, FREE)
    assert cut.manifest["environment"]["threads"] == 1
    monkeypatch.setattr(threads, "SMALL_STEP", 0)  # another version of ours chooses otherwise
    resumed = trainwright.resume(cut)
    assert resumed.manifest["environment"]["threads"] == 1
    assert resumed.manifest["changes"] == []


@pytest.mark.parametrize(
    ("params", "shape", "outputs"),
    [({"hidden": [16, 8]}, (4,), 3), ({"hidden": []}, (2, 5), 1)],
)
def test_the_work_of_an_mlp_is_that_of_its_weights(
    params: dict[str, Any], shape: tuple[int, ...], outputs: int
) -> None:
    from trainwright.frameworks.torch.models.mlp import Mlp

    info = DataInfo("classification", features_spec(shape), outputs)
    plan = Plan(32, 10, 0.1)
    module = Mlp(int(np.prod(shape)), outputs, **params)
    weights = sum(parameter.numel() for parameter in module.parameters() if parameter.ndim == 2)
    given = config({"type": "mlp", "params": params}, device="cpu")
    assert TorchFramework.step_work(given, info, plan) == 3 * 32 * weights
    by_module = TorchFramework.step_work(given, info, plan, module)
    assert by_module == pytest.approx(3 * 32 * weights, rel=0.25)  # and the biases
    assert TorchFramework.step_work(given, info, plan, torch.nn.Conv2d(3, 8, 3)) is None


def test_large_steps_get_all_processors() -> None:
    info = DataInfo("classification", features_spec((784,)), 10)
    large = config({"type": "mlp", "params": {"hidden": [1024, 1024]}}, device="cpu")
    for framework, given, rows, expected in (
        (TorchFramework, large, 256, threads.available_threads(large)),
        (LightgbmFramework, config({"type": "lightgbm"}), 100_000, threads.available_threads(large)),
        (LightgbmFramework, config({"type": "lightgbm"}), 100, 1),
    ):
        assert threads.default_threads(framework, given, info, Plan(rows, 10, 0.1)) == expected


def test_jobs_of_an_estimator_stay_one_for_small_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import SGDClassifier

    jobs: list[int] = []

    class Spied(SGDClassifier):  # type: ignore[misc]
        def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
            jobs.append(self.n_jobs)
            return super().partial_fit(X, y, classes, sample_weight)

    from trainwright.frameworks.sklearn import steps

    info = DataInfo("classification", features_spec((4,)), 3)
    stepper = MinibatchStepper(Spied(), steps.StepSettings(0, 4, info, 1))
    rng = np.random.default_rng(0)
    batch = {"features": rng.normal(size=(30, 4)), "target": np.arange(30) % 3}
    stepper.step(0, 0.1, batch)
    monkeypatch.setattr(steps, "SMALL_BATCH", 100)
    stepper.step(1, 0.1, batch)
    assert jobs == [1, 4]
