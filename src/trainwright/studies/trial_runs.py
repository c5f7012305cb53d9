"""The trials of cross-validations and benchmarks: runs that are known before the first one is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from trainwright.config import Resolved
from trainwright.engine.signals import Stopped
from trainwright.errors import InputError, TrainingError, TrainwrightError, is_from_outside, is_of_code
from trainwright.records.manifest import Parent
from trainwright.records.result import Result
from trainwright.records.status import TESTED
from trainwright.runs.attempt import run_attempt
from trainwright.runs.request import Request
from trainwright.runs.reuse import CompletedRuns
from trainwright.runs.run_config import usable_config
from trainwright.runs.trust import of_own_config
from trainwright.studies.changed_inputs import check_completed_runs
from trainwright.studies.driver import StudyPlan
from trainwright.studies.study import Json, Study, StudyRequest, Trial

log = logging.getLogger("trainwright")
TrialOutcome = tuple[Trial, Result | TrainwrightError]
_LISTED = 3  # errors of groups that one message shows


def train_trial(study: Study, trial: Trial, request: StudyRequest, completed: CompletedRuns) -> Result:
    """Train or resume a run of the study, unless it is completed or stopped, and return its result.

    Args:
        study: The study.
        trial: The run to train.
        request: The arguments of the study.
        completed: The completed runs: one with the same inputs is reused if the request allows it.

    Raises:
        TrainwrightError: The run cannot be trained.
        Stopped: A signal came before the first step.
    """
    run = study.run(trial.label)
    if run is not None and run.status() in TESTED:
        return run.require_result()
    resolved = trial.resolved
    if run is None:
        objects = request.objects(resolved)
        if request.reuse and (known := completed.find(resolved, objects)) is not None:
            study.reuse(trial, known)
            return known.require_result()
        run = study.new_run(trial)
    else:
        with of_own_config(run, trial.resolved):
            resolved = usable_config(run)
        objects = request.objects(resolved)
        log.info("resuming run %s", run.id)
    parent = Parent.model_validate({"run_id": study.id, "relation": study.record.kind, **trial.label})
    with of_own_config(run, trial.resolved):
        return run_attempt(Request(resolved, run, objects, parent))


class TrialRuns(StudyPlan[Trial, TrialOutcome]):
    """Trials that are known before the first one is trained: those of a cross-validation or benchmark.

    Args:
        study: The study.
        trials: Its trials, in their order.
        request: The arguments of the study.
        conclude: Called when the runs are done, with the errors by group; returns the content of
            `result.json`.
        by: The key of the label that groups trials: if a trial fails, the others of its group are left out,
            and the study ends as `failed`. Without it the study ends at the first failure.
    """

    def __init__(
        self,
        study: Study,
        trials: Sequence[Trial],
        request: StudyRequest,
        conclude: Callable[[Mapping[str, str]], Json],
        by: str | None = None,
    ) -> None:
        super().__init__(study)
        self._trials, self._request, self._conclude, self._by = trials, request, conclude, by
        self._left = iter(trials)
        self._errors: dict[str, TrainwrightError] = {}  # by group
        self._completed = CompletedRuns(request.runs_dir, study.path.parent.name)

    @property
    def resolved(self) -> Resolved:
        """The config of the first trial."""
        return self._trials[0].resolved

    def open(self, stack: ExitStack) -> None:  # noqa: ARG002 - as in `StudyPlan`
        """Refuse changed inputs; see `StudyPlan.open`."""
        check_completed_runs(self.study, self._trials, self._request)

    def ask(self) -> Trial | None:
        """Return the next trial whose group has not failed; see `StudyPlan.ask`."""
        return next((trial for trial in self._left if self._group(trial) not in self._errors), None)

    def _group(self, trial: Trial) -> str:
        return str(trial.label.get(self._by or ""))

    def run(self, trial: Trial) -> TrialOutcome:
        """Train a trial; see `StudyPlan.run`.

        Raises:
            TrainwrightError: It fails and there are no groups; or a file of a run cannot be written or read,
                which is no result of it.
        """
        try:
            return trial, train_trial(self.study, trial, self._request, self._completed)
        except (TrainwrightError, OSError) as error:
            # A model that is not there becomes a row of a benchmark, and `--resume` tries it again.
            if is_from_outside(error) and (self._by is None or not is_of_code(error)):
                raise _unfinished(trial, error) from error
            if self._by is None or isinstance(error, OSError):
                raise
            return trial, error

    def tell(self, outcome: TrialOutcome) -> None:
        """Take the result of a trial, or its error; see `StudyPlan.tell`."""
        trial, result = outcome
        if isinstance(result, TrainwrightError):
            self._errors[self._group(trial)] = result
            error = trial.resolved.hide(str(result))
            self._request.watch({**trial.label, "run_id": None, "status": "failed", "error": error})
            return
        reused = {"reused": True} if self.study.reused(trial.label) else {}
        summary = {"run_id": result.run_id, "status": result.status, **reused, **result.test_metrics}
        self._request.watch({**trial.label, **summary})
        if result.status not in TESTED:
            raise Stopped(result.status)

    def conclude(self) -> Json:
        """Return the result; see `StudyPlan.conclude`.

        Raises:
            TrainwrightError: All groups failed before a run was begun.
        """
        if self._errors and not self.has_begun():
            raise _of_all(self._errors)
        return self._conclude(
            {group: self.resolved.hide(str(error)) for group, error in self._errors.items()}
        )


def _unfinished(trial: Trial, error: TrainwrightError | OSError) -> TrainwrightError:
    """Return the error that ends a study which cannot go on with a run for now."""
    named = ", ".join(f"{key} {value}" for key, value in trial.label.items())
    return (InputError if isinstance(error, InputError) else TrainingError)(
        f"{named} cannot be trained now: {trial.resolved.hide(str(error))}; then go on with the same command "
        "and --resume"
    )


def _of_all(errors: Mapping[str, TrainwrightError]) -> TrainwrightError:
    """Return one error for the errors of all groups: the first, or what each says if they differ."""
    first = next(iter(errors.values()))
    if len({str(error) for error in errors.values()}) == 1:
        return first
    lines = [f"{group}: {' '.join(str(error).split())}" for group, error in errors.items()]
    more = [f"... and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    every_input = all(isinstance(error, InputError) for error in errors.values())
    return (InputError if every_input else TrainwrightError)("\n".join([*lines[:_LISTED], *more]))
