"""The tuning study: which trials it makes, in which order, and what comes of it.

Stint n, a trial or one rung of it, is decided from the results of the stints up to n - horizon, and from the
parameters of all trials before it, which the sampler sees as running. So the trials do not depend on how many
are trained at once, nor on which of them ends first. Each trial is a run. What was decided is in the log of
the study before it has a consequence, so that a killed study goes on with the same trials.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainwright.config import Config, Overrides, Resolved
from trainwright.engine.signals import Signals
from trainwright.errors import CheckpointError, InputError, TrainingError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import FILE, LIMIT_LIFTED, Ending, LoggedStint, LoggedTrial
from trainwright.records.tuning_result import TuningResult
from trainwright.reports.html import write_report as write_run_report
from trainwright.runs.data.shared import sharing_data
from trainwright.runs.pruning import prune_paused
from trainwright.runs.session import report
from trainwright.runs.split_predictions import predicted
from trainwright.runs.trust import of_own_config
from trainwright.runs.workdir import creation_of
from trainwright.samplers.base import Space
from trainwright.samplers.optuna import frozen, importances
from trainwright.studies.driver import Executor, InProcess, drive
from trainwright.studies.study import Json, Study, StudyRequest, open_study
from trainwright.studies.tuning.inputs import TrialInputs
from trainwright.studies.tuning.joined_workers import JoinedWorkers, leading
from trainwright.studies.tuning.plan import FROM, SearchConfig, SearchPlan, plan_of, read_search
from trainwright.studies.tuning.results import LoggedPlan, measured
from trainwright.studies.tuning.sampling import (
    EARLIER,
    Proposals,
    brackets_in,
    check_learns,
    learned,
    observation,
    observations,
    order_of,
)
from trainwright.studies.tuning.stints import (
    Stint,
    StintOutcome,
    do,
    ending_of,
    failed,
    failed_outcome,
    judges_by_curves,
)
from trainwright.studies.tuning.trial_configs import Threads, TrialConfigs, TrialData, shares_of_gpus
from trainwright.studies.tuning.trial_order import TrialOrder, Turn
from trainwright.studies.tuning.tuner_trials import StudyTrials, make_by_tuner
from trainwright.studies.tuning.tuning_view import (
    BEST,
    CONFIG,
    KIND,
    Tuning,
    counted,
    going_on,
    resume_command,
)
from trainwright.studies.tuning.workers import WorkerProcesses
from trainwright.types import Metrics

log = logging.getLogger("trainwright")
_FINAL = "final"  # the kind of the note that names the run of the best configuration


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
        before: The stint that is not done any more, nor those after it; None: go on to the end.
        lifts_limit: Give a study that ended by its time limit as many minutes again.
    """
    plan = plan_of(study, asked)
    if not (study.path / CONFIG).exists():
        study.write_signed_config(CONFIG, asked.text, creation_of(asked.base.resolved).code_folder)
    more = f"for more trials: {resume_command(study.path)} tuning.trials=..."
    if plan.trials == plan.sampler.size:
        more = "its grid has no other points"
    with going_on(study, plan.trials, more):
        kind = _TuningPlan if plan.tuning.tuner is None else _TunerPlan
        drive(kind(study, plan, asked, request, before, lifts_limit=lifts_limit))
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


