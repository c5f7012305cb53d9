"""Learning rates by step, beside torch's own schedulers and formulas; and schedules of the user's."""

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch.optim import lr_scheduler

from small_runs import assert_same, whole_and_resumed
from trainwright.config.schedules import ConstantSchedule, CustomSchedule, Schedule
from trainwright.engine.schedules import learning_rate
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.torch.optim.schedule import torch_schedule

STEPS, BASE = 40, 0.3


def section(**options: Any) -> ConstantSchedule:
    return TypeAdapter(Schedule).validate_python(options)


def ours(**options: Any) -> list[float]:
    rate = learning_rate(section(**options), BASE, STEPS)
    return [rate(step) for step in range(STEPS)]


def theirs(scheduler: Any, **options: Any) -> list[float]:
    """The rates of a scheduler of torch's, which is driven as its users do."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=BASE)
    driven, rates = scheduler(optimizer, **options), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < STEPS:
            driven.step()
    return rates


PAIRS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "linear": (
        {"final_lr_ratio": 0.1},
        lr_scheduler.LinearLR,
        {"start_factor": 1.0, "end_factor": 0.1, "total_iters": STEPS},
    ),
    "cosine": ({"final_lr_ratio": 0.1}, lr_scheduler.CosineAnnealingLR, {"T_max": STEPS, "eta_min": 0.03}),
    "cosine_restarts": (
        {"cycle_steps": 5, "cycle_factor": 2, "final_lr_ratio": 0.1},
        lr_scheduler.CosineAnnealingWarmRestarts,
        {"T_0": 5, "T_mult": 2, "eta_min": 0.03},
    ),
    "cosine_restarts ": ({"cycles": 4}, lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 10}),
    "cosine_restarts   ": ({"cycle_steps": 7}, lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 7}),
    "cosine_restarts  ": ({}, lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 20}),
    "one_cycle": (
        {"pct_start": 0.25, "div_factor": 10.0, "final_div_factor": 100.0},
        lr_scheduler.OneCycleLR,
        {"max_lr": BASE, "total_steps": STEPS, "pct_start": 0.25, "div_factor": 10, "final_div_factor": 100}
        | {"cycle_momentum": False},
    ),
    "one_cycle ": (
        {"anneal_strategy": "linear"},
        lr_scheduler.OneCycleLR,
        {"max_lr": BASE, "total_steps": STEPS, "anneal_strategy": "linear", "cycle_momentum": False},
    ),
    "one_cycle  ": (
        {"pct_start": 0.975},
        lr_scheduler.OneCycleLR,
        {"max_lr": BASE, "total_steps": STEPS, "pct_start": 0.975, "cycle_momentum": False},
    ),
    "step": ({"step_size": 7, "gamma": 0.5}, lr_scheduler.StepLR, {"step_size": 7, "gamma": 0.5}),
    "multistep": (
        {"milestones": [5, 20], "gamma": 0.5},
        lr_scheduler.MultiStepLR,
        {"milestones": [5, 20], "gamma": 0.5},
    ),
    "exponential": ({"gamma": 0.9}, lr_scheduler.ExponentialLR, {"gamma": 0.9}),
    "exponential ": ({"gamma": 0.5, "decay_steps": 4}, lr_scheduler.ExponentialLR, {"gamma": 0.5**0.25}),
    "polynomial ": (
        {"power": 1.0, "final_lr_ratio": 0.5},
        lr_scheduler.LinearLR,
        {"start_factor": 1.0, "end_factor": 0.5, "total_iters": STEPS},
    ),
    "polynomial": ({"power": 2.0}, lr_scheduler.PolynomialLR, {"total_iters": STEPS, "power": 2.0}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rates_are_those_of_torch(name: str) -> None:
    options, scheduler, same = PAIRS[name]
    assert ours(type=name.strip(), **options) == pytest.approx(theirs(scheduler, **same), rel=1e-9, abs=1e-15)


def test_a_stable_phase_then_a_decay() -> None:
    def rates(**options: Any) -> list[float]:
        return [rate / BASE for rate in ours(type="wsd", decay_ratio=0.25, **options)]

    shares = [i / 10 for i in range(10)]
    assert rates() == pytest.approx([1.0] * 30 + [1 - share for share in shares])
    assert rates(decay_shape="sqrt", final_lr_ratio=0.5)[30:] == pytest.approx(
        [1 - 0.5 * math.sqrt(share) for share in shares]
    )
    assert rates(decay_shape="cosine")[30:] == pytest.approx(
        [(1 + math.cos(math.pi * share)) / 2 for share in shares]
    )


@pytest.mark.parametrize("pct_start", [0.0, 1 / STEPS])
def test_one_cycle_without_a_rise_begins_at_the_top(pct_start: float) -> None:
    options = {"anneal_strategy": "linear", "div_factor": 2.0, "final_div_factor": 5.0}
    rates = ours(type="one_cycle", pct_start=pct_start, **options)
    assert rates == pytest.approx([BASE * (1 - 0.9 * step / (STEPS - 1)) for step in range(STEPS)])


@pytest.mark.parametrize("warmup", [{"warmup_steps": 8}, {"warmup_ratio": 0.2}, {"warmup_ratio": 0.199}])
@pytest.mark.parametrize("name", ["constant", "one_cycle", "wsd", "cosine_restarts"])
def test_a_warm_up_comes_before_any_schedule(warmup: dict[str, Any], name: str) -> None:
    rates, rest = ours(type=name, **warmup), learning_rate(section(type=name), BASE, STEPS - 8)
    assert rates[:8] == pytest.approx([BASE * (step + 1) / 8 for step in range(8)])
    assert rates[8:] == [rest(step) for step in range(STEPS - 8)]


ENDS: list[tuple[float, dict[str, Any]]] = [
    (0.1, {"type": "linear", "final_lr_ratio": 0.1}),
    (0.1, {"type": "cosine", "final_lr_ratio": 0.1}),
    (0.1, {"type": "cosine_restarts", "cycles": 3, "final_lr_ratio": 0.1}),
    (0.1, {"type": "polynomial", "power": 2.0, "final_lr_ratio": 0.1}),
    (0.1, {"type": "wsd", "final_lr_ratio": 0.1}),
    (0.1, {"type": "wsd", "final_lr_ratio": 0.1, "decay_ratio": 1 / STEPS}),
    (1 / 250, {"type": "one_cycle", "div_factor": 10.0, "final_div_factor": 25.0}),
]


@pytest.mark.parametrize(("end", "options"), ENDS)
def test_a_schedule_stays_where_it_ends(end: float, options: dict[str, Any]) -> None:
    rate = learning_rate(section(**options), BASE, STEPS)
    assert [rate(step) for step in (STEPS, STEPS + 1, 9 * STEPS)] == pytest.approx([BASE * end] * 3)


def test_which_schedules_depend_on_the_length() -> None:
    fixed = [
        {"type": "constant", "warmup_steps": 3},
        {"type": "step", "step_size": 3},
        {"type": "exponential", "gamma": 0.9},
        {"type": "cosine_restarts", "cycle_steps": 3},
        {"type": "plateau"},
    ]
    for options in fixed:
        assert not section(**options).depends_on_length
        assert section(**(options | {"warmup_steps": 0, "warmup_ratio": 0.1})).depends_on_length
    for name in ("linear", "cosine", "cosine_restarts", "one_cycle", "polynomial", "wsd"):
        assert section(type=name).depends_on_length, name


# -- the user's own

OWN = """
import random

