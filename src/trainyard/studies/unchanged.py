"""Whether the runs that a study has are those that it would train now: all of it must come of the same inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainyard import registry
from trainyard.config.env import filled_in
from trainyard.datasets.base import DataBundle
from trainyard.engine.state import preserved_global_random, seed_global_random
from trainyard.errors import ChangedInputsError
from trainyard.records.manifest import DataIdentity, Difference, Manifest
from trainyard.records.run_dir import RunDir
from trainyard.runs.inputs import data_inputs
from trainyard.runs.manifest import make_manifest
from trainyard.runs.objects import Objects
from trainyard.runs.weights import initialize
from trainyard.runs.wiring import build, default_threads, framework_name
from trainyard.studies.study import Study, StudyRequest, Trial

log = logging.getLogger("trainyard")
Json = dict[str, Any]
_SHOWN = 12  # differences that a message lists


def check_kept(study: Study, trials: Sequence[Trial], request: StudyRequest) -> None:
    """Compares the completed runs of a study with what is there now, as the resume of a run does.

    A changed environment is warned of, and refused only where the config demands `bitwise`.

    Raises:
        ChangedInputsError: config, data, code or weights are others now; what changed is listed, by run.
    """
    refused: list[tuple[RunDir, list[Difference]]] = []
    for trial in trials:
        run = study.run(trial.place)
        if run is None or run.status() != "completed":
            continue  # one that is resumed compares by itself
        before = run.known_manifest()
        changed = before.differences(_inputs_now(run, trial, request, before))
        strict = before.demands_bitwise
        refused.append((run, [found for found in changed if strict or found.input != "environment"]))
        for difference in changed:
            if not strict and difference.input == "environment":
                log.warning("changed since runs of this study were trained: %s", difference)
    _refuse(study, refused)


def _inputs_now(run: RunDir, trial: Trial, request: StudyRequest, before: Manifest) -> Manifest:
    """The manifest that the run would have if it were begun now; made in the same order, as its parts may draw randomness."""
    resolved, config = trial.resolved, trial.resolved.config
    threads = before.environment.threads or config.training.threads or default_threads()
    with preserved_global_random():
        seed_global_random(config.experiment.seed)
        objects = Objects(None, request.bundle(resolved))
        parts = build(config, threads, objects)
        source = Path(filled_in(before.init_from)) if before.init_from else None
        if source is not None and source.exists():
            initialize(parts, source)
        determinism = registry.adapter("framework", framework_name(config)).determinism(config)
        now = make_manifest(run, resolved, objects, parts, determinism)
    if source is not None and not source.exists():
        now = now.model_copy(update={"weights": before.weights})  # the run needs them no more
    return now


class DataNow:
    """The data of a study's runs as they are at its end: they may have changed while it was under way.

    All splits are compared. Of runs whose data are prepared alike they are read once, unless someone needs them.
    """

    def __init__(self, study: Study, request: StudyRequest) -> None:
        self._study, self._request = study, request
        self._known: dict[str, DataIdentity] = {}

    def check(self, trial: Trial, run: RunDir) -> None:
        """Raises ChangedInputsError where the run was trained, validated or tested on other data."""
        if _section(trial) not in self._known:
            self.load(trial, run)
        before = run.known_manifest()
        now = before.model_copy(update={"data": self._known[_section(trial)]})
        _refuse(self._study, [(run, before.differences(now))])

    def load(self, trial: Trial, run: RunDir) -> DataBundle:
        """The data of a run.

        Raises:
            ChangedInputsError: they are others than those that it was made with.
        """
        bundle = self._request.load(trial.resolved)
        self._known[_section(trial)] = data_inputs(bundle)
        self.check(trial, run)
        return bundle


def _section(trial: Trial) -> str:
    """The data section of a config: what is read, and how it is prepared and divided."""
    return repr(trial.resolved.config.data)


def _refuse(study: Study, changed: Iterable[tuple[RunDir, Sequence[Difference]]]) -> None:
    listed = [f"  run {run.id}: {difference}" for run, found in changed for difference in found]
    if not listed:
        return
    more = [f"  and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    raise ChangedInputsError(
        "\n".join(
            [
                f"study {study.id} cannot go on: the inputs of its runs have changed",
                *listed[:_SHOWN],
                *more,
                "put them back and resume the study, or begin a new one",
            ]
        )
    )


def warn_of_changes(manifests: Sequence[Manifest]) -> None:
    """A study that took days may have seen its code or environment change between two runs of one model."""
    for name in ("code", "environment"):
        if len({getattr(manifest, name).hash for manifest in manifests}) > 1:
            log.warning(
                "the runs of this study differ in their %s; `trainyard runs compare` tells in what", name
            )
