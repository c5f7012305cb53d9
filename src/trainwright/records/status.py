"""The statuses of runs, attempts and studies."""

from __future__ import annotations

from typing import Literal, get_args

# How an attempt ends; all but `completed` may be resumed. `stopped` and `pruned` runs were ended by a
# decision: by the user or the time limit, or by a verdict from outside. A `paused` run waits at a rung of its
# study, which nothing in the run shows: it goes on as if it had never paused.
Ended = Literal["completed", "stopped", "pruned", "paused", "failed", "preempted", "interrupted"]
# `created`: no attempt yet; `crashed`: the newest attempt died without saying how it ended.
Status = Literal["created", "running", "crashed", Ended]
# Of a run whose records cannot be read; `other-version`: as another version of Trainwright wrote them.
ShownStatus = Literal[Status, "damaged", "other-version"]

ENDED: tuple[Ended, ...] = get_args(Ended)
DECIDED: tuple[Ended, ...] = ("stopped", "pruned")
FINAL: tuple[Ended, ...] = ("completed", *DECIDED)  # the run has ended, as inputs and decisions determine
TESTED: tuple[Ended, ...] = ("completed", "stopped")  # with the final evaluation
UNFINISHED: tuple[Status, ...] = (
    "created",
    "crashed",
    "failed",
    "preempted",
    "interrupted",
    "paused",
    *DECIDED,
)
# A run that was stopped or pruned ended as it was asked to: 0, so that no scheduler starts it again.
EXIT_CODES: dict[Status, int] = {
    "completed": 0,
    "stopped": 0,
    "pruned": 0,
    "paused": 0,
    "failed": 1,
    "preempted": 75,
    "interrupted": 130,
}
