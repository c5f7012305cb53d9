"""Checks that a study's completed runs have the inputs that its other runs have now."""

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
from trainyard.records.status import TESTED
from trainyard.runs.inputs import data_inputs
from trainyard.runs.manifest import make_manifest
from trainyard.runs.objects import Objects
from trainyard.runs.weights import initialize
from trainyard.runs.wiring import build, default_threads, framework_name
from trainyard.studies.study import Study, StudyRequest, Trial

log = logging.getLogger("trainyard")
Json = dict[str, Any]
_SHOWN = 12  # the most differences that a message lists


def check_completed_runs(study: Study, trials: Sequence[Trial], request: StudyRequest) -> None:
    """Compare the inputs of a study's completed runs with the present ones, as the resume of a run does.

    A changed environment is a warning, and an error only if the config demands `bitwise`.

    Raises:
        ChangedInputsError: Config, data, code or weights have changed; the error lists the changes by run.
    """
    refused: list[tuple[RunDir, list[Difference]]] = []
    for trial in trials:
        run = study.run(trial.label)
        if run is None or run.status() not in TESTED:
            continue  # an unfinished run is checked when it is resumed
        before = run.require_manifest()
        differences = before.differences(_current_inputs(run, trial, request, before))
        strict = before.demands_bitwise
        refused.append((run, [one for one in differences if strict or one.input != "environment"]))
        for difference in differences:
            if not strict and difference.input == "environment":
                log.warning("changed since runs of this study were trained: %s", difference)
    _refuse(study, refused)


def _current_inputs(run: RunDir, trial: Trial, request: StudyRequest, before: Manifest) -> Manifest:
    """Return the manifest that the run would have if it began now.

    The components are built in the order of a run, as building them may draw random numbers.
    """
    resolved, config = trial.resolved, trial.resolved.config
    threads = before.environment.threads or config.training.threads or default_threads()
    with preserved_global_random():
        seed_global_random(config.experiment.seed)
        objects = Objects(None, request.bundle(resolved))
        components = build(config, threads, objects)
        init_file = Path(filled_in(before.init_from)) if before.init_from else None
        if init_file is not None and init_file.exists():
            initialize(components, init_file)
        determinism = registry.adapter("framework", framework_name(config)).determinism(config)
        now = make_manifest(run, resolved, objects, components, determinism)
    if init_file is not None and not init_file.exists():
        now = now.model_copy(update={"weights": before.weights})  # the run no longer needs the file
    return now


class CurrentData:
    """The data of a study's runs at its end, compared with those that each run recorded.

    The data may have changed while the study ran. All splits are compared. `check` reads data that several
    runs prepare alike only once; `load` always reads them.
    """

    def __init__(self, study: Study, request: StudyRequest) -> None:
        self._study, self._request = study, request
        self._identities: dict[str, DataIdentity] = {}

    def check(self, trial: Trial, run: RunDir) -> None:
        """Compare the data with those that the run recorded.

        Raises:
            ChangedInputsError: The run was trained, validated or tested on other data.
        """
        if _section(trial) not in self._identities:
            self.load(trial, run)
        before = run.require_manifest()
        now = before.model_copy(update={"data": self._identities[_section(trial)]})
        _refuse(self._study, [(run, before.differences(now))])

    def load(self, trial: Trial, run: RunDir) -> DataBundle:
        """Load the data of a run.

        Raises:
            ChangedInputsError: The run was made with other data.
        """
        bundle = self._request.load(trial.resolved)
        self._identities[_section(trial)] = data_inputs(bundle)
        self.check(trial, run)
        return bundle


def _section(trial: Trial) -> str:
    """Return the data section of a config: the source, its preparation and its splits."""
    return repr(trial.resolved.config.data)


def _refuse(study: Study, changed: Iterable[tuple[RunDir, Sequence[Difference]]]) -> None:
    listed = [f"  run {run.id}: {difference}" for run, differences in changed for difference in differences]
    if not listed:
        return
    more = [f"  and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    raise ChangedInputsError(
        "\n".join(
            [
                f"study {study.id} cannot continue: the inputs of its runs have changed",
                *listed[:_SHOWN],
                *more,
                "put them back and resume the study, or start a new one",
            ]
        )
    )


def warn_of_changes(manifests: Sequence[Manifest]) -> None:
    """Warn if code or environment changed between runs of one model."""
    for name in ("code", "environment"):
        if len({getattr(manifest, name).hash for manifest in manifests}) > 1:
            log.warning(
                "the runs of this study differ in their %s; `trainyard runs compare` shows the differences",
                name,
            )
