"""The tuning study: which trials it makes, in which order, and what comes of it.

Trial n is decided from the results of the trials up to n - horizon, and from the parameters of all before it,
which the sampler sees as running. So the trials do not depend on how many are trained at once, nor on which
of them ends first. Each trial is a run. What was decided is in the log of the study before it has a
consequence, so that a killed study goes on with the same trials.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.config import Config, Overrides, Resolved
from trainyard.config.tuning import TuningConfig
from trainyard.datasets.base import DataBundle
from trainyard.digest import sha256_bytes
from trainyard.engine.signals import Signals, Stopped
from trainyard.errors import ConfigError, InputError, Problem, TrainingError, TrainyardError
from trainyard.records.run_dir import RunDir
from trainyard.records.trials import Ending, LoggedTrial, TrialLog, TrialStatus, read_trials
from trainyard.reports.studies import write_report
from trainyard.runs.cleanup import discard_folder
from trainyard.runs.run import Run
from trainyard.runs.session import report
from trainyard.runs.trust import of_own_config
from trainyard.runs.wiring import default_threads
from trainyard.samplers.base import Observation, Sampler, Space
from trainyard.samplers.optuna import frozen, importances
from trainyard.studies.benchmark import with_metric
from trainyard.studies.running import log_warnings_once
from trainyard.studies.study import RESULT, Json, Study, StudyRequest, StudyView, open_study
from trainyard.studies.trials import StudyConfig
from trainyard.studies.tuning.checks import check_tuning, make_sampler
from trainyard.studies.tuning.earlier import FILE as EARLIER
from trainyard.studies.tuning.earlier import check_learns, learned, observations
from trainyard.studies.tuning.goals import MEASURES, Goals
from trainyard.studies.tuning.jobs import Job, ending_of, failed, hidden
from trainyard.studies.tuning.measures import measured
from trainyard.studies.tuning.progress import Progress
from trainyard.studies.tuning.projection import Projector
from trainyard.studies.tuning.workers import Executor, InProcess, WorkerProcesses
from trainyard.types import Mode

log = logging.getLogger("trainyard")
KIND = "tune"
BEST = "best.yaml"
_FIRST_FAILURES = 3  # a study whose first trials all fail ends
_SETTINGS = "settings.json"  # what is fixed when the study is created
_DEFAULT_TRIALS = 20


class Tuning(StudyView):
    """A read-only view of a tuning study's folder; each property reads the files again."""

    @property
    def trials(self) -> Any:
        """The trials as a data frame: number, status, value, step, seconds, run id, and the parameters."""
        import pandas as pd

        return pd.DataFrame(rows(self.path))

    @property
    def best_run(self) -> Run | None:
        """The run of the best trial; None if none has a value, or a Python function was tuned."""
        run_id = self.result["best"]["run_id"] if self._has_best else ""
        return Run(RunDir(self.path.parent / run_id)) if run_id else None

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters of the best trial, by dotted key; empty if none has a value."""
        return dict(self.result["best"]["params"]) if self._has_best else {}

    @property
    def best_config(self) -> Path | None:
        """The config of the best trial, which trains as it is; None where there is no best run."""
        return self.path / BEST if self.best_run is not None else None

    @property
    def best_value(self) -> float | None:
        """The value of the best trial, by the first metric; None if none has one."""
        return self.result["best"]["value"] if self._has_best else None

    @property
    def digest(self) -> str | None:
        """The digest over all trials: two studies with the same one made the same trials."""
        return self.result.get("digest")

    @property
    def _has_best(self) -> bool:
        return self.result.get("best") is not None

    def __repr__(self) -> str:
        best = self.result.get("best")
        value = f": {self.result['metric']}={best['value']:.4g}" if best else ""
        return f"<Tuning {self.path.parent.name}/{self.id} {self.status}{value}>"


@dataclass(frozen=True)
class Plan:
    """What the trials of a study are a function of, but for the config that they share.

    `horizon` and `threads` are fixed when the study is created.
    """

    tuning: TuningConfig
    space: Space
    sampler: Sampler
    goals: Goals
    horizon: int
    threads: int
    earlier: Sequence[Observation] = ()  # the trials of another study, known to all

    @property
    def metric(self) -> str:
        """The first metric, which decides the model that a trial keeps."""
        return self.goals.metrics[0]

    @property
    def mode(self) -> Mode:
        """The mode of the first metric."""
        return self.goals.modes[0]

    @property
    def trials(self) -> int:
        """The number of trials, if nothing ends the study early."""
        wanted, size = self.tuning.trials, self.sampler.size
        return min(wanted or size or _DEFAULT_TRIALS, size or wanted or _DEFAULT_TRIALS)


def tune(config: Config, overrides: Overrides, request: StudyRequest, earlier: Study | None = None) -> Tuning:
    """Search for the best values of a config's keys; see `trainyard.tune`."""
    base = StudyConfig.read(config, overrides, request.runs_dir, objects=request.data is not None)
    (goals, space), tuning = check_tuning(base), base.resolved.config.tuning
    assert tuning is not None
    sampler = make_sampler(goals, space, base, tuning)
    base = _for_trials(base, goals, request)
    if request.data is not None and tuning.parallel > 1:
        raise InputError(
            f"tuning.parallel: {tuning.parallel} given, but data given as objects stay in this process; "
            "give data.path or data.type, or leave parallel at 1"
        )
    base.resolved.log_notes()
    name, question = base.resolved.config.experiment.name, _question(base, tuning)
    kept: Json = {}
    if earlier is not None:
        check_learns(tuning, sampler)
        kept, question = learned(earlier, space, goals), question | {"from": earlier.id}
    study = open_study(request, name, KIND, question, completed=True)
    plan = _plan(study, tuning, space, sampler, goals, base)
    if earlier is not None:
        kept = study.settings(EARLIER) or kept  # of a study that is resumed: as it was
        study.write(EARLIER, kept)
        plan = replace(plan, earlier=observations(kept))
    _Search(study, plan, base, request).run()
    return Tuning(study.path)


