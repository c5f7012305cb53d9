"""Go on with a tuning study by its name, and prove one by making it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainyard.config import Overrides
from trainyard.config.checks import OBJECTS
from trainyard.config.overrides import keys_of, with_settings
from trainyard.config.tuning import SQLITE
from trainyard.engine.signals import Stopped
from trainyard.errors import InputError
from trainyard.records.run_dir import RunDir
from trainyard.records.status import FINAL
from trainyard.records.trials import GO_ON, LoggedTrial, TrialLog, read_log, read_trials
from trainyard.require import import_paths
from trainyard.runs.reproduce import Reproduction, compare_bits
from trainyard.runs.workdir import working_in
from trainyard.studies.study import Json, Study, StudyRequest
from trainyard.studies.tuning.earlier import FILE as EARLIER
from trainyard.studies.tuning.question import FROM, RECORDED, SETTINGS, Asked, read_question
from trainyard.studies.tuning.storage import lacks_password
from trainyard.studies.tuning.tune import search
from trainyard.studies.tuning.tuner_checks import CONFIG
from trainyard.studies.tuning.view import KIND, Tuning

log = logging.getLogger("trainyard")
MAY_CHANGE = tuple(f"tuning.{key}" for key in ("trials", "max_minutes", "target", "parallel", "storage"))
_REPEATS = "repeats"  # the study that one repeats, in its settings


def resume_study(study: Study, overrides: Overrides, request: StudyRequest, *, trust: bool = False) -> Tuning:
    """Go on with a study; see `trainyard.resume_study`."""
    check_search(study, "resume")
    for key in keys_of(overrides):
        if key not in MAY_CHANGE:
            raise InputError(
                f"{key}: a study that goes on keeps its config, but for {', '.join(MAY_CHANGE)}; "
                "search with another config: trainyard tune CONFIG"
            )
    with working_for(study):
        asked = asked_of(study, overrides, request, trust=trust)
        if study.status == "completed":
            _lift_time_limit(study)
        return search(study, asked, request)


@dataclass(frozen=True)
class StudyReproduction:
    """The answer of `reproduce` for a study.

    `trial` is the number of the first trial that differs, `what` says how, and `run` compares its runs, if
    both have ended.
    """

    verdict: Literal["identical", "different"]
    original: str
    repetition: str
    digests: tuple[str | None, str | None]
    trials: tuple[int, int]
    trial: int | None = None
    what: str | None = None
    run: Reproduction | None = None

    def to_json(self) -> Json:
        """Return the answer as JSON holds it."""
        return {
            "verdict": self.verdict,
            "original": self.original,
            "repetition": self.repetition,
            "digest": {"original": self.digests[0], "repetition": self.digests[1]},
            "trials": {"original": self.trials[0], "repetition": self.trials[1]},
            "first_trial": self.trial,
            "difference": self.what,
            "run": self.run.to_json() if self.run else None,
        }


def reproduce_study(study: Study, request: StudyRequest, *, trust: bool = False) -> StudyReproduction:
    """Make all trials of a study again, and compare them; see `trainyard.reproduce_study`."""
    check_search(study, "reproduce")
    if study.status != "completed":
        raise InputError(f"study {study.id} is {study.status}; resume it first: trainyard resume {study.id}")
    with working_for(study):
        asked = asked_of(study, (), request, trust=trust)
        if asked.tuning.tuner is not None:
            raise InputError(
                f"study {study.id} was decided by {asked.tuning.tuner.type}, from whatever "
                "ended first, so it is not a function of its config; each trial is: trainyard reproduce RUN"
            )
        trials, notes = read_log(study.path)
        again = _copy(study, notes)
        free = asked.tuning.model_copy(
            update={"trials": len(trials), "max_minutes": None, "target": None}  # these are in `before`
        )
        before = max((job.number for trial in trials for job in trial.jobs), default=-1) + 1
        repeated = search(again, replace(asked, tuning=free), request, before)
    if repeated.status in ("preempted", "interrupted"):
        raise Stopped(repeated.status)
    return compare_studies(Tuning(study.path), repeated)


def compare_studies(original: Tuning, repetition: Tuning) -> StudyReproduction:
    """Compare two studies trial by trial."""
    before, now = read_trials(original.path), read_trials(repetition.path)
    number, what = first_difference(before, now) or (None, None)
    final = [(one.result.get("best") or {}).get("digest") for one in (original, repetition)]
    if number is None and final[0] != final[1]:
        what = f"the best configuration, trained once more: digest {final[0]}, then {final[1]}"
    run = None
    if number is not None and number < min(len(before), len(now)):
        first = RunDir(original.path.parent / before[number].run_id)
        then = RunDir(repetition.path.parent / now[number].run_id)
        if first.status() in FINAL and then.status() in FINAL:
            run = compare_bits(first, then)
    return StudyReproduction(
        "identical" if what is None else "different",
        original.id,
        repetition.id,
        (original.digest, repetition.digest),
        (len(before), len(now)),
        number,
        what,
        run,
    )


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


def check_search(study: Study, verb: str) -> None:
    """Check that a study is a search, whose config is kept.

    Raises:
        InputError: It is not, or it repeats another one and `verb` is to go on with it.
    """
    if study.record.kind != KIND:
        raise InputError(
            f"study {study.id} is not a search: trainyard {_command(study)} --resume goes on with it"
        )
    if not (study.path / CONFIG).exists():
        raise InputError(
            f"study {study.id} has no {CONFIG}, as earlier versions of Trainyard kept none, so it cannot "
            f"{verb} by its name; give its config: trainyard tune CONFIG --resume"
        )
    if verb != "reproduce" and (repeated := study.settings(SETTINGS).get(_REPEATS)):
        raise InputError(f"study {study.id} repeats {repeated}: trainyard reproduce {repeated} begins again")


def _command(study: Study) -> str:
    """Return the command that made a study, without what leads to `trainyard`."""
    kind, question = study.record.kind, study.record.question
    if kind == "why":
        return " ".join(["why", *question["runs"], "--metric", question["metric"]])
    return f"{'cross-validate' if kind == 'cv' else kind} CONFIG"


@contextmanager
def working_for(study: Study) -> Iterator[None]:
    """Work in the directory in which the study was begun, if it is there."""
    folder = Path(study.settings(SETTINGS).get("working_directory", ""))
    with working_in(folder if folder.is_absolute() and folder.is_dir() else Path.cwd(), [Path.cwd()]):
        yield


def asked_of(study: Study, overrides: Overrides, request: StudyRequest, *, trust: bool) -> Asked:
    """Read the config that a study keeps.

    Raises:
        InputError: It names code, which is not imported for a folder that may come from someone else; its
            data were objects; or it was changed.
    """
    asked = read_question(study.path / CONFIG, _with_storage(study, overrides), request)
    question = {key: value for key, value in study.record.question.items() if key != FROM}
    if asked.question != question:
        raise InputError(
            f"{study.path / CONFIG} is not what study {study.id} was asked any more; put it back, or begin "
            "another study: trainyard tune CONFIG"
        )
    config = asked.base.resolved.config
    if config.data is not None and config.data.type == OBJECTS and request.data is None:
        raise InputError(f"study {study.id} was given data in Python; give them to trainyard.tune again")
    paths = sorted(import_paths([config.model_dump(), asked.tuning.model_dump()]))
    if paths and not trust:
        raise InputError(
            f"the config of study {study.id} names code ({paths[0]}), which is not imported from a study's "
            "folder: give the config itself, trainyard tune CONFIG --resume, or --trust"
        )
    return asked


def _with_storage(study: Study, overrides: Overrides) -> Overrides:
    """Return the overrides with a storage that can be had: a password in clear text was not kept."""
    if "tuning.storage" in keys_of(overrides) or not lacks_password((study.path / CONFIG).read_text()):
        return overrides
    log.warning(
        "the password of tuning.storage was not kept, so Optuna's storage is %s now; give tuning.storage=URL "
        "to trainyard resume, or ${env:PASSWORD} in the config from the start",
        SQLITE,
    )
    return with_settings(overrides, {"tuning.storage": SQLITE})


def _lift_time_limit(study: Study) -> None:
    """Let a study go on that ended by its time limit: it has as many minutes again."""
    with study.owned():
        trial_log = TrialLog(study.path)
        if trial_log.is_over_time:
            trial_log.note(kind=GO_ON)
        trial_log.close()


def _copy(study: Study, notes: Sequence[Json]) -> Study:
    """Create the folder of a repetition, with all that was fixed when the study was created or went on."""
    question: dict[str, Any] = study.record.question | {_REPEATS: study.id}
    again = Study.create(study.path.parent.parent, study.path.parent.name, KIND, question)
    recorded = [trial.running for trial in read_trials(study.path)]
    order = {RECORDED: recorded} if all(one is not None for one in recorded) else {}
    again.write(SETTINGS, study.settings(SETTINGS) | {_REPEATS: study.id} | order)
    if earlier := study.settings(EARLIER):
        again.write(EARLIER, earlier)
    trial_log = TrialLog(again.path)
    for note in notes:
        if note["kind"] == "trials":
            trial_log.note(**note)
    trial_log.close()
    return again
