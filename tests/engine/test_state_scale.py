"""The state of the loop as it is saved."""

from __future__ import annotations

import json
import math

import pytest

from trainwright.engine import state as module
from trainwright.engine.state import RunState
from trainwright.types import Evaluation


def test_a_save_encodes_only_the_evaluations_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[float] = []
    finite = module.finite

    def counting(value: float) -> float | str:
        encoded.append(value)
        return finite(value)

    monkeypatch.setattr(module, "finite", counting)
    state = RunState()
    saved = []
    for step in (10, 20, 30):
        state.evaluations.append(Evaluation(step, {"val_loss": float(step)}))
        saved.append(state.to_json()["evaluations"])
    assert encoded.count(10.0) == 1
    assert [len(evaluations) for evaluations in saved] == [
        1,
        2,
        3,
    ]  # what was saved does not grow with the state


def test_evaluations_survive_a_resume() -> None:
    state = RunState(step=3)
    state.evaluations += [Evaluation(1, {"a": math.inf, "b": 0.1}), Evaluation(2, {"a": 5e-324})]
    again = RunState.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
    again.evaluations.append(Evaluation(3, {"a": math.nan}))
    assert again.to_json()["evaluations"] == [
        [1, {"a": "Infinity", "b": 0.1}],
        [2, {"a": 5e-324}],
        [3, {"a": "NaN"}],
    ]
