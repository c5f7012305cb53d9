"""Decisions: what a run did that is not a function of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trainwright.records.journal import decision_lines, segments
from trainwright.records.status import Ended

# choice       a choice made by measuring, before step 1; its detail holds the choices by name
# time_limit   `training.max_minutes` ends the run after this step
# stop         a user asked to stop the run; it ends after this step
# keep, prune  the verdict of the user's function on this step: train on, or end the run after it
# resume       the run, which had ended at this step, goes on
# checkpoint_interval   how often checkpoints are saved from this step on, by what a save costs
# processes    another number of processes trains from this step on; its detail holds both numbers, and the
#              attempt, as several may begin at one step
# skip         corrupt samples are left out; its detail names them, and has their positions by split
Kind = Literal[
    "choice", "time_limit", "stop", "keep", "prune", "resume", "checkpoint_interval", "processes", "skip"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
MEASURED = ("choice", "checkpoint_interval", "skip")  # made by measuring, and not from outside
# The status of a run that one of these decisions has ended.
ENDS: Mapping[str, Ended] = {"time_limit": "stopped", "stop": "stopped", "prune": "pruned"}
# Decisions that change no bit. A repetition makes its own.
NEUTRAL: tuple[Kind, ...] = ("processes",)


@dataclass(frozen=True)
class Decision:
    """A decision, which takes effect after `step`; `detail` holds its reason as JSON values."""

    step: int
    kind: Kind
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, str, int | None]:
        """The step, the kind and, where the detail names it, the attempt; no two decisions share them."""
        return self.step, self.kind, self.detail.get("attempt")

    def to_json(self) -> list[Any]:
        """Return the decision as a checkpoint holds it."""
        return [self.step, self.kind, dict(self.detail)]


class Decisions(Sequence[Decision]):
    """The decisions of a run, in the order in which they were made.

    They are consulted at each step before anything is decided, so that nothing is decided twice.
    """

    def __init__(self, made: Sequence[Decision] = ()) -> None:
        self._made: list[Decision] = []
        self._known: set[tuple[int, str, int | None]] = set()  # the keys
        self._ends: dict[int, Decision] = {}  # by step, including those after which the run went on
        self._resumed: set[int] = set()
        self.judged = 0  # the last step that has a verdict
        for decision in made:
            self.add(decision)

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __contains__(self, decision: object) -> bool:
        return isinstance(decision, Decision) and decision.key in self._known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decisions) and self._made == other._made

    __hash__ = None  # type: ignore[assignment] # it changes

    def add(self, decision: Decision) -> None:
        """Append a decision, unless it is there already."""
        if decision in self:
            return
        self._known.add(decision.key)
        self._made.append(decision)
        if decision.kind in ENDS:
            self._ends[decision.step] = decision
        if decision.kind == "resume":
            self._resumed.add(decision.step)
        if decision.kind in ("keep", "prune"):
            self.judged = max(self.judged, decision.step)

    def next_end(self, step: int) -> int | None:
        """Return the first step after `step` at which the run was ended, whether it went on or not."""
        return min((at for at in self._ends if at > step), default=None)

    def at(self, step: int) -> Decision | None:
        """Return the decision that ended the run at a step, whether it went on or not."""
        return self._ends.get(step)

    def went_on(self, step: int) -> bool:
        """Return whether the run was ended at a step, and went on."""
        return step in self._resumed

    def ends(self) -> list[Decision]:
        """Return the decisions that end the run, by step; those after which it went on are left out."""
        return [self._ends[step] for step in sorted(self._ends) if step not in self._resumed]

    def end(self, step: int) -> Decision | None:
        """Return the decision that ends the run, at `step` or later; None if there is none."""
        return next((end for end in self.ends() if end.step >= step), None)

    def choices(self) -> dict[str, str]:
        """Return what was chosen by measuring, by name."""
        return {
            name: value
            for decision in self._made
            if decision.kind == "choice"
            for name, value in decision.detail.items()
        }

    def skips(self) -> Mapping[Any, Sequence[int]] | None:
        """Return the positions of the samples that are left out, by split; None if that was not decided."""
        return next((one.detail["positions"] for one in self._made if one.kind == "skip"), None)

    def checkpoint_minutes(self, processes: int) -> float | None:
        """Return the checkpoint interval, in minutes, last chosen for this number of processes."""
        chosen = [one.detail for one in self._made if one.kind == "checkpoint_interval"]
        return next((one["minutes"] for one in chosen[::-1] if one["processes"] == processes), None)

    def processes(self) -> int | None:
        """Return the number of processes that trained last; None if it never changed."""
        return next((one.detail["to"] for one in reversed(self._made) if one.kind == "processes"), None)

    def seconds_before_limit(self) -> float:
        """Return the training time, in seconds, that the time limit does not count: that before a resume."""
        return max((one.detail["train_seconds"] for one in self._made if one.kind == "resume"), default=0.0)

    def to_json(self) -> list[list[Any]]:
        """Return the decisions as a checkpoint holds them."""
        return [decision.to_json() for decision in self._made]


def decisions_from_json(data: Sequence[Any]) -> Decisions:
    """Return the decisions that `Decisions.to_json` wrote."""
    return Decisions([Decision(step, kind, detail) for step, kind, detail in data])


def journalled_decisions(folder: Path) -> Decisions:
    """Return the decisions in a run's journal, those in superseded parts included."""
    records = (record for path in segments(folder) for record in decision_lines(path))
    return Decisions([Decision(record["step"], record["name"], record["detail"]) for record in records])
