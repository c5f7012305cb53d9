"""Where a run can pause: after an evaluation, at a step from which it goes on exactly."""

from functools import partial

import pytest

from trainwright.config.schema import RunConfig
from trainwright.engine.rules import Rules
from trainwright.evaluation.metrics import mode_in
from trainwright.frameworks.base import Plan


@pytest.mark.parametrize(
    ("every", "boundary", "share", "step"),
    [
        (7, 1, (1, 9), 14),  # 12 steps, and the evaluation after them
        (7, 1, (3, 10), 35),
        (1, 1, (1, 3), 34),  # a third of 100 steps, rounded up
        (10, 25, (1, 10), 50),  # an evaluation that is a boundary
        (10, 30, (9, 10), 90),
        (10, 30, (10, 11), None),
        (40, 1, (9, 10), None),
        (10, 1, None, None),
    ],
)
def test_a_pause_is_an_evaluated_boundary(
    every: int, boundary: int, share: tuple[int, int] | None, step: int | None
) -> None:
    config = RunConfig.model_validate({"model": {"type": "mlp"}, "evaluation": {"every_n_steps": every}})
    rules = Rules(config, Plan(10, 100, 0.1, boundary=boundary), 10, partial(mode_in, config))
    assert rules.pause(share) == step


def test_the_next_evaluation_is_after_the_step_and_at_the_end_at_the_latest() -> None:
    config = RunConfig.model_validate({"model": {"type": "mlp"}, "evaluation": {"every_n_steps": 7}})
    rules = Rules(config, Plan(10, 100, 0.1), 10, partial(mode_in, config))
    assert [rules.next_evaluation(step) for step in (0, 6, 7, 97, 98, 99)] == [7, 7, 14, 98, 100, 100]
