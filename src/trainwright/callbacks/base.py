"""Callbacks observe a run; they cannot change it.

The loop, with its hooks:

    on_start(run)
    while not finished:
        step                                one optimizer update
        if something is due:
            on_evaluation(step, metrics)    every evaluation.every_n_steps, or each epoch; and at the end
            on_event(step, name, detail)    new best, learning rate drop, early stop ...
            on_log(step, metrics)           every logging.every_n_steps, and at the last step
            on_checkpoint(step)             a checkpoint was handed to the writer
    on_end(status, metrics)

Hooks run in the thread of the loop, so a slow hook slows the training. If a hook raises, that callback is
dropped with a warning and the run continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunView:
    """The facts of a run that a callback gets at its start; `start_step` is above 0 for a resumed run."""

    run_id: str
    experiment: str
    total_steps: int
    steps_per_epoch: int
    train_samples: int
    batch_size: int
    start_step: int = 0
    attempt: int = 1


class Callback:
    """The base class: every hook does nothing; override the ones you need.

    `last_step` is the step at which the attempt ended; it is set before `on_end`.
    """

    last_step: int | None = None

    def on_start(self, run: RunView) -> None:
        """Observe the start of the attempt, before its first step."""

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Observe `train_loss`, `learning_rate`, `epoch` and `samples_per_second`."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Observe `val_loss` and the other metrics of the validation split."""

    def on_event(self, step: int, name: str, detail: Mapping[str, Any]) -> None:
        """Observe an event, such as `best` or `early_stop`, or a decision, such as `stop`."""

    def on_checkpoint(self, step: int) -> None:
        """Observe that a checkpoint was handed to the writer."""

    def on_end(self, status: str, metrics: Mapping[str, float]) -> None:
        """Observe the end of the attempt: `completed`, `stopped`, `preempted`, `failed` ..."""
