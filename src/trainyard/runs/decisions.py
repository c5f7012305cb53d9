"""The decisions with which an attempt begins: those to replay, and the one to resume a run that had ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from trainyard.engine.state import RunState
from trainyard.records.decision import ENDS, Decision, Decisions, decisions_from_json
from trainyard.records.manifest import Parent
from trainyard.records.run_dir import RunDir
from trainyard.records.status import DECIDED

log = logging.getLogger("trainyard")


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
    inherited = parent.decisions if parent else []
    return Decisions(
        [
            *decisions_from_json(inherited),
            *decisions_from_json(saved.get("decisions", [])),  # version 1 has none
            *journalled,
        ]
    )


def go_on(run: RunDir, decisions: Decisions, state: RunState) -> None:
    """Add the decision to resume the run, if it was stopped or pruned.

    A run that was decided to end, but died before it did, is not resumed beyond that step: it ends there now.
    """
    ended = {record.step for record in run.attempts() if record.status in DECIDED}
    for end in decisions.ends():
        if end.step in ended:
            status = ENDS[end.kind]
            log.info("run %s was %s at step %d; it goes on", run.id, status, end.step)
            detail = {"after": status, "train_seconds": state.train_seconds}
            decisions.add(Decision(end.step, "resume", detail))
