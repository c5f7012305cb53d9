"""References of drift and backgrounds of explanations, made in a process of their own."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

from trainwright.api import load
from trainwright.errors import TrainwrightError
from trainwright.monitoring.background import FILE as BACKGROUND
from trainwright.monitoring.reference import FILE
from trainwright.plugins import task_for
from trainwright.records.artifact import ArtifactDir
from trainwright.records.listing import has_model
from trainwright.records.run_dir import RunDir
from trainwright.runs.lookup import find
from trainwright.runs.watching import keep_background, reference_of
from trainwright.servers.service.settings import Settings

log = logging.getLogger("trainwright")


def reference_maker(settings: Settings) -> SpawnProcess:
    """Return the process that makes the references of a service; it is not started yet."""
    return get_context("spawn").Process(target=make_references, args=(settings,), daemon=True)


def make_references(settings: Settings) -> None:
    """Make the references and backgrounds that the runs do not keep yet; a run without its data gets none."""
    for name in (settings.model, *(name for name, _ in settings.shares)):
        try:
            found = find(name, settings.runs_dir, has_model)
            if isinstance(found, ArtifactDir):
                continue
            found = RunDir(found.path.resolve())  # of a link: the run has the name of its folder
            with _one_at_a_time(settings.state):
                if found.read_json(FILE) and found.read_json(BACKGROUND):
                    continue
                predictor = load(found.path, runs_dir=settings.runs_dir, trust=settings.trust)
                if settings.window_seconds and not task_for(predictor.info).sums:
                    reference_of(found, predictor, trust=settings.trust)
                keep_background(found, predictor, trust=settings.trust)
        except TrainwrightError as error:
            log.warning("drift of %s is not watched, nor are its predictions explained: %s", name, error)


@contextmanager
def _one_at_a_time(state: Path | None) -> Iterator[None]:
    """Wait for the processes of other replicas that make references."""
    if state is None:
        yield
        return
    state.mkdir(parents=True, exist_ok=True)
    file = os.open(state / "references.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