def _for_trials(base: StudyConfig, goals: Goals, request: StudyRequest) -> StudyConfig:
    """Return the config that the trials share: it keeps the models that are best by the first metric."""
    if base.excludes("val"):
        raise InputError("there are no validation rows to tune by; give data.split.val or data.val_path")
    for metric in goals.measured:
        base = base if metric in MEASURES else with_metric(base, metric, request)
    return base.with_overrides(
        {"tuning": None, "checkpoint.metric": goals.metrics[0], "checkpoint.mode": goals.modes[0]}
    )


def _question(base: StudyConfig, tuning: TuningConfig) -> Json:
    """Return what two studies must share to be the same; one may have more trials than the other."""
    own = tuning.model_dump(exclude={"trials", "max_minutes", "target", "parallel"})
    if not own["constraints"]:
        del own["constraints"]  # as studies have it that were made before there were any
    return base.question() | {"tuning": json.loads(json.dumps(own))}


def _plan(
    study: Study, tuning: TuningConfig, space: Space, sampler: Sampler, goals: Goals, base: StudyConfig
) -> Plan:
    settings = study.settings(_SETTINGS) or {
        "horizon": tuning.horizon or 2 * tuning.parallel,
        "threads": base.resolved.config.training.threads
        or max(1, default_threads(base.resolved.config) // tuning.parallel),
    }
    if tuning.parallel > settings["horizon"]:
        raise ConfigError(
            [
                Problem(
                    f"{tuning.parallel} is more than the horizon of {settings['horizon']}; a trial waits for "
                    "the results of those so many before it",
                    "tuning.parallel",
                )
            ]
        )
    study.write(_SETTINGS, settings)
    return Plan(tuning, space, sampler, goals, **settings)


class _Search:
    """Makes the trials of a study, and records what comes of them."""

    def __init__(self, study: Study, plan: Plan, base: StudyConfig, request: StudyRequest) -> None:
        self._study, self._plan, self._base, self._request = study, plan, base, request
        self._log: TrialLog
        self._running: set[int] = set()
        self._began = time.monotonic()
        self._progress = Progress(plan.trials, plan.tuning.max_minutes)
        goals = plan.goals
        self._projector = Projector(study.path, dict(zip(goals.metrics, goals.modes, strict=True)))

    def run(self) -> None:
        """Make the trials, conclude, and record the status.

        Raises:
            TrainyardError: The first trials have all failed, or the study cannot be written.
            RunLockedError: Another process works on this study.
        """
        study = self._study
        with study.owned(), log_warnings_once():
            study.update(status="running")
            self._log = TrialLog(study.path)
            try:
                with Signals() as signals:
                    executor = self._executor(signals)
                    try:
                        self._make_trials(executor)
                    finally:
                        executor.close()
                        self._project(end=True)
                    self._conclude()
                    status = "completed"
            except Stopped as signal:
                status = signal.status
            except TrainyardError as error:
                if isinstance(error, InputError) and not self._log.trials:
                    discard_folder(study.path)
                else:
                    study.update(status="failed", error=self._base.resolved.hide(str(error)))
                    report(study.path, write_report)
                raise
            finally:
                self._log.close()
            study.update(status=status)
            report(study.path, write_report)

    def _executor(self, signals: Signals) -> Executor:
        if self._plan.tuning.parallel == 1:
            return InProcess(self._bundle, self._request.callbacks)
        if self._request.callbacks:
            raise InputError("callbacks stay in this process; give tuning.parallel: 1 with them")
        signals.wake = lambda: None  # the executor looks for them
        return WorkerProcesses(self._plan.tuning.parallel, lambda: signals.status, log.getEffectiveLevel())

    def _bundle(self, job: Job) -> DataBundle | None:
        """Return the data that were given as objects, as the job's config prepares them."""
        return None if self._request.data is None else self._request.bundle(self._config(job.number))

    def _make_trials(self, executor: Executor) -> None:
        begun = [trial for trial in self._log.trials if trial.ending is None]
        self._progress.resumed(self._log.trials)
        while True:
            while len(self._running) < executor.slots and (trial := self._next(begun)) is not None:
                if trial.same_as is None:
                    self._running.add(trial.number)
                    executor.submit(self._job(trial))
            self._copy_endings()
            if not self._running:
                if self._next_number() is None:
                    return
                continue
            job, status, error = executor.wait()
            self._running.discard(job.number)
            ending = failed(error or status) if status == "failed" else self._measured(job, ending_of(job))
            self._end(job.number, ending)

    def _measured(self, job: Job, ending: Ending) -> Ending:
        """Return an ending with the values of all metrics and constraints, if there are several."""
        names = self._plan.goals.measured
        if not names or ending.step is None:
            return ending
        run = RunDir(job.run)
        try:
            with of_own_config(run, self._config(job.number)):
                return ending._replace(values=measured(run, names, ending.step, self._bundle(job)))
        except TrainyardError as error:
            return failed(hidden(job.run, error))

    def _next(self, begun: list[LoggedTrial]) -> LoggedTrial | None:
        """Return the next trial to train: one that was begun before, or a new one if it can be decided."""
        if begun:
            return begun.pop(0)
        number = self._next_number()
        return None if number is None else self._begin(number)

    def _next_number(self) -> int | None:
        """Return the number of the next trial if it can be decided now, and there is to be one."""
        trials, number = self._log.trials, len(self._log.trials)
        known = trials[: self._known(number)]
        if number >= self._plan.trials or any(trial.ending is None for trial in known):
            return None
        if any(note["kind"] == "time_limit" for note in self._log.notes):
            return None
        target = self._plan.tuning.target
        if target is not None and any(self._reaches(trial, target) for trial in known):
            return None
        limit = self._plan.tuning.max_minutes
        if limit is not None and time.monotonic() - self._began >= 60 * limit:
            self._log.note(kind="time_limit", before=number)
            return None
        return number

    def _reaches(self, trial: LoggedTrial, target: float) -> bool:
        value = trial.ending.value if trial.ending else None
        return value is not None and (value <= target if self._plan.mode == "min" else value >= target)

    def _known(self, number: int) -> int:
        """Return how many trials a trial may know the results of."""
        return max(0, number - self._plan.horizon + 1)

    def _begin(self, number: int) -> LoggedTrial:
        """Decide a trial, and create its run."""
        trials, known = self._log.trials, self._known(number)
        params = self._plan.sampler.propose(
            number,
            [
                *self._plan.earlier,
                *(self._observation(trial, known=trial.number < known) for trial in trials),
            ],
        )
        first = next((trial for trial in trials if trial.params == params and trial.same_as is None), None)
        if first is not None:
            trial = LoggedTrial(number, params, first.run_id, first.number)
        else:
            resolved = self._resolved(params)
            run = RunDir.create(self._request.runs_dir, self._study.path.parent.name, resolved.dump())
            trial = LoggedTrial(number, params, run.id)
        self._log.begin(trial)
        return trial

    def _resolved(self, params: Mapping[str, Any]) -> Resolved:
        return self._base.with_overrides({**params, "training.threads": self._plan.threads}).resolved

    def _config(self, number: int) -> Resolved:
        return self._resolved(self._log.trials[number].params)

    def _job(self, trial: LoggedTrial) -> Job:
        curves: dict[str, list[Sequence[tuple[int, float]]]] = {"completed": [], "pruned": []}
        for other in self._log.trials[: self._known(trial.number)]:
            if other.ending is not None and other.ending.status in curves and other.same_as is None:
                curves[other.ending.status].append(other.ending.curve)
        return Job(
            trial.number,
            self._study.path.parent / trial.run_id,
            self._study.id,
            self._plan.metric,
            self._plan.mode,
            self._plan.tuning.pruner,
            curves,
        )

    def _copy_endings(self) -> None:
        """End the trials whose parameters an earlier trial had, once that one has ended."""
        for trial in self._log.trials:
            if trial.ending is None and trial.same_as is not None:
                ending = self._log.trials[trial.same_as].ending
                if ending is not None:
                    self._end(trial.number, ending)

    def _end(self, number: int, ending: Ending) -> None:
        self._log.end(number, ending)
        trial = self._log.trials[number]
        summary = {"trial": number, "run_id": trial.run_id, "status": ending.status}
        named = {self._plan.metric: ending.value} if ending.value is not None else {}
        named |= ending.values or {}
        error = {"error": ending.error} if ending.error else {}
        best = self._best()
        top = {"best": best.ending.value} if best and best.ending else {}
        progress = self._progress.shown(self._log.trials, len(self._running))
        self._request.watch(summary | named | error | top | progress)
        self._project()
        first = self._log.trials[:_FIRST_FAILURES]
        statuses = [one.ending.status for one in first if one.ending]
        if statuses == ["failed"] * _FIRST_FAILURES:
            raise TrainingError(f"the first {_FIRST_FAILURES} trials have all failed: {ending.error}")

    def _best(self) -> LoggedTrial | None:
        return self._plan.goals.best(self._log.trials)

    def _conclude(self) -> None:
        """Write the best config and the result."""
        trials, best = self._log.trials, self._best()
        if best is not None:
            text = (self._study.path.parent / best.run_id / "config.yaml").read_bytes()
            self._study.write_text(BEST, text)
        counts = [trial.ending.status for trial in trials if trial.ending]
        self._study.write(
            RESULT,
            {
                "status": "completed",
                "study_id": self._study.id,
                "experiment": self._study.path.parent.name,
                "metric": self._plan.metric,
                "mode": self._plan.mode,
                **self._trade_off(),
                "horizon": self._plan.horizon,
                "trials": len(trials),
                "counts": {status: counts.count(status) for status in ("completed", "pruned", "failed")},
                "best": summary_of(best) if best else None,
                "importance": importances(
                    self._plan.space,
                    [_observation(trial, known=True) for trial in trials],
                    self._plan.mode,
                ),
                "digest": digest_of(trials),
                "train_seconds": sum(t.ending.seconds for t in trials if t.ending and t.same_as is None),
            },
        )

    def _project(self, *, end: bool = False) -> None:
        """Write the storage that Optuna reads: the trials before the first one that has not ended."""
        if self._projector.is_due(end=end):
            ended = list(itertools.takewhile(lambda trial: trial.ending is not None, self._log.trials))
            observations = [self._observation(trial, known=True) for trial in ended]
            self._projector.write(frozen(self._plan.space, observations, self._plan.goals.modes), ended)

    def _trade_off(self) -> Json:
        """Return what `result.json` has where there are several metrics, or constraints."""
        goals, trials = self._plan.goals, self._log.trials
        if not goals.measured:
            return {}
        return {
            "metrics": dict(zip(goals.metrics, goals.modes, strict=True)),
            "constraints": list(map(str, goals.constraints)),
            "front": [trial.number for trial in goals.front(trials)],
        }

    def _observation(self, trial: LoggedTrial, *, known: bool) -> Observation:
        """Return what a later trial may know of this one, with all its metrics and constraints."""
        seen, goals = _observation(trial, known=known), self._plan.goals
        if seen.status not in ("completed", "pruned") or trial.ending is None or not goals.measured:
            return seen
        values = goals.values(trial.ending)
        if not values:
            return seen._replace(status="failed")
        return seen._replace(values=values, violations=goals.violations(trial.ending))


def _observation(trial: LoggedTrial, *, known: bool) -> Observation:
    """Return what a later trial may know of this one."""
    if not known or trial.ending is None:
        return Observation(trial.params, "running")
    end = trial.ending
    status: TrialStatus = "failed" if end.value is None and end.status == "completed" else end.status
    return Observation(trial.params, status, end.value, end.curve)


def digest_of(trials: Sequence[LoggedTrial]) -> str:
    """Return the SHA-256 over number, parameters, status, curve and weights of each trial, in order."""
    plain = [
        [t.number, t.params, *([t.ending.status, t.ending.curve, t.ending.digest] if t.ending else [])]
        for t in trials
    ]
    return sha256_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def summary_of(trial: LoggedTrial) -> Json:
    """Return a trial as `result.json` has the best one."""
    assert trial.ending is not None
    return {
        "trial": trial.number,
        "run_id": trial.run_id,
        "value": trial.ending.value,
        "step": trial.ending.step,
        "params": trial.params,
        **({"values": dict(trial.ending.values)} if trial.ending.values else {}),
    }


def rows(folder: Path) -> list[Json]:
    """Return the trials of a study as rows of a table."""
    table = []
    for trial in read_trials(folder):
        end = trial.ending
        table.append(
            {
                "trial": trial.number,
                "status": end.status if end else "running",
                "value": end.value if end else None,
                "step": end.step if end else None,
                "seconds": end.seconds if end else None,
                "run_id": trial.run_id,
                **((end.values if end else None) or {}),
                **trial.params,
                **({"error": end.error} if end and end.error else {}),
            }
        )
    return table
