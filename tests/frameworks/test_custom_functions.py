"""Objectives and metrics of the user's that keep state: the determinism tier says so."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from trainwright.errors import InputError
from trainwright.frameworks.support.custom_functions import CustomFunctions

CALLS: list[int] = []
FACTORS = {"a": 0.5}
COUNT = 0
GENERATOR = np.random.default_rng(0)
PYTHON = random.Random(0)
TORCH = torch.Generator().manual_seed(0)
WEIGHTS = np.ones(3)


class Local:
    """What a function makes for itself."""

    total = 0.0


def pure(margins: Any, factor: float = 2.0) -> Any:
    parts, local = [], Local()
    parts.append(np.sort(margins) * FACTORS["a"])
    local.total = float(margins.sum())
    own = {"n": 0}
    own["n"] += 1
    return np.stack(parts).sum(axis=0) + factor + local.total + np.random.default_rng(1).normal()


def counts(margins: Any) -> Any:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return margins + COUNT


def appends(margins: Any) -> Any:
    CALLS.append(1)
    return margins + len(CALLS)


def by_default(margins: Any, seen: list[int] = []) -> Any:  # noqa: B006
    seen.append(1)
    return margins + len(seen)


def by_attribute(margins: Any) -> Any:
    by_attribute.n = getattr(by_attribute, "n", 0) + 1  # type: ignore[attr-defined]
    return margins + by_attribute.n  # type: ignore[attr-defined]


def by_item(margins: Any) -> Any:
    FACTORS["a"] += 1.0
    return margins * FACTORS["a"]


def in_place(margins: Any) -> Any:
    np.multiply(WEIGHTS, 0.5, out=WEIGHTS)
    return margins * WEIGHTS


def draws(margins: Any) -> Any:
    return margins + np.random.exponential()


def draws_in_python(margins: Any) -> Any:
    return margins + random.gauss()


def draws_in_torch(margins: Any) -> Any:
    return margins + float(torch.rand(()))


def draws_from_its_own(margins: Any) -> Any:
    return margins + GENERATOR.normal() + PYTHON.random() + float(torch.rand((), generator=TORCH))


def closure() -> Any:
    calls = 0

    def objective(margins: Any) -> Any:
        nonlocal calls
        calls += 1
        return margins + calls

    return objective


def through_another(margins: Any) -> Any:
    return counts(margins)


class Object:
    """An objective as an object, with options that do not change."""

    calls = 0

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha, self.weights, self.n = alpha, np.ones(3), {"a": 0}

    def __call__(self, margins: Any) -> Any:
        return margins * self.alpha


@dataclass
class Unhashable:
    """An objective as a dataclass, whose objects have no hash."""

    alpha: float = 0.5

    def __call__(self, margins: Any) -> Any:
        return margins * self.alpha


class Averaging(Object):
    """An objective that keeps an average."""

    def __call__(self, margins: Any) -> Any:
        self.alpha = 0.9 * self.alpha + 0.1 * float(margins.mean())
        return super().__call__(margins)


class Counting(Object):
    """An objective that counts in a dictionary, and for all objects of its class."""

    def __call__(self, margins: Any) -> Any:
        self.n["a"] += 1
        Counting.calls += 1
        return margins + self.n["a"] + self.calls


class InPlace(Object):
    """An objective that changes an array of its own."""

    def __call__(self, margins: Any) -> Any:
        np.multiply(self.weights, 0.5, out=self.weights)
        return margins * self.weights


MARGINS = np.arange(3.0)
KEEPING = [
    *(counts, appends, by_default, by_attribute, by_item, in_place, closure(), through_another),
    *(Averaging(), Counting(), InPlace()),
]


@pytest.mark.parametrize("function", [pure, Object(), Unhashable(), Object().__call__, None, "name"])
def test_functions_without_state_keep_the_tier(function: Any) -> None:
    own = CustomFunctions({"objective": function, "metric": None})
    assert own.why_inexact(lambda: function(MARGINS)) == ""


@pytest.mark.parametrize("function", [*KEEPING, draws_from_its_own])
def test_state_is_found_by_a_call_and_put_back(function: Any) -> None:
    def around(margins: Any) -> Any:
        return function(margins)

    for one in [around, function]:
        own = CustomFunctions({"objective": one})
        assert "keeps state from call to call (objective" in own.why_inexact(partial(one, MARGINS))
    own = CustomFunctions({"objective": function})
    before = own.unsaved()
    own.why_inexact(lambda: function(MARGINS))
    assert own.unsaved() == before
    first = function(MARGINS)
    assert own.unsaved() != before
    assert (function(MARGINS) != first).any()


@pytest.mark.parametrize("function", [draws, draws_in_python, draws_in_torch])
def test_draws_from_generators_of_the_process_are_found_and_put_back(function: Any) -> None:
    own = CustomFunctions({"metric": function})
    before = own.unsaved()
    assert "the random generators of the process" in own.why_inexact(lambda: function(MARGINS))
    assert own.unsaved() == before


def test_a_call_that_fails_says_nothing_of_its_own() -> None:
    own = CustomFunctions({"objective": pure})
    assert own.why_inexact(lambda: pure(None)) == ""


SOURCE = """
import numpy as np

CALLS = 0


def drifting(y_true, y_pred):
    global CALLS
    CALLS += 1
    return (y_pred - y_true) * (1 + CALLS % 3), np.ones_like(y_true)


def drifting_margins(margins, matrix):
    return drifting(matrix.get_label(), margins)


class Drifting:
    def __init__(self):
        self.calls = 0

    def calc_ders_range(self, approxes, targets, weights):
        self.calls += 1
        return [((target - approx) / (1 + self.calls % 3), -1.0) for approx, target in zip(approxes, targets)]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "drifting_objectives.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("drifting_objectives", None)


@pytest.mark.slow
@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("framework", "objective"),
    [
        ("xgboost", "drifting_objectives:drifting_margins"),
        ("xgboost", "drifting_objectives:drifting"),
        ("lightgbm", "drifting_objectives:drifting"),
        ("catboost", "drifting_objectives:Drifting"),
    ],
)
def test_the_tier_of_a_run_says_so_before_it_starts(framework: str, objective: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(tmp_path / "rows.npz", features=rows[:, :3].astype(np.float32), target=rows[:, 3])
    config: dict[str, Any] = {
        "data": {"type": "npz", "path": str(tmp_path / "rows.npz"), "task": "regression"},
        "model": {"type": framework, "params": {"n_estimators": 3, "objective": objective}},
    }
    run = trainwright.train(config, runs_dir=tmp_path / "runs")
    assert run.result["determinism"]["tier"] == "statistical"
    assert "keeps state from call to call" in run.result["determinism"]["reason"]
    config["training"] = {"determinism": "bitwise"}
    with pytest.raises(InputError, match="keeps state from call to call"):
        trainwright.train(config, runs_dir=tmp_path / "runs")
