"""The tuning study: which trials it makes, in which order, and what comes of it.

Job n, a trial or one rung of it, is decided from the results of the jobs up to n - horizon, and from the
parameters of all trials before it, which the sampler sees as running. So the trials do not depend on how many
are trained at once, nor on which of them ends first. Each trial is a run. What was decided is in the log of
the study before it has a consequence, so that a killed study goes on with the same trials.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard import registry
from trainyard.config import Config, Overrides, Resolved
from trainyard.config.tuning import HalvingPruner, TuningConfig
from trainyard.digest import sha256_bytes
from trainyard.engine.signals import Signals, Stopped
from trainyard.errors import ConfigError, InputError, Problem, TrainingError, TrainyardError
from trainyard.evaluation.metrics import mode_of
from trainyard.records.run_dir import RunDir
from trainyard.records.trials import Ending, LoggedJob, LoggedTrial, TrialLog, TrialStatus, read_trials
from trainyard.reports.studies import write_report
from trainyard.runs.cleanup import discard_folder
from trainyard.runs.pruning import prune_paused
from trainyard.runs.run import Run
from trainyard.runs.session import report
from trainyard.runs.wiring import default_threads
from trainyard.samplers.base import Observation, Sampler, Space
from trainyard.samplers.optuna import importances
from trainyard.studies.running import log_warnings_once
from trainyard.studies.study import RESULT, Json, Study, StudyRequest, StudyView, open_study
from trainyard.studies.trials import StudyConfig
from trainyard.studies.tuning.agenda import Agenda, Turn, known_ending
from trainyard.studies.tuning.final import final_run, train_final
from trainyard.studies.tuning.jobs import Job, ending_of, failed
from trainyard.studies.tuning.lengths import agenda_of, with_length
from trainyard.studies.tuning.parts import Parts, check_parts
from trainyard.studies.tuning.space import check_space, read_space
from trainyard.studies.tuning.workers import Executor, InProcess, WorkerProcesses
from trainyard.types import Mode

log = logging.getLogger("trainyard")
KIND = "tune"
BEST = "best.yaml"
_FIRST_FAILURES = 3  # a study whose first trials all fail ends
CONFIG = "search.yaml"  # the config of the search; `config.yaml` would make the folder look like a run
SETTINGS = "settings.json"  # what is fixed when the study is created
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
        """The run of the best trial; None if none has a value."""
        return Run(RunDir(self.path.parent / self.result["best"]["run_id"])) if self._has_best else None

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters of the best trial, by dotted key; empty if none has a value."""
        return dict(self.result["best"]["params"]) if self._has_best else {}

    @property
    def best_config(self) -> Path | None:
        """The config of the best trial, which trains as it is; None if none has a value."""
        return self.path / BEST if self._has_best else None

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
    mode: Mode
    horizon: int
    threads: int

    @property
    def trials(self) -> int:
        """The number of trials, if nothing ends the study early."""
        wanted, size = self.tuning.trials, self.sampler.size
        return min(wanted or size or _DEFAULT_TRIALS, size or wanted or _DEFAULT_TRIALS)


@dataclass(frozen=True)
class Asked:
    """A config that was read for a search: its text, the config of the trials, the options, the space."""

    text: str
    base: StudyConfig
    tuning: TuningConfig
    space: Space

    @property
    def question(self) -> Json:
        """What two studies must share to be the same; one may have more trials than the other."""
        own = self.tuning.model_dump(exclude={"trials", "max_minutes", "target", "parallel"})
        return self.base.question() | {"tuning": json.loads(json.dumps(own))}


def tune(config: Config, overrides: Overrides, request: StudyRequest) -> Tuning:
    """Search for the best values of a config's keys; see `trainyard.tune`."""
    asked = read_question(config, overrides, request)
    name = asked.base.resolved.config.experiment.name
    study = open_study(request, name, KIND, asked.question, completed=True)
    return search(study, asked, request)


