"""The state of the loop: what goes to JSON comes back, the global generators of Python and NumPy included."""

import json
import math
import random

import numpy as np
import pytest

from trainwright.engine.state import RunState
from trainwright.process.global_random import preserved_global_random, seed_global_random
from trainwright.types import Evaluation


def draws() -> list[float]:
    return [random.random(), float(np.random.random()), random.gauss(0, 1), float(np.random.normal())]


def test_a_new_state_is_that_before_the_first_step() -> None:
    assert RunState() == RunState(0, 0, 0.0, 0, [], 0.0)


def test_a_state_comes_back_from_json() -> None:
    history = [Evaluation(7, {"val_loss": 0.1, "val_f1": math.inf}), Evaluation(14, {"val_loss": -0.0})]
    state = RunState(14, 13, 1 / 3, 120, history, 2.5)
    back = RunState.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
    assert back == state == RunState(14, 13, 1 / 3, 120, list(history), 2.5), (
        "what it remembers for itself does not count"
    )
    assert math.copysign(1, back.evaluations[1].metrics["val_loss"]) == -1


def test_the_global_generators_are_part_of_it() -> None:
    seed_global_random(3)
    draws()
    random.gauss(0, 1)  # both keep the second of a pair for the next call
    np.random.normal()
    saved = json.loads(json.dumps(RunState().to_json()))
    expected = draws()
    seed_global_random(99)
    draws()
    RunState.from_json(saved)
    assert draws() == expected
    assert np.random.get_state()[1].dtype == np.uint32


def test_the_global_generators_are_seeded_as_documented() -> None:
    seed = 1005 + (7 << 32)
    seed_global_random(seed)
    ours = random.random(), np.random.random()
    assert ours == (random.Random(seed).random(), np.random.RandomState(1005).random())


def test_what_is_drawn_inside_changes_nothing_outside() -> None:
    seed_global_random(4)
    expected = draws()
    seed_global_random(4)
    with preserved_global_random():
        draws()
    assert draws() == expected
    seed_global_random(4)
    with pytest.raises(IndexError), preserved_global_random():
        [].pop(len(draws()))
    assert draws() == expected