class _TuningPlan(LoggedPlan[Stint, StintOutcome]):
    """The trials of a search, and what comes of them."""

    def __init__(
        self,
        study: Study,
        plan: SearchPlan,
        asked: SearchConfig,
        request: StudyRequest,
        before: int | None = None,
        *,
        lifts_limit: bool = False,
    ) -> None:
        super().__init__(study, plan.tuning, plan.goals, plan.trials, request)
        self._plan, self._base = plan, asked.base
        self._before, self._trusted, self._lifts_limit = before, asked.trusted, lifts_limit
        data = TrialData(asked.base.resolved, plan.space, request.load, asked.check_data)
        threads = Threads(plan.threads, plan.threads_by_step, data, request.model)
        self._configs = TrialConfigs(asked.base, plan.tuning, threads)
        self._inputs: TrialInputs
        self._changed: Sequence[str] = ()
        self._order: TrialOrder
        self._proposals: Proposals
        self._signals: Signals
        self._executor: Executor[Stint, StintOutcome] | None = None
        alone = request.given or request.callbacks  # no other process has these
        self._joined = None if alone else JoinedWorkers(study.path)
        self._begun: list[LoggedTrial] = []  # by an earlier process, and not ended
        self._made: dict[str, Resolved] = {}  # the configs of the runs of the trial that has just begun
        self._final: Stint | None = None  # trains the best configuration once more

    @property
    def resolved(self) -> Resolved:
        """The config that the trials share."""
        return self._base.resolved

    def open(self, stack: ExitStack) -> None:
        """Lead the study, open its log, and check the inputs; see `StudyPlan.open`."""
        stack.enter_context(leading(self.study.path))
        super().open(stack)
        _check_logged(self._log.trials, self._plan.space, self.study)
        self._inputs = TrialInputs(
            self.study, self._plan.space, self._configs, self._log, self._request, trusted=self._trusted
        )
        self._changed = self._inputs.check(self._plan.trials)

    def begin(self, signals: Signals, stack: ExitStack) -> None:
        """Note what has changed, and find out where the study goes on; see `StudyPlan.begin`."""
        plan, self._signals = self._plan, signals
        self._inputs.accept(self._changed)
        if self._lifts_limit and self._log.is_over_time:
            self._log.note(kind=LIMIT_LIFTED)
        self._order = order_of(
            plan.tuning,
            self.resolved.config,
            plan.trials,
            plan.horizon or 0,
            self._log,
            plan.mode,
            plan.recorded,
        )
        earlier = observations(self.study.settings(EARLIER))
        self._proposals = Proposals(plan, self._log, self._order, self._before, earlier)
        super().begin(signals, stack)
        self._begun = [trial for trial in self._log.trials if trial.ending is None]
        self._progress.resumed(counted(self._log))
        self._proposals.replay()

    def executor(self) -> Executor[Stint, StintOutcome]:
        """Return what trains the stints now: this process alone, unless there are other workers."""
        if self._executor is None or isinstance(self._executor, InProcess):
            self._executor = self._new_executor()  # someone may have joined since the last trial
        return self._executor

    def _new_executor(self) -> Executor[Stint, StintOutcome]:
        processes, request = self._plan.tuning.parallel, self._request
        if self._joined is not None:
            for _ in self._joined.poll():
                pass
        if processes == 1 and (self._joined is None or not self._joined.workers):
            return InProcess(self.run)
        if request.callbacks:
            raise InputError("callbacks stay in this process; give tuning.parallel: 1 with them")
        signals, level = self._signals, log.getEffectiveLevel()
        signals.wake = lambda: None  # the executor looks for them
        return WorkerProcesses(
            processes,
            lambda: signals.status,
            level,
            self._joined or JoinedWorkers(),
            shares_of_gpus(self._plan.tuning),
        )

    def ask(self) -> Stint | None:
        """Return the next stint: of a trial, or the last training of the best one; see `StudyPlan.ask`."""
        if self._final is not None:
            return None
        stint = self._ask_trial()
        return stint if stint is not None or self._running else self._ask_final()

    def _ask_trial(self) -> Stint | None:
        """Return the next stint of a trial; None if there is none now."""
        while True:
            trial = self._next()
            if trial is None:
                self._settle()
                if self._running or self._proposals.next() is None:
                    return None
            elif trial.same_as is None:
                self._running.add(trial.number)
                return self._stint(trial)

    def _settle(self) -> None:
        """End the trials of which nothing is to be trained: those that are not promoted, and copies."""
        self._prune()
        self._copy_endings()

    def run(self, stint: Stint) -> StintOutcome:
        """Do a stint in this process; see `StudyPlan.run`."""
        return do(stint, self._request.objects)

    def tell(self, outcome: StintOutcome) -> None:
        """Log how a stint has ended; see `StudyPlan.tell`."""
        stint, status, error = outcome
        if stint is self._final:
            if status == "failed":
                raise TrainingError(f"the best configuration cannot be trained again: {error}")
            run = RunDir(stint.runs[0])
            self._request.watch({"best_trial": stint.trial, "run_id": run.id, "status": run.status()})
            return
        self._settle()
        self._running.discard(stint.trial)
        ending = failed(error or status) if status == "failed" else self._measured(stint, ending_of(stint))
        self._end(stint.trial, ending)

    def completed_runs(self) -> Sequence[RunDir]:
        """Return the runs of all trials, and that of the best configuration; see `StudyPlan`."""
        trained = [trial for trial in self._log.trials if trial.same_as is None]
        runs = [RunDir(path) for trial in trained for path in self._runs(trial)]
        return runs + ([final] if (final := self._final_run()) is not None else [])

    def _measured(self, stint: Stint, ending: Ending) -> Ending:
        """Return an ending with the values of all metrics and constraints, if there are several."""
        names = self._plan.goals.measured
        if not names or ending.step is None or ending.status == "paused":
            return ending
        (path,) = stint.runs  # several metrics or constraints exclude folds and repeats
        (resolved,) = self._configs.of(self._log.trials[stint.trial].params)
        try:
            with of_own_config(RunDir(path), resolved):
                objects = self._request.objects(resolved)
                return ending._replace(values=measured(RunDir(path), names, ending.step, objects))
        except TrainwrightError as error:
            return failed(failed_outcome(stint, error, self._request.objects).error or "")

    def _next(self) -> LoggedTrial | None:
        """Return the next trial to train: one that was begun before, or another if it can be decided."""
        if self._begun:
            return self._begun.pop(0)
        turn = self._proposals.next()
        if turn is None:
            return None
        if turn.trial == len(self._log.trials):
            return self._begin_trial(turn)
        self._log.promote(turn.trial, turn.stint)
        return self._log.trials[turn.trial]

    def _begin_trial(self, turn: Turn) -> LoggedTrial:
        """Decide a trial, and create its run."""
        number, trials = turn.trial, self._log.trials
        params = self._proposals.params(turn)
        stints, running = (LoggedStint(turn.stint),), self._order.running(trials, turn.stint)
        first = next((trial for trial in trials if trial.params == params and trial.same_as is None), None)
        if first is not None:
            trial = LoggedTrial(number, params, first.run_id, first.number, stints=stints, running=running)
        else:
            self._made = {self._create(resolved).id: resolved for resolved in self._configs.of(params)}
            run, *others = self._made
            trial = LoggedTrial(number, params, run, stints=stints, others=tuple(others), running=running)
        self._log.begin(trial)
        return trial

    def _create(self, resolved: Resolved) -> RunDir:
        experiment = self.study.path.parent.name
        return RunDir.create(
            self._request.runs_dir,
            experiment,
            resolved.dump(),
            created=creation_of(resolved),
        )

    def _runs(self, trial: LoggedTrial) -> list[Path]:
        return [self.study.path.parent / run_id for run_id in (trial.run_id, *trial.others)]

    def _stint(self, trial: LoggedTrial) -> Stint:
        """Return the newest stint of a trial, with the curves that its pruner compares it with."""
        stint = trial.stints[-1].number
        return Stint(
            trial.number,
            self._runs(trial),
            self.study.id,
            self._plan.metric,
            self._plan.mode,
            self._plan.tuning.pruner,
            self._curves(stint) if judges_by_curves(self._plan.tuning.pruner) else {},
            self._order.until(stint),
            self._inputs.alike(trial),
            self._inputs.searches_data,
            self._request.allow_change,
            self._made,
            self._trusted,
        )

    def _curves(self, stint: int) -> dict[str, list[Sequence[tuple[int, float]]]]:
        """Return the curves of the trials that a stint may know, by status."""
        curves: dict[str, list[Sequence[tuple[int, float]]]] = {"completed": [], "pruned": []}
        for other, ending in zip(self._log.trials, self._order.known(self._log.trials, stint), strict=True):
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
        trackers = [item.type for item in self.resolved.config.tracking]
        for number in self._order.not_promoted(self._log.trials):
            for run in self._runs(self._log.trials[number]):
                prune_paused(RunDir(run), trackers)
            self._log.prune(number)

    def _ask_final(self) -> Stint | None:
        """Return the training of the best configuration, where the study asks for it.

        A note in the log names its run before it begins.
        """
        best = self._best()
        if best is None or not self._configs.has_final:
            return None
        run = self._final_run()
        if run is None:
            run = self._create(self._configs.final(best, self.study.path.parent))
            self._log.note(kind=_FINAL, trial=best.number, run_id=run.id)
        plan = self._plan
        self._final = Stint(
            best.number, [run.path], self.study.id, plan.metric, plan.mode, trusted=self._trusted, tested=True
        )
        return self._final

    def _final_run(self) -> RunDir | None:
        """Return the run in which the best configuration was trained once more, if that was begun."""
        best = self._best()
        notes = [
            note
            for note in self._log.notes
            if best is not None and note["kind"] == _FINAL and note["trial"] == best.number
        ]
        return RunDir(self.study.path.parent / notes[-1]["run_id"]) if notes else None

    def _end(self, number: int, ending: Ending) -> None:
        """Log how a trial has ended, and tell the user."""
        self._log.end(number, ending)
        self._ended(number)

    def conclude(self) -> Json:
        """Write the best config, and return the result; see `StudyPlan.conclude`."""
        trials, best, final = self._log.trials, self._best(), self._final_run()
        if best is not None:
            run = final or RunDir(self.study.path.parent / best.run_id)
            self.study.write_config(BEST, run.config_file.read_text(encoding="utf-8"))
            report(run.path, write_run_report)  # the page of another trial is written when it is asked for
        of_space = importances(
            self._plan.space, [observation(trial, trial.ending) for trial in trials], self._plan.mode
        )
        more = {"order": self._plan.tuning.order, "horizon": self._plan.horizon, "importance": of_space}
        result = self._result(final) | more | brackets_in(self._order, self.resolved.config)
        if best is not None and (metrics := self._tested(best, final)):
            result["best"] |= {"metrics": metrics}
        return result

    def _tested(self, best: LoggedTrial, final: RunDir | None) -> Metrics:
        """Return the metrics of the best model on the test split, which no other trial was evaluated on.

        They are the mean over its runs, and empty if there is no such split, or it cannot be evaluated.
        """
        if final is not None:
            return final.require_result().test_metrics
        before = TuningResult.of(self.study.result).best
        if before is not None and before.run_id == best.run_id and before.metrics:
            return before.metrics  # the study has only gone on, and the test split is looked at once
        found = []
        try:
            for path, resolved in zip(self._runs(best), self._configs.of(best.params), strict=True):
                run = RunDir(path)
                if "test" not in run.require_manifest().data.splits:
                    return {}
                with of_own_config(run, resolved, trust=self._trusted):
                    data, model = self._request.bundle(resolved), self._request.model
                    metrics = predicted(run, "test", data, model).result.metrics
                found.append({name: value for name, value in metrics.items() if name.startswith("test_")})
        except TrainwrightError as error:
            log.warning("the best model cannot be evaluated on the test split: %s", error)
            return {}
        return {name: sum(one[name] for one in found) / len(found) for name in found[0]}

    def _frozen_trials(self) -> Sequence[Any]:
        ended = list(itertools.takewhile(lambda trial: trial.ending is not None, self._log.trials))
        seen = self._proposals.observations(ended, [trial.ending for trial in ended])
        return frozen(self._plan.space, seen, self._plan.goals.modes)


class _TunerPlan(_TuningPlan):
    """The trials of a search that a tuner makes, all at its own pace."""

    @property
    def running(self) -> int:
        """The number of trials that have begun, and not ended."""
        return sum(trial.ending is None for trial in counted(self._log))

    def _ask_trial(self) -> None:
        make_by_tuner(
            StudyTrials(self._log, self._configs, self._goals, self._end, self._signals, self._inputs)
        )
