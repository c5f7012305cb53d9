"""The study that finds which difference of two runs moved a metric; each measurement of it is a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.config import Resolved
from trainwright.engine.signals import Signals, Stopped
from trainwright.errors import InputError, TrainingError, is_from_outside
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import TESTED
from trainwright.reports.why import write_report
from trainwright.require import import_path, import_paths, importing_by
from trainwright.runs.data.differences import in_sentences
from trainwright.runs.objects import Objects
from trainwright.runs.processes.isolation import as_fresh_process
from trainwright.runs.reuse import CompletedRuns, harmful_differences
from trainwright.runs.trust import RunImports
from trainwright.runs.workdir import code_folders, working_in
from trainwright.studies.changed_inputs import check_completed_runs
from trainwright.studies.driver import StudyPlan, drive
from trainwright.studies.study import Json, Study, StudyRequest, StudyView, Trial, open_study
from trainwright.studies.trial_runs import train_trial
from trainwright.studies.why import code
from trainwright.studies.why.answer import document
from trainwright.studies.why.factors import Factor, KeyPath
from trainwright.studies.why.rows import in_words, rows_test
from trainwright.studies.why.search import LOOKS, BudgetSpentError, Changes, Findings, Search
from trainwright.studies.why.sides import Side, changes_between, metric_between, seeds_between

log = logging.getLogger("trainwright")
KIND = "why"
MAX_RUNS = 60
Measurement = tuple[Changes, int]  # the changes, and the seed
MeasuredValue = tuple[Measurement, float | None]
# What a measurement does not need, and what says nothing about the bits.
_QUIET: Mapping[KeyPath, Any] = {("tracking",): [], ("tuning",): None, ("evaluation", "explain"): False}


class Why(StudyView):
    """A read-only view of the study of two runs; each property reads the files again."""

    @property
    def answer(self) -> str | None:
        """The answer in a sentence or two; None before the end."""
        return self.result.get("answer")

    @property
    def verdict(self) -> str | None:
        """`moved`, `none` or `unsettled`; None before the end."""
        return self.result.get("verdict")

    @property
    def moved_by(self) -> list[str]:
        """The changes that moved the metric, the largest first; empty if none stands out from the noise."""
        return [share["name"] for share in self.result.get("shares", []) if share["stands_out"]]

    @property
    def shares(self) -> dict[str, float]:
        """The Shapley share of each change that was not dropped as too small."""
        shares = self.result.get("shares", [])
        return {share["name"]: share["effect"]["mean"] for share in shares if share["effect"]}

    def __repr__(self) -> str:
        return f"<Why {self.id}: {self.answer or self.status}>"


@dataclass(frozen=True)
class WhyRequest:
    """The arguments of a comparison, besides its two runs.

    `metric` is None for the main one of the test split; `max_runs` may be trained; `trust` is as in `load`.
    """

    study: StudyRequest
    metric: str | None = None
    max_runs: int = MAX_RUNS
    trust: bool = False


def why(first: RunDir, second: RunDir, request: WhyRequest) -> Why:
    """Find which difference of two runs moved a metric; see `trainwright.why`."""
    if first.path.resolve() == second.path.resolve():
        raise InputError(f"run {first.id} is given twice: give two runs that differ")
    if first.id == second.id:
        raise InputError(f"{second.path} is a copy of run {first.id}: give two runs that were trained")
    before, after = (Side.of(run, trust=request.trust) for run in (first, second))
    metric = metric_between(before, after, request.metric)
    factors, notes = changes_between(before, after, code_folders(first, trust=request.trust))
    question = {"runs": [first.id, second.id], "metric": metric}
    study = open_study(request.study, first.experiment, KIND, question, completed=True)
    names = ", ".join(factor.name for factor in factors) or "no change, only the seed"
    log.info("what can be substituted: %s; at most %d runs are trained", names, request.max_runs)
    drive(_WhyPlan(study, (before, after), (factors, notes), metric, request))
    return Why(study.path)


class _Measurements:
    """The metric under sets of changes, each measured by a run that is reused or trained.

    Args:
        study: The study that records the runs.
        sides: The run before the changes, and the one after.
        factors: The changes.
        metric: The metric.
        request: The budget, and who watches.
    """

    def __init__(
        self,
        study: Study,
        sides: tuple[Side, Side],
        factors: Sequence[Factor],
        metric: str,
        request: WhyRequest,
    ) -> None:
        self._study, self._sides, self._factors = study, sides, factors
        self._metric, self._request = metric, request
        self._folders: tuple[Path, Path]
        self._completed = [CompletedRuns(side.run.path.parent.parent, side.run.experiment) for side in sides]
        self.results: dict[tuple[Changes, int], Result] = {}
        self.runs: dict[tuple[Changes, int], RunDir] = {}

    @property
    def all_changes(self) -> Changes:
        """The names of all changes."""
        return frozenset(factor.name for factor in self._factors)

    @property
    def trained(self) -> int:
        """The number of runs that were trained for this study."""
        return sum(not run.reused for run in self._study.record.runs)

    def label(self, changes: Changes) -> str:
        """Return the name of a set of changes."""
        return "all" if changes and changes == self.all_changes else "+".join(sorted(changes)) or "none"

    def open(self, stack: ExitStack) -> None:
        """Check out the code, if it is a change."""
        folder = self._sides[0].folder
        self._folders = (folder, folder)
        if any(factor.is_code for factor in self._factors):
            one, other = (
                stack.enter_context(
                    code.checked_out(side.manifest, folder, self._study.path / f"code-{index + 1}")
                )
                for index, side in enumerate(self._sides)
            )
            self._folders = (one, other)
        for side in self._sides:
            self._check_imports(side)

    def _check_imports(self, side: Side) -> None:
        """Refuse what a run's config may not import: the run directory may come from someone else."""
        folders_of_user = code_folders(side.run, trust=self._request.trust)
        if self._folders[0] != self._folders[1] and side.folder not in folders_of_user:
            raise InputError(
                f"the code of run {side.run.id} is in {side.folder}: start from there, or give --trust"
            )
        for folder in dict.fromkeys(self._folders):
            folders = folders_of_user if folder == self._sides[0].folder else [folder, *folders_of_user]
            rule = RunImports(side.run, folders, trusted=self._request.trust, started=side.folder)
            with as_fresh_process(), importing_by(rule), self._working_in(folder):
                for path in import_paths(side.tree.load().config.model_dump()):
                    import_path(path)

    def _working_in(self, folder: Path) -> AbstractContextManager[None]:
        """Work in a folder, and import the user's code from where it may come from."""
        folders_of_user = code_folders(self._sides[0].run, trust=self._request.trust)
        return working_in(
            folder, [folder, *folders_of_user] if folder != self._sides[0].folder else folders_of_user
        )

    def measure(self, changes: Changes, seed: int) -> float | None:
        """Return the metric; None if this config cannot be trained.

        Raises:
            BudgetSpentError: It needs a run, and no more may be trained.
            TrainwrightError: One of the two runs cannot be trained here.
        """
        try:
            result = self._result(changes, seed)
        except (InputError, TrainingError) as error:
            if changes in (frozenset(), self.all_changes) or is_from_outside(error):
                raise
            log.warning("with %s the run fails, and is left out: %s", self.label(changes), error)
            return None
        value = result.metrics.get(self._metric, math.nan)
        if not math.isfinite(value) and changes in (frozenset(), self.all_changes):
            raise InputError(f"{self._metric} is {value} in run {result.run_id}; give another --metric")
        return value if math.isfinite(value) else None

    def seeds_change_nothing(self) -> bool:
        """Return whether every metric of both ends is the same under each seed that was measured."""
        for end in (frozenset(), self.all_changes):
            metrics = [result.metrics for (changes, _), result in self.results.items() if changes == end]
            if len(metrics) < 2 or any(one != metrics[0] for one in metrics):
                return False
        return True

    def _result(self, changes: Changes, seed: int) -> Result:
        chosen = [factor for factor in self._factors if factor.name in changes]
        folder = self._folders[any(factor.is_code for factor in chosen)]
        before, after = self._sides
        quiet = dict(_QUIET) | {("experiment", "seed"): seed, ("experiment", "name"): before.run.experiment}
        placed = {tuple(key.split(".")): value for key, value in before.manifest.placement.items()}
        tree = before.tree.with_changes(after.tree, chosen).with_values(quiet | placed)
        with as_fresh_process(), self._working_in(folder):
            result, run, reused = self._run(
                Trial({"changes": self.label(changes), "seed": seed}, tree.load())
            )
        self.results[changes, seed], self.runs[changes, seed] = result, run
        note = {"reused": True} if reused else {}
        self._request.study.watch(
            {"changes": self.label(changes), "seed": seed, "run_id": run.id, **note}
            | {self._metric: result.metrics.get(self._metric)}
        )
        return result

    def _run(self, trial: Trial) -> tuple[Result, RunDir, bool]:
        """Return the result of a measurement, its run, and whether that was there before."""
        study, resolved = self._study, trial.resolved
        check_completed_runs(study, [trial], self._request.study)
        run = study.run(trial.label)
        if run is None:
            if (known := self._known(resolved, trial)) is not None:
                return known.require_result(), known, True
            if self.trained >= self._request.max_runs:
                raise BudgetSpentError
        request = replace(self._request.study, reuse=False)
        result = train_trial(study, trial, request, self._completed[0])
        if result.status not in TESTED:
            raise Stopped(result.status)
        run = study.run(trial.label)
        assert run is not None, "it was trained"
        return result, run, study.reused(trial.label)

    def _known(self, resolved: Resolved, trial: Trial) -> RunDir | None:
        """Return a completed run with these inputs, and record it as this study's."""
        if (known := self._completed[0].find(resolved, Objects())) is not None:
            self._study.reuse(trial, known)
            return known
        if self._sides[0].run.experiment == self._sides[1].run.experiment:
            return None
        return self._completed[1].find(resolved, Objects())


