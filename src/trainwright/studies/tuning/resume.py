"""Searches by their names: to resume one, or to train trials of it beside other processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from trainwright.config import Overrides
from trainwright.config.checks import OBJECTS
from trainwright.config.env import names_outside, texts_in
from trainwright.config.normalize import key_meant
from trainwright.config.overrides import keys_of, with_settings
from trainwright.config.resolved import flat_values
from trainwright.config.tuning import SQLITE
from trainwright.engine.signals import STATUS_OF, Signals, Stopped
from trainwright.errors import InputError, RunLockedError
from trainwright.records.tuning_result import SETTINGS
from trainwright.require import import_paths
from trainwright.runs.data.shared import sharing_data
from trainwright.runs.workdir import own_code, working_in
from trainwright.safe_files import read_regular
from trainwright.storage.ownership import foreign_error
from trainwright.studies.study import Study, StudyRequest
from trainwright.studies.tuning.joined_workers import WorkerFolder
from trainwright.studies.tuning.optuna_storage import lacks_password
from trainwright.studies.tuning.plan import FROM, SearchConfig, read_search
from trainwright.studies.tuning.tune import search
from trainwright.studies.tuning.tuning_view import CONFIG, KIND, Tuning, length_so_far
from trainwright.studies.tuning.workers import answer_to

log = logging.getLogger("trainwright")
_LEAD_OUTSIDE = {"extends", "rdzv_endpoint", "address"}  # keys of another file, and of hosts without a scheme
REPEATS = "repeats"  # in the settings of a study: the one that it repeats
MAY_CHANGE = tuple(f"tuning.{key}" for key in ("trials", "max_minutes", "target", "parallel", "storage"))
_POLL_SECONDS = 0.2  # between two looks at whether there is a stint
_ENDED = ("completed", "failed")


def check_search(study: Study, verb: str) -> None:
    """Check that a study is a search, whose config is kept.

    Raises:
        InputError: It is not a search, or `verb` would continue one that repeats another one.
    """
    if study.record.kind != KIND:
        raise InputError(
            f"study {study.id} is not a search; continue it with trainwright {_command(study)} --resume"
        )
    if not (study.path / CONFIG).exists():
        if function := study.record.question.get("function"):
            raise InputError(
                f"study {study.id} is of a Python function, which only its author has; to go on with it: "
                f"trainwright.tune({function}, trials=..., resume=True)"
            )
        raise InputError(
            f"study {study.id} has lost its {CONFIG}, so it cannot {verb} by its name; give its config: "
            "trainwright tune CONFIG --resume"
        )
    if verb != "reproduce" and (repeated := study.settings(SETTINGS).get(REPEATS)):
        raise InputError(
            f"study {study.id} repeats {repeated}: trainwright reproduce {repeated} begins again"
        )


def _command(study: Study) -> str:
    """Return the command that made a study, without `trainwright` itself."""
    kind, question = study.record.kind, study.record.question
    if kind == "why":
        return " ".join(["why", *question["runs"], "--metric", question["metric"]])
    return f"{'cross-validate' if kind == 'cv' else kind} CONFIG"


@contextmanager
def working_for(study: Study) -> Iterator[None]:
    """Work in the directory in which the study was begun, if it is there."""
    folder = Path(study.settings(SETTINGS).get("working_directory", ""))
    usable = folder if folder.is_absolute() and folder.is_dir() else Path.cwd()
    beside = own_code(study.path)
    with working_in(usable, [Path.cwd(), *([beside] if beside else [])], without=study.path):
        yield


def kept_config(study: Study, overrides: Overrides, request: StudyRequest, *, trust: bool) -> SearchConfig:
    """Read the config that a study keeps.

    Unless their number is given, it has as many trials as were asked for last.

    Raises:
        InputError: It names code and is not the user's own, for which nothing is imported, nor are its
            variables and hosts used; its data were objects; or it was changed.
    """
    trusted = trust or study.is_own(CONFIG)
    if not trusted:
        _refuse_outside(study)
    if request.model is None and "objects" in study.record.question:
        raise InputError(
            f"study {study.id} was given a model in Python; give it again: "
            f"trainwright.resume_study({study.id!r}, model=...); the command line cannot"
        )
    asked = read_search(study.path / CONFIG, _with_storage(study, overrides), request)
    asked = replace(asked, trusted=trust)
    question = {key: value for key, value in study.record.question.items() if key != FROM}
    if question != asked.question:
        raise InputError(
            f"{study.path / CONFIG} has changed since study {study.id} was created; put it back, or begin "
            "another study: trainwright tune CONFIG"
        )
    config = asked.base.resolved.config
    if config.data is not None and config.data.type == OBJECTS and request.data is None:
        raise InputError(f"study {study.id} was given data in Python; give them to trainwright.tune again")
    paths = sorted(import_paths([config.model_dump(), asked.tuning.model_dump()]))
    if paths and not trusted:
        raise InputError(
            f"the config of study {study.id} names code ({paths[0]}), which is not imported for a study that "
            "you did not begin here: give the config itself, trainwright tune CONFIG --resume, or --trust"
        )
    if "tuning.trials" in map(key_meant, keys_of(overrides)):
        return asked
    trials = length_so_far(study, asked.trials)
    return replace(asked, tuning=asked.tuning.model_copy(update={"trials": trials}))


def _refuse_outside(study: Study) -> None:
    """Refuse a study that is not the user's own if its config uses variables, or names a file or a host."""
    content = YAML(typ="safe", pure=True).load(read_regular(study.path / CONFIG))
    for key, value in flat_values(content).items():
        leads = value is not None and not _LEAD_OUTSIDE.isdisjoint(key.split("."))
        for text in [str(value)] if leads else texts_in(value):
            if leads or names_outside(text):
                raise foreign_error(study.path, key, text, CONFIG)


