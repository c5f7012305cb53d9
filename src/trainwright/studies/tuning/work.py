"""Train trials of a study together with other processes: `trainwright work STUDY`."""

from __future__ import annotations

import logging
import time

from trainwright.engine.signals import STATUS_OF, Signals, Stopped
from trainwright.errors import RunLockedError
from trainwright.runs.data.shared import sharing_data
from trainwright.studies.study import Study, StudyRequest
from trainwright.studies.tuning.joined import OwnFolder
from trainwright.studies.tuning.reopen import check_search, kept_config, working_for
from trainwright.studies.tuning.tune import search
from trainwright.studies.tuning.view import Tuning
from trainwright.studies.tuning.workers import answer_to

log = logging.getLogger("trainwright")
_POLL_SECONDS = 0.2  # between two looks at whether there is a job
_ENDED = ("completed", "failed")


@sharing_data()
def work_on(study: Study, request: StudyRequest, *, trust: bool = False) -> Tuning:
    """Do jobs of a study until it has ended; see `trainwright.work_study`."""
    check_search(study, "work")
    with working_for(study):
        asked = kept_config(study, {"tuning.parallel": 1}, request, trust=trust)
        while study.status != "completed":
            if study.is_owned:
                _follow(study)
                if not study.is_owned and study.record.status in _ENDED:
                    break
                continue
            try:
                return search(study, asked, request)
            except RunLockedError:
                log.debug("another process leads study %s now", study.id)
    return Tuning(study.path)


def _follow(study: Study) -> None:
    """Do the jobs that the leader of a study gives, until the study has no leader any more.

    Raises:
        Stopped: A signal came.
    """
    folder = OwnFolder(study.path)
    log.info("study %s: this process has joined", study.id)
    try:
        with Signals() as signals:
            while study.is_owned:
                job = folder.next_job()
                if job is None:
                    time.sleep(_POLL_SECONDS)
                    continue
                log.info("trial %d: run %s", job.trial, job.runs[0].name)
                answer = answer_to(job)
                if answer["status"] in STATUS_OF.values():
                    folder.leave_job()
                    raise Stopped(signals.status or answer["status"])
                folder.answer(answer)
    finally:
        folder.leave(is_led=study.is_owned)
