"""What evaluations lead to is a function of their history: patience, best models, plateaus, learning rates."""

import math
from typing import Any

import pytest

from trainwright.config import load
from trainwright.config.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, StepSchedule
from trainwright.engine.history import Patience, best_evaluations
from trainwright.engine.rules import Inherited, Rules
from trainwright.engine.schedules import learning_rate
from trainwright.evaluation.metrics import mode_of
from trainwright.frameworks.base import Plan
from trainwright.runs.catalog import Catalog
from trainwright.types import Evaluation

NAN = math.nan


def history(*values: float) -> list[Evaluation]:
    return [Evaluation(10 * (i + 1), {"val_loss": value}) for i, value in enumerate(values)]


def shown(patience: Patience, *values: float) -> Patience:
    for evaluation in history(*values):
        patience.see(evaluation)
    return patience


def rules_of(training: dict[str, Any]) -> Rules:
    given = {"model": "mlp", "data": "iris", "training": training, "checkpoint": {"save_top_k": 3}}
    return Rules(load(given, adapters=Catalog()).config, Plan(16, 100, 0.1), 10, mode_of)


@pytest.mark.parametrize(
    ("values", "stale"),
    [((), 0), ((3,), 0), ((3, 2, 1), 0), ((1, 2, 3), 2), ((1, 1), 1), ((NAN, NAN), 2), ((2, NAN, 1), 0)],
)
def test_patience_counts_the_evaluations_since_the_best(values: tuple[float, ...], stale: int) -> None:
    assert shown(Patience("val_loss", "min"), *values).stale == stale


def test_smaller_changes_than_min_delta_are_no_improvement() -> None:
    assert shown(Patience("val_loss", "min", 0.1), 1.0, 0.95, 0.85).stale == 0
    assert shown(Patience("val_loss", "min", 0.1), 1.0, 0.95, 0.91).stale == 2


def test_early_stopping_counts_evaluations() -> None:
    rules = rules_of({"early_stopping": {"metric": "val_loss", "patience": 2}})
    assert [rules.last_step(history(*[1, 2, 3][:n])) for n in range(4)] == [100, 100, 100, 30]
    assert rules_of({}).last_step(history(1, 2, 3, 4)) == 100


def test_a_history_that_grows_decides_as_one_that_is_given_whole() -> None:
    training = {
        "early_stopping": {"metric": "val_loss", "patience": 6},
        "scheduler": {"type": "plateau", "metric": "val_loss", "patience": 1, "factor": 0.5},
    }
    values = [3, 2, 2, 2, 2, 1, NAN, 1, 1, 1, 1, 1]
    grown, growing = rules_of(training), list[Evaluation]()
    for evaluation in history(*values):
        growing.append(evaluation)
        fresh, whole = rules_of(training), list(growing)
        for decide in ("events", "best_steps", "last_step", "learning_rate_factor"):
            assert getattr(grown, decide)(growing) == getattr(fresh, decide)(whole), decide
    assert (grown.learning_rate_factor(growing), grown.last_step(growing), grown.best_steps(growing)) == (
        0.5**4,
        120,
        [60, 80, 90],
    )
    assert grown.learning_rate_factor(growing[:3]) == 1, "another history"


def test_best_evaluations_prefer_the_earlier_of_equals_and_never_a_nan() -> None:
    found = best_evaluations(history(2, 1, NAN, 1, 3), "val_loss", "min", 3)
    assert [evaluation.step for evaluation in found] == [20, 40, 10]
    assert [evaluation.step for evaluation in best_evaluations(history(1, 3, 2), "val_loss", "max", 1)] == [
        20
    ]
    assert best_evaluations(history(NAN), "val_loss", "min", 1) == []


def test_each_drop_starts_the_patience_of_a_plateau_anew() -> None:
    drops = [shown(Patience("val_loss", "min", limit=1), *[1.0] * n).lost for n in range(1, 8)]
    assert drops == [0, 0, 1, 1, 2, 2, 3]


def test_warm_up_and_decays_have_the_rates_of_their_formulas() -> None:
    assert [learning_rate(ConstantSchedule(), 0.5, 10)(step) for step in (0, 9)] == [0.5, 0.5]
    assert [learning_rate(ConstantSchedule(warmup_steps=4), 1.0, 10)(step) for step in range(5)] == [
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
    ]
    linear = learning_rate(LinearSchedule(final_lr_ratio=0.5), 1.0, 10)
    assert [linear(step) for step in (0, 5, 10, 99)] == [1.0, 0.75, 0.5, 0.5]
    cosine = learning_rate(CosineSchedule(warmup_steps=10, final_lr_ratio=0.1), 1.0, 110)
    assert [round(cosine(step), 6) for step in (9, 10, 60, 110, 200)] == [1.0, 1.0, 0.55, 0.1, 0.1]
    dropped = learning_rate(StepSchedule(step_size=3, gamma=0.5), 8.0, 9)
    assert [dropped(step) for step in range(7)] == [8, 8, 8, 4, 4, 4, 2]


def test_the_news_of_each_evaluation_by_hand() -> None:
    rules = rules_of(
        {
            "early_stopping": {"metric": "val_loss", "patience": 3},
            "scheduler": {"type": "plateau", "metric": "val_loss", "patience": 1, "factor": 0.5},
        }
    )
    growing: list[Evaluation] = []
    news = []
    for evaluation in history(3, 2, 2.5, 4, 2):
        growing.append(evaluation)
        news.append(dict(rules.events(growing)))
    best = [{"best": {"metric": "val_loss", "value": value}} for value in (3, 2)]
    dropped = {"learning_rate_drop": {"factor": 0.5}}
    assert news == [*best, {}, dropped, {"early_stop": {"metric": "val_loss"}}]
    assert rules.best_steps(growing) == [20, 50, 30], "of equals, the earlier is the better"