from torch.optim.lr_scheduler import LambdaLR


def saw(step, total_steps, teeth=2):
    return 1 - step * teeth / total_steps % 1


TEETH = 3


def off(step, total_steps):
    return 0


def told(step, total_steps):
    return total_steps


def broken(step, total_steps):
    return -1.0 if step else 1.0


def counting(step, total_steps, calls=[]):
    calls.append(step)
    return 1 / len(calls)


def drawing(step, total_steps):
    return random.random()


class Falling(LambdaLR):
    def __init__(self, optimizer, total_steps, power=1):
        super().__init__(optimizer, lambda step: (1 - step / total_steps) ** power)


class Drawing(LambdaLR):
    def __init__(self, optimizer):
        super().__init__(optimizer, drawing_lambda)


def drawing_lambda(step):
    return random.random() if step else 1.0


class Infinite(LambdaLR):
    def __init__(self, optimizer):
        super().__init__(optimizer, lambda step: float("inf") if step else 1.0)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_schedules.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("own_schedules", None)


@pytest.mark.usefixtures("own")
def test_a_function_of_the_users_returns_the_factor() -> None:
    rates = ours(type="custom", function="own_schedules:saw", params={"teeth": 4}, warmup_steps=8)
    assert rates[8:] == pytest.approx([BASE * (1 - step * 4 / 32 % 1) for step in range(32)])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (9, 8), (8, 8)])
