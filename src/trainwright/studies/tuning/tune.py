"""The tuning study: which trials it makes, in which order, and what comes of it.

Job n, a trial or one rung of it, is decided from the results of the jobs up to n - horizon, and from the
parameters of all trials before it, which the sampler sees as running. So the trials do not depend on how many
are trained at once, nor on which of them ends first. Each trial is a run. What was decided is in the log of
the study before it has a consequence, so that a killed study goes on with the same trials.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

from trainwright.config import Config, Overrides, Resolved
from trainwright.engine.signals import Signals, Stopped
from trainwright.errors import CheckpointError, InputError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.status import Ended
from trainwright.records.trials import FILE, LIMIT_LIFTED, Ending, LoggedJob, LoggedTrial, TrialLog
from trainwright.reports.html import write_report as write_run_report
from trainwright.reports.studies import write_report
from trainwright.runs.cleanup import discard_folder
from trainwright.runs.data.shared import sharing_data
from trainwright.runs.pruning import prune_paused
from trainwright.runs.session import report
from trainwright.runs.trust import of_own_config
from trainwright.samplers.base import Space
from trainwright.samplers.optuna import frozen, importances
from trainwright.studies.running import log_warnings_once, tell_trackers
from trainwright.studies.study import RESULT, Study, StudyRequest, open_study
from trainwright.studies.tuning.agenda import Agenda, Turn
from trainwright.studies.tuning.by_tuner import StudyTrials, counted, make_by_tuner
from trainwright.studies.tuning.conclusion import check_first_trials, observation, result_of, summary_of
from trainwright.studies.tuning.earlier import FILE as EARLIER
from trainwright.studies.tuning.earlier import check_learns, learned
from trainwright.studies.tuning.final import final_run, train_final
from trainwright.studies.tuning.going_on import going_on
from trainwright.studies.tuning.inputs import TrialInputs
from trainwright.studies.tuning.jobs import (
    Job,
    ending_of,
    failed,
    hidden,
    is_own_failure,
    judges_by_curves,
    unfinished,
)
from trainwright.studies.tuning.joined import JoinedWorkers, leading
from trainwright.studies.tuning.measures import measured
from trainwright.studies.tuning.order import agenda_of, brackets_in
from trainwright.studies.tuning.progress import Progress
from trainwright.studies.tuning.projection import Projector
from trainwright.studies.tuning.proposals import Proposals
from trainwright.studies.tuning.question import FROM, SearchConfig, SearchPlan, plan_of, read_search
from trainwright.studies.tuning.resources import Threads, shares_of_gpus
from trainwright.studies.tuning.resuming import resuming
from trainwright.studies.tuning.trial_configs import TrialConfigs
from trainwright.studies.tuning.trial_data import TrialData
from trainwright.studies.tuning.tuner_checks import CONFIG
from trainwright.studies.tuning.view import BEST, KIND, Tuning
from trainwright.studies.tuning.workers import Executor, InProcess, WorkerProcesses

log = logging.getLogger("trainwright")


@sharing_data()
def tune(config: Config, overrides: Overrides, request: StudyRequest, earlier: Study | None = None) -> Tuning:
    """Search for the best values of a config's keys; see `trainwright.tune`."""
    asked = read_search(config, overrides, request)
    name = asked.base.resolved.config.experiment.name
    kept, question = None, asked.question
    if earlier is not None:
        check_learns(asked.tuning, asked.sampler)
        kept = learned(earlier, asked.space, asked.goals)
        question |= {FROM: earlier.id}
    study = open_study(request, name, KIND, question, completed=True)
    if kept is not None and not study.settings(EARLIER):  # a study that is resumed has what it began with
        study.write(EARLIER, kept)
    return search(study, asked, request)


@sharing_data()
def search(
    study: Study,
    asked: SearchConfig,
    request: StudyRequest,
    before: int | None = None,
    *,
    lifts_limit: bool = False,
) -> Tuning:
    """Make the trials of a study, or go on with them.

    Args:
        study: Its folder.
        asked: What it is to find out.
        request: The arguments of the study.
        before: The job that is not done any more, nor those after it; None: go on to the end.
        lifts_limit: Give a study that ended by its time limit as many minutes again.
    """
    plan = plan_of(study, asked)
    if not (study.path / CONFIG).exists():
        study.write_signed_config(CONFIG, asked.text)
    more = f"for more trials: {resuming(study.path)} tuning.trials=..."
    if plan.trials == plan.sampler.size:
        more = "its grid has no other points"
    with going_on(study, plan.trials, more):
        _Search(study, plan, asked, request, before).run(lifts_limit=lifts_limit)
    return Tuning(study.path)


