"""The decisions with which an attempt begins: those to replay, and the one to resume a run that had ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trainwright.datasets.base import DataBundle, Settle
from trainwright.engine.state import RunState
from trainwright.records.decision import ENDS, NEUTRAL, Decision, Decisions, decisions_from_json
from trainwright.records.manifest import Parent
from trainwright.records.run_dir import RunDir
from trainwright.records.status import DECIDED
from trainwright.world import World

log = logging.getLogger("trainwright")


def repeats(parent: Parent | None) -> bool:
    """Return whether a run repeats another one, and hence its decisions."""
    return parent is not None and parent.relation == "reproduce"


def known_decisions(saved: Mapping[str, Any], journalled: Decisions, parent: Parent | None) -> Decisions:
    """Return the decisions that were made before this attempt.

    Args:
        saved: The state in the checkpoint that it continues from; empty if there is none.
        journalled: The decisions in the run's journal; some may be newer than the checkpoint.
        parent: The run's parent; a repetition begins with the decisions of the run that it repeats.
    """
    inherited = decisions_from_json(parent.decisions if parent else [])
    return Decisions(
        [
            *(decision for decision in inherited if decision.kind not in NEUTRAL),
            *decisions_from_json(saved.get("decisions", [])),
            *journalled,
        ]
    )


def replayed_skips(decisions: Decisions, world: World) -> Settle:
    """Return the `settle` of a run's data: what the run has decided, or else what the main process finds."""
    known = decisions.skips()
    return lambda find: world.from_main(find) if known is None else known


def note_skips(decisions: Decisions, bundle: DataBundle) -> None:
    """Add the decision to leave corrupt samples out, if they were looked for."""
    if bundle.skips is not None:
        positions = {str(split): list(some) for split, some in bundle.skips.items()}
        detail = {"count": len(bundle.skipped), "samples": list(bundle.skipped), "positions": positions}
        decisions.add(Decision(0, "skip", detail))


def note_resume(run: RunDir, decisions: Decisions, state: RunState) -> None:
    """Add the decision to resume the run, if it was stopped or pruned.

    A run that was decided to end, but died before it did, is not resumed beyond that step: it ends there now.
    """
    ends = [*decisions.ends()]
    ended = {record.step for record in run.attempts() if record.status in DECIDED} if ends else set()
    for end in ends:
        if end.step in ended:
            status = ENDS[end.kind]
            log.info("run %s was %s at step %d; it goes on", run.id, status, end.step)
            detail = {"after": status, "train_seconds": state.train_seconds}
            decisions.add(Decision(end.step, "resume", detail))


def note_processes(run: RunDir, decisions: Decisions, step: int, number: int, attempt: int) -> None:
    """Add the decision to train with another number of processes than before, if so.

    Args:
        run: The run.
        decisions: Those that were made before this attempt.
        step: The step that it continues from.
        number: Its number of processes.
        attempt: Its own number.
    """
    before = decisions.processes()
    if before is None:
        earlier = run.attempts() if attempt > 1 else ()
        before = next((record.processes for record in earlier), number)
    if before != number:
        log.info("%s from step %d on, after %d before", _processes(number), step, before)
        detail = {"from": before, "to": number, "attempt": attempt}
        decisions.add(Decision(step, "processes", detail))


def _processes(number: int) -> str:
    return "1 process trains" if number == 1 else f"{number} processes train"


def trained_by(run: RunDir) -> list[int]:
    """Return the numbers of processes that trained a run, one after the other: `[4, 2]`."""
    numbers = [record.processes for record in run.attempts()]
    return [number for index, number in enumerate(numbers) if index == 0 or number != numbers[index - 1]]