def test_a_function_of_the_users_is_told_how_many_steps_are_left(steps: int, warmup: int) -> None:
    schedule = CustomSchedule(function="own_schedules:told", warmup_steps=warmup)
    assert learning_rate(schedule, 0.5, steps)(warmup) == 0.5 * max(1, steps - warmup)


@pytest.mark.usefixtures("own")
def test_a_class_of_torchs_is_a_function_of_the_step() -> None:
    schedule = CustomSchedule(function="own_schedules:Falling", params={"power": 2})
    made = torch_schedule(schedule)
    assert made == torch_schedule(schedule), "plans are compared"
    assert made is not None
    in_order, at_once = made(BASE, STEPS), made(BASE, STEPS)
    expected = [BASE * (1 - step / STEPS) ** 2 for step in range(STEPS)]
    assert [in_order(step) for step in range(STEPS)] == pytest.approx(expected)
    assert at_once(33) == in_order(33), "a resume begins anywhere"


@pytest.mark.usefixtures("own")
def test_a_factor_may_be_0() -> None:
    assert ours(type="custom", function="own_schedules:off") == [0.0] * STEPS


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("own_schedules:saw", "fails at step 0 of 40"),
        ("own_schedules:nothing", "training.scheduler: .*own_schedules has no 'nothing'"),
        ("own_schedules:TEETH", "TEETH is of type int; a function"),
        ("own_schedules:Falling", "Falling is a class; a function"),
        (
            "own_schedules:counting",
            "returned two values for step 0 of 40; the factor must depend on its argum",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_before_the_training(function: str, says: str) -> None:
    schedule = CustomSchedule(function=function, params={} if "counting" in function else {"tooth": 4})
    with pytest.raises(InputError, match=says):
        learning_rate(schedule, BASE, STEPS)


def first_rates(schedule: CustomSchedule) -> list[float]:
    rate = learning_rate(schedule, BASE, STEPS, torch_schedule(schedule))
    return [rate(0), rate(1)]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("function", "params", "says"),
    [
        ("own_schedules:broken", {}, "returned -1.0 at step 1 of 40; it must return the factor"),
        ("own_schedules:saw", {"tooth": 4}, "fails at step 0 of 40: TypeError: saw.. got an unexpected"),
        ("own_schedules:nothing", {}, "own_schedules has no 'nothing'"),
        ("torch.optim.lr_scheduler:StepLR", {}, "StepLR .* fails: TypeError: .*step_size"),
        ("torch.optim.lr_scheduler:ReduceLROnPlateau", {}, "write type: plateau"),
        (
            "own_schedules:Drawing",
            {},
            "Drawing gave two rates for step 1, .*; they must depend on the step alone",
        ),
        ("own_schedules:Infinite", {}, "Infinite .* fails: ValueError: its rate of step 1 is inf"),
        (
            "torch.optim.lr_scheduler:OneCycleLR",
            {"max_lr": BASE},
            "it varies the momentum, which training.scheduler does not",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said(function: str, params: dict[str, Any], says: str) -> None:
    schedule = CustomSchedule(function=function, params=params)
    with pytest.raises((InputError, ModelError), match=rf"^training.scheduler: .*{says}"):
        first_rates(schedule)


@pytest.mark.usefixtures("own")
def test_what_checks_a_schedule_draws_nothing() -> None:
    """A function may draw from the global generators, which checkpoints hold: its draws stay what they were."""
    random.seed(3)
    rate = learning_rate(CustomSchedule(function="own_schedules:drawing"), 1.0, STEPS)
    found = [rate(step) for step in range(3)]
    random.seed(3)
    random.random()
    assert found == [random.random() for _ in range(3)]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("scheduler", ["own_schedules:saw", "own_schedules:Falling"])
def test_a_run_with_it_resumes_to_the_same_bits(scheduler: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(
        tmp_path, {"training.scheduler": {"type": scheduler, "warmup_ratio": 0.1}}
    )
    assert_same(resumed, whole)
    rates = [row["learning_rate"] for row in whole.history() if "learning_rate" in row]
    assert rates[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert rates[-1] < 0.005