def search(study: Study, asked: Asked, request: StudyRequest, before: int | None = None) -> Tuning:
    """Make the trials of a study, or go on with them.

    Args:
        study: Its folder.
        asked: What it is to find out.
        request: The arguments of the study.
        before: The job that is not done any more, nor those after it; None: go on to the end.
    """
    plan = _plan(study, asked.tuning, asked.space, asked.base)
    if not (study.path / CONFIG).exists():
        study.write_text(CONFIG, asked.text.encode())
    _Search(study, plan, asked.base, request, before).run()
    return Tuning(study.path)


def read_question(config: Config, overrides: Overrides, request: StudyRequest) -> Asked:
    """Read the config of a search, and check it.

    Raises:
        InputError: Config, space or data are wrong.
    """
    base = StudyConfig.read(config, overrides, request.runs_dir, objects=request.data is not None)
    text, tuning = base.resolved.dump(), base.resolved.config.tuning
    if tuning is None:
        raise ConfigError([Problem("is missing: it says what to search, as tuning.space", "tuning")])
    base = _for_trials(base, tuning)
    space = read_space(tuning.space)
    if isinstance(tuning.pruner, HalvingPruner):
        base = with_length(base, tuning.pruner, space)
    check_parts(base, tuning)
    check_space(space, base.with_overrides)
    if request.data is not None and tuning.parallel > 1:
        raise InputError(
            f"tuning.parallel: {tuning.parallel} given, but data given as objects stay in this process; "
            "give data.path or data.type, or leave parallel at 1"
        )
    base.resolved.log_notes()
    return Asked(text, base, tuning, space)


def _for_trials(base: StudyConfig, tuning: TuningConfig) -> StudyConfig:
    """Return the config that the trials share: it keeps the models that are best by the study's metric."""
    if not tuning.metric.startswith("val_"):
        raise ConfigError(
            [Problem(f"expected val_loss or val_METRIC, got {tuning.metric!r}", "tuning.metric")]
        )
    if tuning.folds is None and base.excludes("val"):
        raise InputError("there are no validation rows to tune by; give data.split.val or data.val_path")
    return base.with_overrides(
        {"tuning": None, "checkpoint.metric": tuning.metric, "checkpoint.mode": tuning.mode}
    )


