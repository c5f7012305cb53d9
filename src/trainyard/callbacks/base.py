"""Callbacks watch a run; they see everything and decide nothing.

The loop, with the hooks in place (a hook is called where it stands):

    on_start(run)
    while not finished:
        step                        the framework makes one step
        if something is due:
            on_log(step, metrics)           every logging.every_n_steps
            on_evaluation(step, metrics)    every evaluation.every_n_steps, and at the end
            on_event(step, name, detail)    early stop, new best, learning rate drop ...
            on_checkpoint(step)             a save was handed to the writer
    on_end(status, metrics)

Hooks run in the thread of the loop: what they cost, the training costs. An error in a hook ends that callback
with a warning, never the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunView:
    """What a callback is told of the run at its start. `start_step` is above 0 for a resumed run."""

    run_id: str
    experiment: str
    total_steps: int
    steps_per_epoch: int
    train_samples: int
    batch_size: int
    start_step: int = 0
    attempt: int = 1


class Callback:
    """Every hook does nothing; override those you need."""

    def on_start(self, run: RunView) -> None:
        """The first step is about to be made."""

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """`train_loss`, `learning_rate`, `epoch`, `samples_per_second`."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """`val_loss` and the other metrics of the validation split."""

    def on_event(self, step: int, name: str, detail: Mapping[str, Any]) -> None:
        """Something was decided."""

    def on_checkpoint(self, step: int) -> None:
        """A save was handed to the writer."""

    def on_end(self, status: str, metrics: Mapping[str, float]) -> None:
        """The attempt ends: `completed`, `preempted`, `interrupted` or `failed`."""