@pytest.mark.parametrize(("boundary", "due"), [(1, 100), (2, 4), (8, 8)])
def test_a_boundary_is_due(boundary: int, due: int) -> None:
    seldom = {name: {"every_n_steps": 1000} for name in ("evaluation", "checkpoint", "logging")}
    given = {"model": "mlp", "data": "iris", **seldom}
    rules = Rules(load(given, adapters=Catalog()).config, Plan(16, 100, 0.1, boundary=boundary), 10, mode_of)
    assert rules.next_due(3) == due


def test_what_a_run_takes_over_from_its_parent() -> None:
    """The evaluation of step 25 tried no patience there, and that of step 20 has no model any more."""
    given = {
        "model": "mlp",
        "data": "iris",
        "training": {"max_steps": 100, "early_stopping": {"patience": 2}},
        "evaluation": {"every_n_steps": 15},
    }
    config = load(given, adapters=Catalog()).config
    rules = Rules(config, Plan(16, 100, 0.1), 10, mode_of, past=Inherited(30, frozenset({25})))
    history = [Evaluation(step, {"val_loss": loss}) for step, loss in ((20, 0.1), (25, 0.3), (30, 0.2))]
    assert rules.last_step(history) == 100, "two evaluations that are no better, but one does not count"
    assert rules.last_step([*history, Evaluation(45, {"val_loss": 0.4})]) == 45
    assert rules.best_steps(history) == [20]
    rules.exclude([20])
    assert rules.best_steps(history) == [30]
    assert rules.last_step([*history, Evaluation(50, {"val_loss": 0.4})]) == 100, "50 is off the cadence"


def test_a_stop_after_the_first_step_tries_no_patience() -> None:
    rules = rules_of({"early_stopping": {"metric": "val_loss", "patience": 1}})
    stopped = Evaluation(1, {"val_loss": 0.1})
    assert rules.last_step([stopped, Evaluation(10, {"val_loss": 0.5})]) == 100
    assert rules.last_step([stopped, *(Evaluation(step, {"val_loss": 0.5}) for step in (10, 20))]) == 20


def test_evaluations_follow_epochs_that_end_elsewhere() -> None:
    config = load({"model": "mlp", "data": "iris", "training": {"max_steps": 40}}, adapters=Catalog()).config
    rules = Rules(config, Plan(16, 40, 0.1), 8, mode_of, epoch_end=14)
    assert [step for step in range(14, 41) if rules.evaluates(step)] == [14, 22, 30, 38, 40]
    assert [rules.next_due(step) for step in (13, 21, 23)] == [14, 22, 30]
    assert not rules.on_cadence(40)


def test_an_evaluation_at_the_end_of_the_parent_counts_as_it_did_there() -> None:
    """It was on the parent's cadence, of 20 steps, and is off that of the child."""
    training = {"max_steps": 100, "early_stopping": {"patience": 1}}
    given = {"model": "mlp", "data": "iris", "training": training, "evaluation": {"every_n_steps": 15}}
    config = load(given, adapters=Catalog()).config
    history = [Evaluation(step, {"val_loss": loss}) for step, loss in ((20, 0.1), (40, 0.3))]
    for irregular, last in (((), 40), ((40,), 100)):
        rules = Rules(config, Plan(16, 100, 0.1), 10, mode_of, past=Inherited(40, frozenset(irregular)))
        assert rules.last_step(history) == last


def test_epochs_are_counted_from_the_first_step() -> None:
    given = {"model": "mlp", "data": "iris", "evaluation": {"every_n_epochs": 3}}
    rules = Rules(load(given, adapters=Catalog()).config, Plan(16, 43, 0.1), 5, mode_of)
    assert [step for step in range(1, 43) if rules.on_cadence(step)] == [15, 30]


@pytest.mark.parametrize(
    ("epochs", "end", "count", "expected"),
    [
        (1, 8, 1, [8, 16, 24, 32, 40]),
        (2, 8, 1, [16, 32]),
        (3, 8, 1, [24]),
        (2, 14, 3, [22, 38]),  # a run that begins in its third epoch, which ends after step 14
        (3, 14, 3, [14, 38]),
        (3, 14, 4, [30]),
    ],
)
def test_what_is_due_every_few_epochs_is_due_at_their_ends(
    epochs: int, end: int, count: int, expected: list[int]
) -> None:
    """Epochs of 8 steps, of which `count` are over after step `end`."""
    training = {"max_steps": 43}
    for section in ("evaluation", "checkpoint"):
        given = {"model": "mlp", "data": "iris", "training": training, section: {"every_n_epochs": epochs}}
        given["logging"] = {"every_n_steps": 1000}
        if section == "checkpoint":
            given["evaluation"] = {"every_n_steps": 1000}
        config = load(given, adapters=Catalog()).config
        rules = Rules(config, Plan(16, 43, 0.1), 8, mode_of, epoch_end=end, epoch=count)
        steps = range(9 if end > 8 else 1, 43)
        is_due = rules.on_cadence if section == "evaluation" else rules.saves
        assert [step for step in steps if is_due(step)] == expected
        due = [step for step in steps if rules.next_due(step - 1) == step]
        assert due == expected
