"""Decisions are functions of the history: patience, best models, plateaus, learning rates."""

import math

import pytest

from trainyard.config.schema import (
    ConstantSchedule,
    CosineSchedule,
    EarlyStoppingConfig,
    LinearSchedule,
    PlateauSchedule,
    StepSchedule,
)
from trainyard.core.decisions import best_evaluations, learning_rate, plateau_drops, should_stop, stale_evaluations
from trainyard.types import Evaluation

NAN = math.nan


def history(*values: float) -> list[Evaluation]:
    return [Evaluation(10 * (i + 1), {"val_loss": value}) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "stale"),
    [((), 0), ((3,), 0), ((3, 2, 1), 0), ((1, 2, 3), 2), ((1, 1), 1), ((NAN, NAN), 2), ((2, NAN, 1), 0)],
)
def test_stale_evaluations(values: tuple[float, ...], stale: int) -> None:
    assert stale_evaluations(history(*values), "val_loss", "min") == stale


def test_smaller_changes_than_min_delta_are_no_improvement() -> None:
    assert stale_evaluations(history(1.0, 0.95, 0.85), "val_loss", "min", min_delta=0.1) == 0
    assert stale_evaluations(history(1.0, 0.95, 0.91), "val_loss", "min", min_delta=0.1) == 2


def test_early_stopping_counts_evaluations() -> None:
    config = EarlyStoppingConfig(patience=2)
    assert [should_stop(config, "min", history(*[1, 2, 3][:n])) for n in range(4)] == [False, False, False, True]
    assert not should_stop(None, "min", history(1, 2, 3, 4))


def test_best_evaluations_prefer_the_earlier_of_equals_and_never_a_nan() -> None:
    found = best_evaluations(history(2, 1, NAN, 1, 3), "val_loss", "min", 3)
    assert [evaluation.step for evaluation in found] == [20, 40, 10]
    assert [evaluation.step for evaluation in best_evaluations(history(1, 3, 2), "val_loss", "max", 1)] == [20]
    assert best_evaluations(history(NAN), "val_loss", "min", 1) == []


def test_each_drop_starts_the_patience_of_a_plateau_anew() -> None:
    schedule = PlateauSchedule(patience=1)
    drops = [plateau_drops(schedule, "min", history(*[1.0] * n)) for n in range(1, 8)]
    assert drops == [0, 0, 1, 1, 2, 2, 3]


def test_learning_rates() -> None:
    assert [learning_rate(ConstantSchedule(), 0.5, 10)(step) for step in (0, 9)] == [0.5, 0.5]
    assert [learning_rate(ConstantSchedule(warmup_steps=4), 1.0, 10)(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    linear = learning_rate(LinearSchedule(final_lr_ratio=0.5), 1.0, 10)
    assert [linear(step) for step in (0, 5, 10, 99)] == [1.0, 0.75, 0.5, 0.5]
    cosine = learning_rate(CosineSchedule(warmup_steps=10, final_lr_ratio=0.1), 1.0, 110)
    assert [round(cosine(step), 6) for step in (9, 10, 60, 110)] == [1.0, 1.0, 0.55, 0.1]
    dropped = learning_rate(StepSchedule(step_size=3, gamma=0.5), 8.0, 9)
    assert [dropped(step) for step in range(7)] == [8, 8, 8, 4, 4, 4, 2]