def _check_logged(trials: Sequence[LoggedTrial], space: Space, study: Study) -> None:
    """Check that the log of a study, which may come from someone else, sets what the study searches alone.

    Raises:
        CheckpointError: It sets another key, or a value that is not in the space.
    """
    known = {parameter.key: parameter for parameter in space}
    for trial in trials:
        for key, value in trial.params.items():
            if key not in known or not known[key].holds(value):
                raise CheckpointError(
                    f"{study.path / FILE} is damaged: trial {trial.number} sets {key} to what is not in "
                    "tuning.space"
                )


class _Search:
    """Make the trials of a study, and record what comes of them."""

    def __init__(
        self,
        study: Study,
        plan: SearchPlan,
        asked: SearchConfig,
        request: StudyRequest,
        before: int | None = None,
    ) -> None:
        self._study, self._plan, self._base, self._request = study, plan, asked.base, request
        self._before, self._trusted = before, asked.trusted
        data = TrialData(asked.base.resolved, plan.space, request.load, asked.check_data)
        threads = Threads(plan.threads, plan.threads_by_step, data)
        self._configs = TrialConfigs(asked.base, plan.tuning, threads)
        self._log: TrialLog
        self._inputs: TrialInputs
        self._agenda: Agenda
        self._proposals: Proposals
        self._signals: Signals
        self._executor: Executor
        alone = request.data is not None or request.callbacks  # no other process has these
        self._joined = None if alone else JoinedWorkers(study.path)
        self._running: set[int] = set()
        self._made: dict[str, Resolved] = {}  # the configs of the runs of the trial that has just begun
        self._progress = Progress(plan.trials, plan.tuning.max_minutes)
        goals = plan.goals
        metrics = dict(zip(goals.metrics, goals.modes, strict=True))
        self._projector = Projector(study.path, metrics, plan.tuning.storage)

    def run(self, *, lifts_limit: bool = False) -> None:
        """Make the trials, conclude, and record the status.

        Raises:
            ChangedInputsError: The inputs of its trials have changed; the study stays as it was.
            TrainwrightError: The first trials have all failed, or the study cannot be written.
            RunLockedError: Another process works on this study.
        """
        study = self._study
        with study.owned(), leading(study.path), log_warnings_once():
            study.check_seals()
            with contextlib.closing(TrialLog(study.path)) as self._log:
                _check_logged(self._log.trials, self._plan.space, study)
                self._inputs = TrialInputs(
                    study,
                    self._plan.space,
                    self._configs,
                    self._log,
                    self._request,
                    trusted=self._trusted,
                )
                changed = self._inputs.check(self._plan.trials)
                study.update(status="running")
                self._inputs.accept(changed)
                if lifts_limit and self._log.is_over_time:
                    self._log.note(kind=LIMIT_LIFTED)
                status = self._go_on()
            study.update(status=status)
            report(study.path, write_report)
            trained = [trial for trial in self._log.trials if trial.same_as is None]
            runs = [RunDir(path) for trial in trained for path in self._runs(trial)]
            runs += [final] if (final := self._final_run()) is not None else []
            tell_trackers(study, self._base.resolved, runs if status == "completed" else ())

    def _go_on(self) -> Ended:
        """Make the trials, conclude, and return the status of the study."""
        plan, config = self._plan, self._base.resolved.config
        self._agenda = agenda_of(
            plan.tuning, config, plan.trials, plan.horizon or 0, self._log, plan.mode, plan.recorded
        )
        self._proposals = Proposals(plan, self._log, self._agenda, self._before)
        try:
            with Signals() as self._signals:
                self._search()
        except Stopped as signal:
            return signal.status
        except TrainwrightError as error:
            self._record_failure(error)
            raise
        return "completed"

    def _search(self) -> None:
        """Make the trials, and conclude."""
        self._executor = self._new_executor()
        try:
            self._make_trials()
            self._train_final()
        finally:
            self._executor.close()
            self._project(end=True)
        self._conclude()

    def _record_failure(self, error: TrainwrightError) -> None:
        """Write down why the study has failed; one that could not begin a trial is deleted."""
        study = self._study
        if isinstance(error, InputError) and not self._log.trials:
            discard_folder(study.path)
            return
        with contextlib.suppress(OSError):  # it may be the disk that failed
            study.update(status="failed", error=self._base.resolved.hide(str(error)))
        report(study.path, write_report)
        tell_trackers(study, self._base.resolved)

    def _new_executor(self) -> Executor:
        """Return what trains the jobs now: this process alone, unless there are other workers."""
        own, request = self._plan.tuning.parallel, self._request
        if self._joined is not None:
            for _ in self._joined.poll():
                pass
        if own == 1 and (self._joined is None or not self._joined.workers):
            return InProcess(request.bundle, request.callbacks)
        if request.callbacks:
            raise InputError("callbacks stay in this process; give tuning.parallel: 1 with them")
        signals, level = self._signals, log.getEffectiveLevel()
        signals.wake = lambda: None  # the executor looks for them
        return WorkerProcesses(
            own,
            lambda: signals.status,
            level,
            self._joined or JoinedWorkers(),
            shares_of_gpus(self._plan.tuning),
        )

    def _make_trials(self) -> None:
        """Train trials, as many at once as the executor takes, until no other is to begin."""
        if self._plan.tuning.tuner is not None:
            goals = self._plan.goals
            make_by_tuner(
                StudyTrials(self._log, self._configs, goals, self._end, self._signals, self._inputs)
            )
            return
        begun = [trial for trial in self._log.trials if trial.ending is None]
        self._progress.resumed(self._log.trials)
        self._proposals.replay()
        while True:
            if isinstance(self._executor, InProcess):
                self._executor = self._new_executor()  # someone may have joined since the last trial
            executor = self._executor
            while len(self._running) < executor.slots and (trial := self._next(begun)) is not None:
                if trial.same_as is None:
                    self._running.add(trial.number)
                    executor.submit(self._job(trial))
            self._prune()
            self._copy_endings()
            if not self._running:
                if self._proposals.next() is None:
                    return
                continue
            if (outcome := executor.wait()) is None:
                continue
            job, status, error = outcome
            self._running.discard(job.trial)
            ending = failed(error or status) if status == "failed" else self._measured(job, ending_of(job))
            self._end(job.trial, ending)

    def _measured(self, job: Job, ending: Ending) -> Ending:
        """Return an ending with the values of all metrics and constraints, if there are several."""
        names = self._plan.goals.measured
        if not names or ending.step is None or ending.status == "paused":
            return ending
        (path,) = job.runs  # several metrics or constraints exclude folds and repeats
        (resolved,) = self._configs.of(self._log.trials[job.trial].params)
        try:
            with of_own_config(RunDir(path), resolved):
                bundle = self._request.bundle(resolved)
                return ending._replace(values=measured(RunDir(path), names, ending.step, bundle))
        except TrainwrightError as error:
            if is_own_failure(job, error, self._request.bundle):
                return failed(hidden(path, error))
            is_input = isinstance(error, InputError)
            raise unfinished(job, hidden(path, error), is_input=is_input) from error

    def _next(self, begun: list[LoggedTrial]) -> LoggedTrial | None:
        """Return the next trial to train: one that was begun before, or another if it can be decided."""
        if begun:
            return begun.pop(0)
        turn = self._proposals.next()
        if turn is None:
            return None
        if turn.trial == len(self._log.trials):
            return self._begin(turn)
        self._log.promote(turn.trial, turn.job)
        return self._log.trials[turn.trial]

    def _begin(self, turn: Turn) -> LoggedTrial:
        """Decide a trial, and create its run."""
        number, trials = turn.trial, self._log.trials
        params = self._proposals.params(turn)
        jobs, running = (LoggedJob(turn.job),), self._agenda.running(trials, turn.job)
        first = next((trial for trial in trials if trial.params == params and trial.same_as is None), None)
        if first is not None:
            trial = LoggedTrial(number, params, first.run_id, first.number, jobs=jobs, running=running)
        else:
            self._made = {self._create(resolved).id: resolved for resolved in self._configs.of(params)}
            run, *others = self._made
            trial = LoggedTrial(number, params, run, jobs=jobs, others=tuple(others), running=running)
        self._log.begin(trial)
        return trial

    def _create(self, resolved: Resolved) -> RunDir:
        experiment = self._study.path.parent.name
        return RunDir.create(self._request.runs_dir, experiment, resolved.dump(), settings=resolved.settings)

    def _runs(self, trial: LoggedTrial) -> list[Path]:
        return [self._study.path.parent / run_id for run_id in (trial.run_id, *trial.others)]

    def _job(self, trial: LoggedTrial) -> Job:
        """Return the newest job of a trial, with the curves that its pruner compares it with."""
        job = trial.jobs[-1].number
        return Job(
            trial.number,
            self._runs(trial),
            self._study.id,
            self._plan.metric,
            self._plan.mode,
            self._plan.tuning.pruner,
            self._curves(job) if judges_by_curves(self._plan.tuning.pruner) else {},
            self._agenda.until(job),
            self._inputs.alike(trial),
            self._inputs.searches_data,
            self._request.allow_change,
            self._made,
            self._trusted,
        )

    def _curves(self, job: int) -> dict[str, list[Sequence[tuple[int, float]]]]:
        """Return the curves of the trials that a job may know, by status."""
        curves: dict[str, list[Sequence[tuple[int, float]]]] = {"completed": [], "pruned": []}
        for other, ending in zip(self._log.trials, self._agenda.known(self._log.trials, job), strict=True):
            if ending is not None and ending.status in curves and other.same_as is None:
                curves[ending.status].append(ending.curve)
        return curves

    def _copy_endings(self) -> None:
        """End the trials whose parameters an earlier trial had, once that one has ended and is not paused."""
        for trial in self._log.trials:
            if trial.ending is None and trial.same_as is not None:
                ending = self._log.trials[trial.same_as].ending
                if ending is not None and ending.status != "paused":
                    self._end(trial.number, ending)

    def _prune(self) -> None:
        """End the paused trials that do not go on."""
        trackers = [item.type for item in self._base.resolved.config.tracking]
        for number in self._agenda.not_promoted(self._log.trials):
            for run in self._runs(self._log.trials[number]):
                prune_paused(RunDir(run), trackers)
            self._log.prune(number)

    def _train_final(self) -> None:
        """Train the best configuration once more, where the study asks for it."""
        best = self._best()
        if best is None or not self._configs.has_final:
            return
        run = self._final_run() or self._create(self._configs.final(best, self._study.path.parent))
        job = Job(
            best.number,
            [run.path],
            self._study.id,
            self._plan.metric,
            self._plan.mode,
            trusted=self._trusted,
        )
        train_final(self._executor, job, self._log)
        self._request.watch({"best_trial": best.number, "run_id": run.id, "status": run.status()})

    def _end(self, number: int, ending: Ending) -> None:
        """Log how a trial has ended, and tell the user."""
        self._log.end(number, ending)
        trial = self._log.trials[number]
        summary = {"trial": number, "run_id": trial.run_id, "status": ending.status}
        named = {self._plan.metric: ending.value} if ending.value is not None else {}
        named |= ending.values or {}
        error = {"error": ending.error} if ending.error else {}
        best = self._best()
        top = {"best": best.ending.value} if best and best.ending else {}
        trials, running = counted(self._log), len(self._running)
        if self._plan.tuning.tuner is not None:
            running = sum(one.ending is None for one in trials)
        progress = self._progress.shown(trials, running)
        self._request.watch(summary | named | error | top | progress)
        self._project()
        check_first_trials(self._log.trials, number, self._plan.trials, self._plan.metric)

    def _best(self) -> LoggedTrial | None:
        return self._plan.goals.best(self._log.trials)

    def _final_run(self) -> RunDir | None:
        """Return the run in which the best configuration was trained once more, if it was."""
        best = self._best()
        return final_run(self._study.path.parent, self._log, best) if best is not None else None

    def _conclude(self) -> None:
        """Write the best config and the result."""
        trials, best = self._log.trials, self._best()
        final = self._final_run()
        if best is not None:
            run = final or RunDir(self._study.path.parent / best.run_id)
            self._study.write_config(BEST, run.config_file.read_text(encoding="utf-8"))
            report(run.path, write_run_report)  # the page of another trial is written when it is asked for
        identity = {"study_id": self._study.id, "experiment": self._study.path.parent.name}
        of_space = importances(
            self._plan.space, [observation(trial, trial.ending) for trial in trials], self._plan.mode
        )
        own = {"order": self._plan.tuning.order, "horizon": self._plan.horizon, "importance": of_space}
        own |= brackets_in(self._agenda, self._base.resolved.config)
        result = result_of(trials, self._plan.goals, summary_of(best, final) if best else None)
        self._study.write(RESULT, {"status": "completed", **identity, **result, **own})

    def _project(self, *, end: bool = False) -> None:
        """Write the storage that Optuna reads: the trials before the first one that has not ended."""
        if self._projector.is_due(end=end):
            ended = list(itertools.takewhile(lambda trial: trial.ending is not None, self._log.trials))
            seen = self._proposals.observations(ended, [trial.ending for trial in ended])
            made = frozen(self._plan.space, seen, self._plan.goals.modes)
            self._projector.write(made, ended, end=end)
