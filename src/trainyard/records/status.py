"""The statuses of runs, attempts and studies."""

from __future__ import annotations

from typing import Literal, get_args

# How an attempt ends. `failed` may be resumed, as may all but `completed`.
Ended = Literal["completed", "failed", "preempted", "interrupted"]
# `created`: no attempt yet; `crashed`: the newest attempt died without saying how it ended.
Status = Literal["created", "running", "crashed", Ended]
# `damaged`: lists and reports show a run whose records cannot be read.
ShownStatus = Literal[Status, "damaged"]

ENDED: tuple[Ended, ...] = get_args(Ended)
UNFINISHED: tuple[Status, ...] = ("created", "crashed", "failed", "preempted", "interrupted")
EXIT_CODES: dict[Status, int] = {"completed": 0, "failed": 1, "preempted": 75, "interrupted": 130}
