"""Train the runs of a study."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from trainwright.config import Resolved
from trainwright.engine.signals import Signals, Stopped
from trainwright.errors import InputError, TrainingError, TrainwrightError, is_from_outside, is_of_code
from trainwright.process.alarms import announced
from trainwright.records.manifest import Parent
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL, TESTED
from trainwright.records.tuning_result import TuningResult
from trainwright.runs.attempt import run_attempt
from trainwright.runs.cleanup import discard_folder
from trainwright.runs.objects import Objects
from trainwright.runs.request import Request
from trainwright.runs.reuse import CompletedRuns
from trainwright.runs.run_config import usable_config
from trainwright.runs.session import report
from trainwright.runs.trust import of_own_config
from trainwright.studies.study import RESULT, Study, StudyPlan, StudyRequest, Trial
from trainwright.studies.unchanged import check_completed_runs
from trainwright.trackers.base import StudyCard
from trainwright.trackers.feed import send_rest
from trainwright.trackers.feed.studies import tell_end

log = logging.getLogger("trainwright")
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
        bundle = request.bundle(resolved)
        if request.reuse and (known := completed.find(resolved, Objects(None, bundle))) is not None:
            study.reuse(trial, known)
            return known.require_result()
        run = study.new_run(trial)
    else:
        with of_own_config(run, trial.resolved):
            resolved = usable_config(run)
        bundle = request.bundle(resolved)
        log.info("resuming run %s", run.id)
    parent = Parent.model_validate({"run_id": study.id, "relation": study.record.kind, **trial.label})
    with of_own_config(run, trial.resolved):
        return run_attempt(Request(resolved, run, Objects(None, bundle, request.callbacks), parent))


def run_study(study: Study, trials: Sequence[Trial], request: StudyRequest, plan: StudyPlan) -> None:
    """Train the runs of a study one after the other, conclude, and record the status.

    A signal ends it with the current run; `study.status` then says so.

    Raises:
        ChangedInputsError: The inputs of a completed run have changed; the study stays as it was.
        TrainwrightError: A run that the study needs cannot be trained. If no run was begun, the folder is
            deleted.
        RunLockedError: Another process works on this study.
    """
    with study.owned(), log_warnings_once():
        study.check_seals()
        check_completed_runs(study, trials, request)
        study.update(status="running")
        try:
            with Signals():
                status, failures = _train_all(study, trials, request, plan)
                if status == "completed":
                    study.write(RESULT, plan.conclude(failures))
                    status = "failed" if failures else status
        except Stopped as signal:
            status = signal.status
        except TrainwrightError as error:
            if isinstance(error, InputError) and not any(study.run(trial.label) for trial in trials):
                discard_folder(study.path)  # no run could be begun: there is nothing to keep
            else:
                with suppress(OSError):  # it may be the disk that failed
                    study.update(status="failed", error=trials[0].resolved.hide(str(error)))
                report(study.path, plan.report)
                tell_trackers(study, trials[0].resolved)
            raise
        study.update(status=status)
        report(study.path, plan.report)
        tell_trackers(study, trials[0].resolved)


def tell_trackers(study: Study, resolved: Resolved, runs: Iterable[RunDir] = ()) -> None:
    """Tell the trackers of a study's runs how it has ended; a failure is only a warning.

    Args:
        study: The study.
        resolved: The config that its runs share.
        runs: The runs whose missing values are sent to the trackers.
    """
    if resolved.config.tracking:
        _send_rest(runs)
    tracking = [(one.type, one.params) for one in resolved.config.tracking]
    found = TuningResult.of(study.result if study.record.kind == "tune" else {})
    best = found.best
    metrics = {} if best is None else {found.metric: best.value, **(best.values or {})}
    tags = {"trainwright.digest": found.digest} if found.digest else {}
    card = StudyCard(study.id, study.path.parent.name, study.path, study.record.status, metrics, tags)
    tell_end(card, tracking)


def _send_rest(runs: Iterable[RunDir]) -> None:
    """Send what trackers lack of runs that have ended; if one is away, it is not waited for again."""
    with announced("sending the trackers what they lack of the trials"):
        for run in runs:
            warnings = send_rest(run.path, run.status()) if run.status() in FINAL else []
            for warning in warnings:
                log.warning("%s", warning)
            if warnings:
                return


def _train_all(
    study: Study, trials: Sequence[Trial], request: StudyRequest, plan: StudyPlan
) -> tuple[str, dict[str, str]]:
    """Train the runs; return the status, and the errors by group.

    Raises:
        TrainwrightError: A run failed and there are no groups; all groups failed before a run was begun; or a
            file of a run cannot be written or read, which is no result of it.
    """
    errors: dict[str, TrainwrightError] = {}
    completed = CompletedRuns(request.runs_dir, study.path.parent.name)
    for trial in trials:
        group = str(trial.label.get(plan.by or ""))
        if group in errors:
            continue
        try:
            result = train_trial(study, trial, request, completed)
        except (TrainwrightError, OSError) as error:
            # A model that is not there becomes a row of a benchmark, and `--resume` tries it again.
            if is_from_outside(error) and (plan.by is None or not is_of_code(error)):
                raise _unfinished(trial, error) from error
            if plan.by is None or isinstance(error, OSError):
                raise
            errors[group] = error
            request.watch(
                {**trial.label, "run_id": None, "status": "failed", "error": trial.resolved.hide(str(error))}
            )
            continue
        reused = {"reused": True} if study.reused(trial.label) else {}
        summary = {"run_id": result.run_id, "status": result.status, **reused, **result.test_metrics}
        request.watch({**trial.label, **summary})
        if result.status not in TESTED:
            return result.status, {}
    if errors and not any(study.run(trial.label) for trial in trials):
        raise _of_all(errors)
    return "completed", {group: trials[0].resolved.hide(str(error)) for group, error in errors.items()}


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


@contextmanager
def log_warnings_once() -> Iterator[None]:
    """Log equal warnings of a study's runs once, and other lines that say `once`."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        once = record.levelno == logging.WARNING or getattr(record, "once", False)
        known = once and message in seen
        seen.add(message)
        return not known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
