"""Plans of frameworks that train on minibatches, or by boosting rounds over all rows."""

from __future__ import annotations

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.errors import DataError
from trainwright.frameworks.base import Plan
from trainwright.order import SampleOrder
from trainwright.types import DataInfo

CUSTOM_FUNCTIONS_HINT = "compute objective and metric from their arguments alone"
_WORK_OF_CELL = 30  # of a feature of a row in a boosting round, in multiplications


def minibatch_plan(config: RunConfig, rows: int) -> Plan:
    """Return the plan of a framework that trains on minibatches, from the `training` section alone.

    Args:
        config: The resolved config.
        rows: Number of training rows.

    Raises:
        DataError: `training.batch_size` is larger than the number of training rows.
    """
    training = config.training
    if training.batch_size > rows:
        raise DataError(
            f"training.batch_size is {training.batch_size}, but there are only {rows} training rows: set it "
            f"to at most {rows}"
        )
    assert training.max_steps or training.epochs, "config.load sets max_steps or epochs"
    order = SampleOrder(rows, training.batch_size, 0, drop_last=training.drop_last)
    steps = training.max_steps or (training.epochs or 0) * order.steps_per_epoch
    return Plan(training.batch_size, steps, training.learning_rate)


def rounds_plan(config: RunConfig, rows: int, rounds: int | None, learning_rate: float | None) -> Plan:
    """Return the plan of a framework whose step is one boosting round over all rows.

    Args:
        config: The resolved config.
        rows: Number of training rows.
        rounds: Number of rounds; None takes `training.max_steps` or `training.epochs`.
        learning_rate: The peak learning rate; None if the library chooses it.
    """
    training = config.training
    total = rounds or training.max_steps or training.epochs
    assert total, "config.load sets max_steps or epochs"
    return Plan(rows, total, learning_rate)


def rounds_work(info: DataInfo, plan: Plan) -> float:
    """Return `Framework.step_work` of a framework whose step sorts all rows into the leaves of new trees."""
    trees = info.outputs if info.outputs > 2 else 1
    return float(_WORK_OF_CELL * plan.batch_size * int(np.prod(info.input_shape)) * trees)
