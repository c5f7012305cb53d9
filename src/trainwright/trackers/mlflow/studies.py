"""MLflow's run of a study: the parent of the runs of its trials."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STUDY_ID = "trainwright.study_id"
PARENT = "mlflow.parentRunId"
_LOCK = "mlflow.lock"


def parent_run(client: Any, experiment: str, study: str, folder: Path, tags: Mapping[str, str]) -> str:
    """Return the id of MLflow's run of a study, which is found by its tag, or created.

    Args:
        client: MLflow's client.
        experiment: The id of MLflow's experiment.
        study: The id of the study.
        folder: Its folder: only one process at a time looks and creates.
        tags: Further tags.
    """
    with _alone(folder):
        tagged = f"tags.`{STUDY_ID}` = '{study}'"
        if matches := client.search_runs([experiment], tagged, max_results=1):
            return str(matches[0].info.run_id)
        own = {STUDY_ID: study, "mlflow.source.name": "trainwright", **tags}
        return str(client.create_run(experiment, tags=own, run_name=study).info.run_id)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep out the other processes of the study, on all machines that share its folder."""
    with (folder / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
