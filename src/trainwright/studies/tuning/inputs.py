"""The inputs that the trials of a study share: data, code and initial weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, TrialLog
from trainwright.require import import_paths
from trainwright.runs.frameworks import form_for
from trainwright.runs.run_config import usable_config
from trainwright.runs.trust import of_own_config
from trainwright.samplers.base import Space
from trainwright.studies.changed_inputs import changes_of, refuse
from trainwright.studies.study import Study, StudyRequest
from trainwright.studies.tuning.trial_configs import TrialConfigs
from trainwright.studies.tuning.tuning_view import resume_command

log = logging.getLogger("trainwright")
_CHANGE = "change"  # the kind of a note: changed inputs were accepted
_DECIDING = ("data.", "model.", "experiment.seed")  # keys that decide what is read, and how it is prepared


class TrialInputs:
    """The inputs of a search's trials: which trials share them, and whether they are as they were.

    Args:
        study: The study.
        space: What is searched.
        configs: The configs of its runs.
        trial_log: Its log.
        request: The arguments of the study.
        trusted: Whether the user trusts the study, which may not be their own.
    """

    def __init__(
        self,
        study: Study,
        space: Space,
        configs: TrialConfigs,
        trial_log: TrialLog,
        request: StudyRequest,
        *,
        trusted: bool = False,
    ) -> None:
        self.study, self._configs, self._log, self._request = study, configs, trial_log, request
        self._trusted = trusted
        self.are_shared = not any(parameter.key.startswith(_DECIDING) for parameter in space)
        self._keys: dict[int, Any] = {}
        self.searches_data = any(parameter.key.startswith("data.") for parameter in space)
        self.allow_change = request.allow_change

    def alike(self, trial: LoggedTrial) -> list[str | None]:
        """Return, for each run of a trial, the newest one that must have the same inputs, if there is any."""
        key = self._key(trial)
        for other in reversed(self._log.trials[: trial.number]):
            if other.same_as is None and self._key(other) == key:
                ids = [run.id if run.manifest() is not None else None for run in self._runs(other)]
                if any(ids):
                    return ids
        return []

    def newest(self) -> str | None:
        """Return the newest run whose inputs are known; None if those of the trials differ."""
        runs = [run for trial in self._log.trials for run in self._runs(trial) if run.manifest() is not None]
        return runs[-1].id if runs and self.are_shared else None

    def check(self, trials: int) -> list[str]:
        """Compare the inputs of the runs with the present ones, unless all of the trials have ended.

        Returns:
            What has changed, if the request allows that.

        Raises:
            ChangedInputsError: They have changed, and the request does not allow that.
            InputError: They are not there any more.
        """
        made = self._log.trials
        if len(made) >= trials and all(trial.ending is not None for trial in made):
            return []
        known: list[Any] = []
        changed = []
        for trial in reversed(made):
            runs = [run for run in self._runs(trial) if run.manifest() is not None]
            key = self._key(trial)
            if trial.same_as is not None or not runs or key in known:
                continue
            known.append(key)
            changed += [(run, self._changes(run)) for run in runs]
        if not self.allow_change:
            refuse(self.study, changed, resume_command(self.study.path, "--allow-change"))
        return list(dict.fromkeys(str(one) for _, differences in changed for one in differences))

    def accept(self, changed: Sequence[str]) -> None:
        """Warn of the changes that `check` has found, and note them in the log."""
        for one in changed:
            log.warning("changed since runs of this study were trained: %s", one)
        if changed:
            self._log.note(kind=_CHANGE, differences=changed)

    def _changes(self, run: RunDir) -> list[Any]:
        if run.require_manifest().initial is not None:
            return []  # a fork, which is compared when it goes on
        resolved = usable_config(run, trust=self._trusted)
        with of_own_config(run, resolved, trust=self._trusted):
            return changes_of(run, resolved, self._request)

    def _key(self, trial: LoggedTrial) -> Any:
        """Return what two trials share that read and prepare the same, by the same code."""
        if self.are_shared:
            return sorted(import_paths(trial.params))
        if trial.number not in self._keys:
            configs = [resolved.config for resolved in self._configs.of(trial.params)]
            model = self._request.model
            self._keys[trial.number] = [
                sorted(import_paths(trial.params)),
                [
                    (
                        repr(one.data),
                        form_for(one, model),
                        one.model.type,
                        one.model.init_from and one.model.init_from.source,
                        one.experiment.seed,
                    )
                    for one in configs
                ],
            ]
        return self._keys[trial.number]

    def _runs(self, trial: LoggedTrial) -> Sequence[RunDir]:
        folder: Path = self.study.path.parent
        return [RunDir(folder / run_id) for run_id in (trial.run_id, *trial.others)]