def _plan(study: Study, tuning: TuningConfig, space: Space, base: StudyConfig) -> Plan:
    mode = mode_of(tuning.metric) if tuning.mode == "auto" else tuning.mode
    cls = registry.adapter("sampler", tuning.sampler.type)
    sampler = cls(cls.Params(**tuning.sampler.params), space, mode, base.resolved.config.experiment.seed)
    settings = study.settings(SETTINGS) or {
        "working_directory": str(Path.cwd()),
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
    study.write(SETTINGS, settings)
    return Plan(tuning, space, sampler, mode, settings["horizon"], settings["threads"])


class _Search:
    """Makes the trials of a study, and records what comes of them."""

    def __init__(
        self, study: Study, plan: Plan, base: StudyConfig, request: StudyRequest, before: int | None = None
    ) -> None:
        self._study, self._plan, self._base, self._request = study, plan, base, request
        self._before = math.inf if before is None else before
        self._parts = Parts(base, plan.tuning, plan.threads)
        self._log: TrialLog
        self._agenda: Agenda
        self._running: set[int] = set()
        self._began = time.monotonic()

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
            config = self._base.resolved.config
            self._agenda = agenda_of(
                self._plan.tuning, config, self._plan.trials, self._plan.horizon, self._log
            )
            try:
                with Signals() as signals:
                    executor = self._executor(signals)
                    try:
                        self._make_trials(executor)
                        self._train_final(executor)
                    finally:
                        executor.close()
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
            return InProcess(self._request.bundle, self._request.callbacks)
        if self._request.callbacks:
            raise InputError("callbacks stay in this process; give tuning.parallel: 1 with them")
        signals.wake = lambda: None  # the executor looks for them
        return WorkerProcesses(self._plan.tuning.parallel, lambda: signals.status, log.getEffectiveLevel())

    def _make_trials(self, executor: Executor) -> None:
        begun = [trial for trial in self._log.trials if trial.ending is None]
        while True:
            while len(self._running) < executor.slots and (trial := self._next(begun)) is not None:
                if trial.same_as is None:
                    self._running.add(trial.number)
                    executor.submit(self._job(trial))
            self._prune()
            self._copy_endings()
            if not self._running:
                if self._next_turn() is None:
                    return
                continue
            job, status, error = executor.wait()
            self._running.discard(job.number)
            ending = failed(error or status) if status == "failed" else ending_of(job)
            self._end(job.number, ending)

    def _next(self, begun: list[LoggedTrial]) -> LoggedTrial | None:
        """Return the next trial to train: one that was begun before, or another if it can be decided."""
        if begun:
            return begun.pop(0)
        turn = self._next_turn()
        if turn is None:
            return None
        if turn.trial == len(self._log.trials):
            return self._begin(turn)
        self._log.go_on(turn.trial, turn.job)
        return self._log.trials[turn.trial]

    def _next_turn(self) -> Turn | None:
        """Return the next job if it can be decided now, and there is to be one."""
        turn = self._agenda.next(self._log.trials)
        ends = [note["kind"] for note in self._log.notes if note["kind"] in ("time_limit", "go_on")]
        if turn is None or turn.job >= self._before or ends[-1:] == ["time_limit"]:
            return None
        target = self._plan.tuning.target
        if target is not None and any(self._reaches(ending, target) for ending in self._known(turn.job)):
            return None
        limit = self._plan.tuning.max_minutes
        if limit is not None and time.monotonic() - self._began >= 60 * limit:
            self._log.note(kind="time_limit", before=turn.job)
            return None
        return turn

    def _reaches(self, ending: Ending | None, target: float) -> bool:
        value = ending.value if ending else None
        return value is not None and (value <= target if self._plan.mode == "min" else value >= target)

    def _known(self, job: int) -> list[Ending | None]:
        """Return what a job may know of the results of each trial; None: nothing yet."""
        trials = self._log.trials
        return [known_ending(trials, trial, job - self._plan.horizon) for trial in trials]

    def _begin(self, turn: Turn) -> LoggedTrial:
        """Decide a trial, and create its run."""
        number, trials, known = turn.trial, self._log.trials, self._known(turn.job)
        params = self._plan.sampler.propose(number, [*map(_observation, trials, known)])
        jobs = (LoggedJob(turn.job),)
        first = next((trial for trial in trials if trial.params == params and trial.same_as is None), None)
        if first is not None:
            trial = LoggedTrial(number, params, first.run_id, first.number, jobs=jobs)
        else:
            runs = [self._create(resolved).id for resolved in self._parts.of(params)]
            trial = LoggedTrial(number, params, runs[0], jobs=jobs, others=tuple(runs[1:]))
        self._log.begin(trial)
        return trial

    def _create(self, resolved: Resolved) -> RunDir:
        experiment = self._study.path.parent.name
        return RunDir.create(self._request.runs_dir, experiment, resolved.dump(), settings=resolved.settings)

    def _runs(self, trial: LoggedTrial) -> list[Path]:
        return [self._study.path.parent / run_id for run_id in (trial.run_id, *trial.others)]

    @property
    def _objective(self) -> tuple[str, Mode]:
        return self._plan.tuning.metric, self._plan.mode

    def _job(self, trial: LoggedTrial) -> Job:
        curves: dict[str, list[Sequence[tuple[int, float]]]] = {"completed": [], "pruned": []}
        job = trial.jobs[-1].number
        for other, ending in zip(self._log.trials, self._known(job), strict=True):
            if ending is not None and ending.status in curves and other.same_as is None:
                curves[ending.status].append(ending.curve)
        return Job(
            trial.number,
            self._runs(trial),
            self._study.id,
            *self._objective,
            self._plan.tuning.pruner,
            curves,
            self._agenda.until(job),
        )

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
        for number in self._agenda.losers(self._log.trials):
            for run in self._runs(self._log.trials[number]):
                prune_paused(RunDir(run), trackers)
            self._log.prune(number)

    def _train_final(self, executor: Executor) -> None:
        """Train the best configuration once more, where the study asks for it."""
        best = self._best()
        if best is None or not self._parts.has_final:
            return
        path = self._study.path.parent
        run = final_run(path, self._log, best) or self._create(self._parts.final(best, path))
        train_final(executor, Job(best.number, [run.path], self._study.id, *self._objective), self._log)
        self._request.watch({"best_trial": best.number, "run_id": run.id, "status": run.status()})

    def _end(self, number: int, ending: Ending) -> None:
        self._log.end(number, ending)
        trial = self._log.trials[number]
        summary = {"trial": number, "run_id": trial.run_id, "status": ending.status}
        named = {self._plan.tuning.metric: ending.value} if ending.value is not None else {}
        error = {"error": ending.error} if ending.error else {}
        best = self._best()
        self._request.watch(
            summary | named | error | ({"best": best.ending.value} if best and best.ending else {})
        )
        first = self._log.trials[:_FIRST_FAILURES]
        statuses = [one.ending.status for one in first if one.ending]
        if statuses == ["failed"] * _FIRST_FAILURES:
            raise TrainingError(f"the first {_FIRST_FAILURES} trials have all failed: {ending.error}")

    def _best(self) -> LoggedTrial | None:
        return best_of(self._log.trials, self._plan.mode)

    def _conclude(self) -> None:
        """Write the best config and the result."""
        trials, best = self._log.trials, self._best()
        final = final_run(self._study.path.parent, self._log, best) if best is not None else None
        if best is not None:
            run = final or RunDir(self._study.path.parent / best.run_id)
            self._study.write_text(BEST, run.config_file.read_bytes())
        counts = [trial.ending.status for trial in trials if trial.ending]
        self._study.write(
            RESULT,
            {
                "status": "completed",
                "study_id": self._study.id,
                "experiment": self._study.path.parent.name,
                "metric": self._plan.tuning.metric,
                "mode": self._plan.mode,
                "horizon": self._plan.horizon,
                "trials": len(trials),
                "counts": {status: counts.count(status) for status in ("completed", "pruned", "failed")}
                | ({"paused": counts.count("paused")} if "paused" in counts else {}),
                "best": _summary(best, final) if best else None,
                "importance": importances(
                    self._plan.space, [_observation(trial, trial.ending) for trial in trials], self._plan.mode
                ),
                "digest": digest_of(trials),
                "train_seconds": sum(t.ending.seconds for t in trials if t.ending and t.same_as is None),
            },
        )


def _observation(trial: LoggedTrial, end: Ending | None) -> Observation:
    """Return what a later trial may know of this one; a paused one is like one that was pruned there."""
    if end is None:
        return Observation(trial.params, "running")
    status: TrialStatus = "pruned" if end.status == "paused" else end.status
    status = "failed" if end.value is None and status == "completed" else status
    return Observation(trial.params, status, end.value, end.curve)


def best_of(trials: Sequence[LoggedTrial], mode: Mode) -> LoggedTrial | None:
    """Return the trial with the best value, the first of equals; None if none has a value."""
    sign = 1.0 if mode == "min" else -1.0
    valued = [
        (sign * trial.ending.value, trial.number)
        for trial in trials
        if trial.ending is not None and trial.ending.value is not None
    ]
    return trials[min(valued)[1]] if valued else None


def digest_of(trials: Sequence[LoggedTrial]) -> str:
    """Return the SHA-256 over number, parameters, status, curve and weights of each trial, in order."""
    plain = [
        [t.number, t.params, *([t.ending.status, t.ending.curve, t.ending.digest] if t.ending else [])]
        for t in trials
    ]
    return sha256_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def _summary(trial: LoggedTrial, final: RunDir | None) -> Json:
    """Return the best trial, with the run that was trained once more, if one was, in the place of its own."""
    assert trial.ending is not None
    return {
        "trial": trial.number,
        "run_id": trial.run_id if final is None else final.id,
        "value": trial.ending.value,
        "step": trial.ending.step,
        "params": trial.params,
        **({"digest": final.require_result().digest} if final is not None else {}),
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
                **trial.params,
                **({"error": end.error} if end and end.error else {}),
            }
        )
    return table
