"""Resume a search by its name."""

from __future__ import annotations

from trainwright.config import Overrides
from trainwright.config.normalize import key_meant
from trainwright.config.overrides import keys_of
from trainwright.errors import InputError
from trainwright.studies.study import Study, StudyRequest
from trainwright.studies.tuning.reopen import check_search, kept_config, working_for
from trainwright.studies.tuning.tune import search
from trainwright.studies.tuning.view import Tuning

MAY_CHANGE = tuple(f"tuning.{key}" for key in ("trials", "max_minutes", "target", "parallel", "storage"))


def resume_study(study: Study, overrides: Overrides, request: StudyRequest, *, trust: bool = False) -> Tuning:
    """Resume a study; see `trainwright.resume_study`."""
    check_search(study, "resume")
    for key in keys_of(overrides):
        if key_meant(key) not in MAY_CHANGE:
            raise InputError(
                f"{key}: a study that goes on keeps its config, but for {', '.join(MAY_CHANGE)}; "
                "search with another config: trainwright tune CONFIG"
            )
    with working_for(study):
        asked = kept_config(study, overrides, request, trust=trust)
        return search(study, asked, request, lifts_limit=study.status == "completed")