class _UnknownValueError(Exception):
    """The need for a value that was not measured yet: of these changes, under this seed."""

    def __init__(self, changes: Changes, seed: int) -> None:
        super().__init__(changes, seed)
        self.measurement = (changes, seed)


class _WhyPlan(StudyPlan[Measurement, MeasuredValue | BudgetSpentError]):
    """The measurements that a search asks for, and what they say."""

    write_report = staticmethod(write_report)

    def __init__(
        self,
        study: Study,
        sides: tuple[Side, Side],
        changes: tuple[Sequence[Factor], Sequence[str]],
        metric: str,
        request: WhyRequest,
    ) -> None:
        super().__init__(study)
        self._sides, self._metric, self._request = sides, metric, request
        self._factors, self._notes = changes
        self._measurements = _Measurements(study, sides, self._factors, metric, request)
        self._seeds = seeds_between(*sides, LOOKS[-1])
        self._values: dict[Measurement, float | None] = {}
        self._is_spent = False
        self._findings: Findings

    def begin(self, signals: Signals, stack: ExitStack) -> None:  # noqa: ARG002 - as in `StudyPlan`
        """Check out the code; see `StudyPlan.begin`."""
        self._measurements.open(stack)

    def ask(self) -> Measurement | None:
        """Search with the values that are known, up to the first one that is not; see `StudyPlan.ask`."""
        names, measurements = [factor.name for factor in self._factors], self._measurements
        try:
            self._findings = Search(names, self._seeds, self._known, measurements.seeds_change_nothing).run()
        except _UnknownValueError as unknown:
            return unknown.measurement
        return None

    def _known(self, changes: Changes, seed: int) -> float | None:
        if (changes, seed) in self._values:
            return self._values[changes, seed]
        if self._is_spent:
            raise BudgetSpentError
        raise _UnknownValueError(changes, seed)

    def run(self, measurement: Measurement) -> MeasuredValue | BudgetSpentError:
        """Measure, or return that the budget is spent; see `StudyPlan.run`."""
        try:
            return measurement, self._measurements.measure(*measurement)
        except BudgetSpentError as spent:
            return spent

    def tell(self, outcome: MeasuredValue | BudgetSpentError) -> None:
        """Take a value; see `StudyPlan.tell`."""
        if isinstance(outcome, BudgetSpentError):
            self._is_spent = True
        else:
            measurement, value = outcome
            self._values[measurement] = value

    def conclude(self) -> Json:
        """Return what the search has found; see `StudyPlan.conclude`."""
        return self._document(self._findings)

    def _document(self, findings: Findings) -> Json:
        before, after = self._sides
        found: Json = {}
        has_no_noise = not findings.exact and math.isnan(findings.noise)  # no end under two seeds
        if has_no_noise or findings.verdict == "moved":  # the rows have a noise of their own
            found["rows"] = rows_test(self._sides, self._metric, trust=self._request.trust)
        measured = [
            {
                "changes": sorted(changes),
                "label": self._measurements.label(changes),
                "seed": seed,
                "value": result.metrics.get(self._metric),
                "run_id": self._measurements.runs[changes, seed].id,
            }
            for (changes, seed), result in self._measurements.results.items()
        ]
        answer = document(
            (before.run.id, after.run.id),
            self._metric,
            (before.result.metrics[self._metric], after.result.metrics[self._metric]),
            self._again(),
            self._factors,
            findings,
            self._unsubstituted(),
        )
        if found:
            answer["answer"] += f" {in_words(found['rows'], seeds=not has_no_noise)}"
        return {
            "status": "completed",
            "study_id": self.study.id,
            "experiment": self.study.path.parent.name,
            "trained": self._measurements.trained,
            "max_runs": self._request.max_runs,
            "notes": list(self._notes),
            "data": list(in_sentences(before.run, after.run, trust=self._request.trust)),
            "measured": measured,
            **found,
            **answer,
        }

    def _again(self) -> tuple[float, float] | None:
        """Return the metric of both runs as they are made here and now; None if the budget was too small."""
        values = [
            result.metrics[self._metric]
            for end, side in self._ends()
            if (result := self._measurements.results.get((end, side.seed))) is not None
        ]
        return (values[0], values[1]) if len(values) == 2 else None

    def _ends(self) -> list[tuple[Changes, Side]]:
        return list(zip((frozenset[str](), self._measurements.all_changes), self._sides, strict=True))

    def _unsubstituted(self) -> list[str]:
        """Return what the two runs had that the runs here have not, in words."""
        texts = []
        for end, side in self._ends():
            run = self._measurements.runs.get((end, side.seed))
            if run is None or run.id == side.run.id:
                continue
            now, config = run.require_manifest(), side.tree.load().config
            texts += [
                f"{difference} (run {side.run.id}, and here)"
                for difference in harmful_differences(side.manifest, now, config)
                if difference.input not in ("config", "weights")
            ]
        return texts
