"""The inputs of a study's completed runs, compared with those that its other runs have now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainwright.config import Resolved
from trainwright.config.env import filled_in
from trainwright.datasets.base import DataBundle
from trainwright.errors import ChangedInputsError
from trainwright.records.manifest import DataIdentity, Difference, Manifest
from trainwright.records.run_dir import RunDir
from trainwright.records.status import TESTED
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.manifest import refused_differences
from trainwright.runs.reuse import harmful_differences, present_inputs
from trainwright.studies.study import Study, StudyRequest, Trial

log = logging.getLogger("trainwright")
_SHOWN = 12  # the most differences that a message lists


def check_completed_runs(study: Study, trials: Sequence[Trial], request: StudyRequest) -> None:
    """Compare the inputs of a study's completed runs with the present ones, as the resume of a run does.

    Another numeric environment is a warning, and an error only if the config demands `bitwise`.

    Raises:
        ChangedInputsError: Config, data, code or weights have changed; the error lists the changes by run.
    """
    refused: list[tuple[RunDir, list[Difference]]] = []
    for trial in trials:
        run = study.run(trial.label)
        if run is None or run.status() not in TESTED:
            continue  # an unfinished run is checked when it is resumed
        refused.append((run, changes_of(run, trial.resolved, request)))
    refuse(study, refused)


def changes_of(run: RunDir, resolved: Resolved, request: StudyRequest) -> list[Difference]:
    """Return the inputs of a run that have changed in a way that its resume would refuse; warn of others.

    Raises:
        InputError: The data cannot be read, or the model cannot be built, any more.
    """
    before = run.require_manifest()
    resolved = resolved.with_placement(before.placement)
    source = Path(filled_in(before.init_from)) if before.init_from else None
    now = present_inputs(run, resolved, request.objects(resolved), source)
    differences = harmful_differences(before, now, resolved.config)
    refused = refused_differences(before, differences, ())
    for difference in differences:
        if difference not in refused:
            log.warning("changed since runs of this study were trained: %s", difference)
    return refused


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
        refuse(self._study, [(run, before.differences(now))])

    def load(self, trial: Trial, run: RunDir) -> DataBundle:
        """Load the data of a run.

        Raises:
            ChangedInputsError: The run was made with other data.
        """
        bundle = self._request.load(trial.resolved)
        self._identities[_section(trial)] = bundle.once(data_inputs)
        self.check(trial, run)
        return bundle


def _section(trial: Trial) -> str:
    """Return the data section of a config: the source, its preparation and its splits."""
    return repr(trial.resolved.config.data)


def refuse(
    study: Study, changed: Iterable[tuple[RunDir, Sequence[Difference]]], accepting: str | None = None
) -> None:
    """Refuse to go on with a study whose inputs have changed.

    Args:
        study: The study.
        changed: What has changed, by run.
        accepting: The command that accepts the changes, if there is one.

    Raises:
        ChangedInputsError: Something has.
    """
    listed = [f"  run {run.id}: {difference}" for run, differences in changed for difference in differences]
    if not listed:
        return
    more = [f"  and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    recorded = f", or accept the changes, which is recorded: {accepting}" if accepting else ""
    raise ChangedInputsError(
        "\n".join(
            [
                f"study {study.id} cannot continue: the inputs of its runs have changed",
                *listed[:_SHOWN],
                *more,
                f"put them back and resume the study, or start a new one{recorded}",
            ]
        )
    )


def warn_of_changes(manifests: Sequence[Manifest]) -> None:
    """Warn if code or environment changed between runs of one model."""
    inputs = {one.input for manifest in manifests[1:] for one in manifests[0].differences(manifest)}
    for name in ("code", "environment"):
        if name in inputs:
            log.warning(
                "the runs of this study differ in their %s; `trainwright runs compare` shows the differences",
                name,
            )