def _with_storage(study: Study, overrides: Overrides) -> Overrides:
    """Return overrides that replace a storage whose password was not kept."""
    if "tuning.storage" in keys_of(overrides) or not lacks_password(
        read_regular(study.path / CONFIG).decode(errors="replace")
    ):
        return overrides
    log.warning(
        "the password of tuning.storage was not kept, so Optuna's storage is %s now; give tuning.storage=URL "
        "to trainwright resume, or ${env:PASSWORD} in the config from the start",
        SQLITE,
    )
    return with_settings(overrides, {"tuning.storage": SQLITE})


def resume_study(study: Study, overrides: Overrides, request: StudyRequest, *, trust: bool = False) -> Tuning:
    """Resume a study; see `trainwright.resume_study`."""
    check_search(study, "resume")
    for key in keys_of(overrides):
        if key_meant(key) not in MAY_CHANGE:
            raise InputError(
                f"{key}: a study that goes on keeps its config, but for {', '.join(MAY_CHANGE)}; "
                "search with another config: trainwright tune CONFIG"
            )
    with working_for(study):
        asked = kept_config(study, overrides, request, trust=trust)
        return search(study, asked, request, lifts_limit=study.status == "completed")


@sharing_data()
def work_on(study: Study, request: StudyRequest, *, trust: bool = False) -> Tuning:
    """Do stints of a study until it has ended; see `trainwright.work_study`."""
    check_search(study, "work")
    with working_for(study):
        asked = kept_config(study, {"tuning.parallel": 1}, request, trust=trust)
        while study.status != "completed":
            if study.is_owned:
                _follow(study)
                if not study.is_owned and study.record.status in _ENDED:
                    break
                continue
            try:
                return search(study, asked, request)
            except RunLockedError:
                log.debug("another process leads study %s now", study.id)
    return Tuning(study.path)


def _follow(study: Study) -> None:
    """Do the stints that the leader of a study gives, until the study has no leader any more.

    Raises:
        Stopped: A signal came.
    """
    folder = WorkerFolder(study.path)
    log.info("study %s: this process has joined", study.id)
    try:
        with Signals() as signals:
            while study.is_owned:
                stint = folder.next_stint()
                if stint is None:
                    time.sleep(_POLL_SECONDS)
                    continue
                log.info("trial %d: run %s", stint.trial, stint.runs[0].name)
                answer = answer_to(stint)
                if answer["status"] in STATUS_OF.values():
                    folder.leave_stint()
                    raise Stopped(signals.status or answer["status"])
                folder.answer(answer)
    finally:
        folder.leave(is_led=study.is_owned)
