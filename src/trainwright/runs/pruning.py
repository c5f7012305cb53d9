"""Prune a run that is paused: it ends where it waits."""

from __future__ import annotations

from collections.abc import Sequence

from trainwright.records.decision import Decision
from trainwright.records.run_dir import RunDir
from trainwright.records.status import Ended
from trainwright.runs.session import Session


def prune_paused(run: RunDir, trackers: Sequence[str] = ()) -> None:
    """Decide that a paused run ends at the step at which it is paused; do nothing if it is not paused.

    Args:
        run: The run.
        trackers: The types of its trackers.

    Raises:
        RunLockedError: Another process owns the run.
        OSError: The decision cannot be written.
    """
    if run.status() != "paused":
        return
    run.acquire()
    try:
        _prune(run, trackers)
    finally:
        run.release()


def _prune(run: RunDir, trackers: Sequence[str]) -> None:
    before, paused = run.attempts()[-1], run.require_result()
    session = Session(run, before.processes)
    status: Ended = "failed"
    try:
        if before.environment is not None:
            session.note_environment(before.environment)
        journal = session.open_journal(paused.steps)
        session.feed(trackers)
        journal.decision(Decision(paused.steps, "prune", {"judged": paused.steps}))

        def end_journal() -> None:
            journal.end(paused.steps, "pruned")
            journal.close()

        result = paused.with_values(status="pruned", attempts=session.number)
        session.publish(result, end_journal, page=bool(trackers))  # as at the end of other trials
        status = "pruned"
    finally:
        session.close(status, "")
        session.lease.release()
