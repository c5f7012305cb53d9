"""What a search that goes on, after it has ended or was interrupted, has left to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trainwright.errors import InputError
from trainwright.records.trials import read_log
from trainwright.studies.study import Study
from trainwright.studies.tuning.view import counted

log = logging.getLogger("trainwright")


def length_so_far(study: Study, planned: int) -> int:
    """Return how many trials a search is to have: as many as was said last, and at least what it has.

    Args:
        study: The search.
        planned: How many it was to have in the beginning.
    """
    logged = read_log(study.path)
    return max(planned, len(counted(logged)), *logged.lengths())


@contextmanager
def going_on(study: Study, wanted: int, more: str) -> Iterator[None]:
    """Go on with a search, if it is not to have fewer trials than it has; say so if it has ended.

    Args:
        study: The search; a new one has no trials.
        wanted: How many trials it is to have.
        more: How to get more of them, in words.

    Raises:
        InputError: It has more trials already.
    """
    before = read_log(study.path)
    made = len(counted(before))
    if made > wanted:
        raise InputError(
            f"study {study.id} has {made} trials, and cannot have {wanted}: give {made} or more, or begin "
            "another study"
        )
    was_completed = study.status == "completed"
    yield
    if was_completed and len(read_log(study.path).trials) == len(before.trials):
        log.info("study %s is completed: there is nothing left to do; %s", study.id, more)
