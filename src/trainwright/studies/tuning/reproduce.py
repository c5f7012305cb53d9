"""The reproduction of a search: it is made again, and compared trial by trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.engine.signals import Stopped
from trainwright.errors import CheckpointError, InputError
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL
from trainwright.records.trials import LENGTH, LoggedTrial, TrialLog, read_log, read_trials
from trainwright.records.tuning_result import SETTINGS
from trainwright.runs.reproduce import Reproduction, Verdict, compare_bits
from trainwright.studies.study import Json, Study, StudyRequest
from trainwright.studies.tuning.plan import RECORDED
from trainwright.studies.tuning.resume import REPEATS, check_search, kept_config, working_for
from trainwright.studies.tuning.sampling import EARLIER
from trainwright.studies.tuning.tune import search
from trainwright.studies.tuning.tuning_view import KIND, Tuning, resume_command


@dataclass(frozen=True)
class StudyReproduction:
    """The answer of `reproduce` for a study.

    It is `identical` if all trials are, and all that their runs hold; `incomplete` if nothing differs, but
    not all could be compared: `uncompared` says what, and why. `trial` is the number of the first trial that
    differs, `what` says how, and `run` compares its runs, if both have ended.
    """

    verdict: Verdict
    original: str
    repetition: str
    digests: tuple[str | None, str | None]
    trials: tuple[int, int]
    trial: int | None = None
    what: str | None = None
    run: Reproduction | None = None
    uncompared: Sequence[str] = ()

    @property
    def complete(self) -> bool:
        """True if everything could be compared."""
        return not self.uncompared

    def to_json(self) -> Json:
        """Return the answer as JSON holds it."""
        return {
            "verdict": self.verdict,
            "complete": self.complete,
            "original": self.original,
            "repetition": self.repetition,
            "digest": {"original": self.digests[0], "repetition": self.digests[1]},
            "trials": {"original": self.trials[0], "repetition": self.trials[1]},
            "first_trial": self.trial,
            "difference": self.what,
            "run": self.run.to_json() if self.run else None,
            "uncompared": list(self.uncompared),
        }


def reproduce_study(study: Study, request: StudyRequest, *, trust: bool = False) -> StudyReproduction:
    """Make all trials of a study again, and compare them; see `trainwright.reproduce_study`."""
    check_search(study, "reproduce")
    if study.status != "completed":
        raise InputError(f"study {study.id} is {study.status}; resume it first: {resume_command(study.path)}")
    if problems := study.problems():
        raise CheckpointError(f"study {study.id} cannot be compared: {problems[0]}")
    with working_for(study):
        asked = kept_config(study, (), request, trust=trust)
        if asked.tuning.tuner is not None:
            raise InputError(
                f"study {study.id} was decided by {asked.tuning.tuner.type}, from whatever "
                "ended first, so it is not a function of its config; each trial is: trainwright reproduce RUN"
            )
        trials = read_trials(study.path)
        for run in _runs(study.path, trials):
            if run.status() in FINAL:
                run.require_result()  # what could not be compared afterwards is not trained for
        again = _copy(study)
        free = asked.tuning.model_copy(
            update={"trials": len(trials), "max_minutes": None, "target": None}  # these are in `before`
        )
        before = max((stint.number for trial in trials for stint in trial.stints), default=-1) + 1
        repeated = search(again, replace(asked, tuning=free), request, before)
    if repeated.status in ("preempted", "interrupted"):
        raise Stopped(repeated.status)
    return compare_studies(Tuning(study.path), repeated)


def compare_studies(original: Tuning, repetition: Tuning) -> StudyReproduction:
    """Compare two studies trial by trial."""
    before, now = read_trials(original.path), read_trials(repetition.path)
    number, what = first_difference(before, now) or (None, None)
    best = [one.typed_result.best for one in (original, repetition)]
    final = [None if one is None else one.digest for one in best]
    if number is None and final[0] != final[1]:
        what = f"the best configuration, trained once more: digest {final[0]}, then {final[1]}"
    run, uncompared = None, list[str]()
    for trial, first, then in _pairs(original, repetition, before, now):
        if what is not None and trial != number:
            continue
        label = "the best configuration" if trial is None else f"trial {trial}"
        statuses = {first.status(), then.status()}
        if not (first.config_file.exists() and then.config_file.exists()):
            gone = first if not first.config_file.exists() else then
            uncompared.append(f"{label} not compared: run {gone.id} was deleted")
        elif statuses <= {*FINAL}:
            compared = compare_bits(first, then)
            uncompared += [f"{label}: {reason}" for reason in compared.uncompared]
            if compared.verdict == "different" or trial == number:
                run = run or compared
            if compared.verdict == "different" and what is None:
                number = trial
                what = (
                    "the runs differ" if trial is not None else f"{label}, trained once more: the runs differ"
                )
        elif statuses != {"failed"}:  # of what failed, the log has all that there is to compare
            uncompared.append(
                f"{label} not compared: run {first.id} is {first.status()}, {then.id} is {then.status()}"
            )
    verdict: Verdict = "identical" if not uncompared else "incomplete"
    return StudyReproduction(
        verdict if what is None else "different",
        original.id,
        repetition.id,
        (original.digest, repetition.digest),
        (len(before), len(now)),
        number,
        what,
        run,
        uncompared,
    )


def _pairs(
    original: Tuning, repetition: Tuning, before: Sequence[LoggedTrial], now: Sequence[LoggedTrial]
) -> Iterator[tuple[int | None, RunDir, RunDir]]:
    """Yield each trial with a run and the run that repeats it; a trial has a run for each fold.

    The run of the best configuration that was trained once more comes last, as trial None.
    """
    for first, then in zip(before, now, strict=False):
        if first.same_as is None and then.same_as is None:
            for one, other in zip(
                _runs(original.path, [first]), _runs(repetition.path, [then]), strict=False
            ):
                yield first.number, one, other
    best = [study.typed_result.best for study in (original, repetition)]
    if best[0] is not None and best[1] is not None and best[0].digest and best[1].digest:
        yield (
            None,
            RunDir(original.path.parent / best[0].run_id),
            RunDir(repetition.path.parent / best[1].run_id),
        )


def _runs(folder: Path, trials: Sequence[LoggedTrial]) -> Iterator[RunDir]:
    """Yield the runs of some trials of the study in a folder."""
    for trial in trials:
        for run_id in (trial.run_id, *trial.others) if trial.run_id else ():
            yield RunDir(folder.parent / run_id)


def first_difference(before: Sequence[LoggedTrial], now: Sequence[LoggedTrial]) -> tuple[int, str] | None:
    """Return the number of the first trial that differs, and what differs; None if none does."""
    for first, then in zip(before, now, strict=False):
        if (what := next(_differences(first, then), None)) is not None:
            return first.number, what
    if len(before) != len(now):
        return min(len(before), len(now)), f"{len(before)} trials, then {len(now)}"
    return None


def _differences(first: LoggedTrial, then: LoggedTrial) -> Iterator[str]:
    for key in dict.fromkeys([*first.params, *then.params]):
        values = [repr(one.params[key]) if key in one.params else "none" for one in (first, then)]
        if values[0] != values[1]:
            yield f"{key}: {values[0]}, then {values[1]}"
    if first.ending is None or then.ending is None:
        if first.ending != then.ending:
            yield "one of the two has not ended"
        return
    curves = dict(first.ending.curve), dict(then.ending.curve)
    for step in sorted({*curves[0], *curves[1]}):
        pair = [repr(curve.get(step)) for curve in curves]
        if pair[0] != pair[1]:
            yield f"the metric at step {step}: {pair[0]}, then {pair[1]}"
    for name in ("status", "value", "digest"):
        pair = [repr(getattr(one, name)) for one in (first.ending, then.ending)]
        if pair[0] != pair[1]:
            yield f"{name}: {pair[0]}, then {pair[1]}"


def _copy(study: Study) -> Study:
    """Create the folder of a repetition, with all that was fixed when the study was created or went on."""
    question: dict[str, Any] = study.record.question | {REPEATS: study.id}
    again = Study.create(study.path.parent.parent, study.path.parent.name, KIND, question)
    logged = read_log(study.path)
    recorded = [trial.running for trial in logged.trials]
    order = {RECORDED: recorded} if all(one is not None for one in recorded) else {}
    again.write(SETTINGS, study.settings(SETTINGS) | {REPEATS: study.id} | order)
    if earlier := study.settings(EARLIER):
        again.write(EARLIER, earlier)
    trial_log = TrialLog(again.path)
    for length in logged.lengths():
        trial_log.note(kind=LENGTH, trials=length)
    trial_log.close()
    return again
