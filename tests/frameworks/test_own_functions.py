"""Objectives and metrics of the user's that keep state: the determinism tier says so."""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.errors import InputError
from trainwright.frameworks.support.own_functions import OwnFunctions

CALLS: list[int] = []
FACTORS = {"a": 0.5}
COUNT = 0


def pure(margins: Any, data: Any, factor: float = 2.0) -> Any:
    parts = []
    parts.append(np.sort(margins) * FACTORS["a"])
    return np.add(*parts, factor)


def counts(margins: Any, data: Any) -> Any:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return margins


def appends(margins: Any, data: Any) -> Any:
    CALLS.append(1)
    return margins


def by_default(margins: Any, data: Any, seen: list[int] = []) -> Any:  # noqa: B006
    seen.append(1)
    return margins


def draws(margins: Any, data: Any) -> Any:
    return margins + np.random.normal() + random.random()


def by_item(margins: Any, data: Any) -> Any:
    FACTORS["a"] += 1.0
    return margins * FACTORS["a"]


def closure() -> Any:
    calls = 0

    def objective(margins: Any, data: Any) -> Any:
        nonlocal calls
        calls += 1
        return margins

    return objective


def through_another(margins: Any, data: Any) -> Any:
    return counts(margins, data)


class Object:
    """An objective as an object, with options that do not change."""

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha, self.weights = alpha, np.ones(3)

    def __call__(self, margins: Any, data: Any) -> Any:
        return margins * self.alpha


@dataclass
class Unhashable:
    """An objective as a dataclass, whose objects have no hash."""

    alpha: float = 0.5

    def __call__(self, margins: Any, data: Any) -> Any:
        return margins * self.alpha


class Averaging(Object):
    """An objective that keeps an average."""

    def __call__(self, margins: Any, data: Any) -> Any:
        self.alpha = 0.9 * self.alpha + 0.1 * float(margins.mean())
        return super().__call__(margins, data)


class InPlace(Object):
    """An objective that changes an array of its own, which its code does not show."""

    def __call__(self, margins: Any, data: Any) -> Any:
        np.multiply(self.weights, 0.5, out=self.weights)
        return super().__call__(margins, data)


@pytest.mark.parametrize("function", [pure, Object(), Unhashable(), Object().__call__, None, "name"])
def test_functions_without_state_keep_the_tier(function: Any) -> None:
    own = OwnFunctions({"objective": function, "metric": None})
    before = own.unsaved()
    if callable(function):
        function(np.ones(3), None)
    assert (own.keeps_state(), own.unsaved()) == ("", before)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (counts, "COUNT in counts"),
        (appends, "CALLS.append in appends"),
        (by_default, "seen.append in by_default"),
        (draws, "np.random.normal in draws"),
        (closure(), "calls in closure.<locals>.objective"),
        (through_another, "COUNT in counts"),
        (Averaging(), ".alpha in Averaging.__call__"),
    ],
)
def test_state_is_named_before_training(function: Any, named: str) -> None:
    assert named in OwnFunctions({"objective": function}).keeps_state()

    def around(*given: Any) -> Any:
        return function(*given)

    if isinstance(function, FunctionType):
        assert named in OwnFunctions({"metric": around}).keeps_state()


@pytest.mark.parametrize("function", [by_item, InPlace(), counts, draws])
def test_state_that_the_code_does_not_show_is_found_after_a_call(function: Any) -> None:
    own = OwnFunctions({"objective": function})
    before = own.unsaved()
    function(np.ones(3), None)
    assert own.unsaved() != before


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
