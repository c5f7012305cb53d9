"""A search as its files tell it: a view of it, how long it is to be, and the command that resumes it."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from trainwright.errors import InputError
from trainwright.numerals import number
from trainwright.records.listing import runs_folder
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, LoggedTrials, read_log, read_trials, status_of
from trainwright.records.tuning_result import TuningResult, metrics_of
from trainwright.require import import_paths
from trainwright.runs.run import Run
from trainwright.safe_files import read_regular
from trainwright.storage.ownership import SEARCH_CONFIG, is_own
from trainwright.studies.study import Json, Study, StudyView

KIND = "tune"
BEST = "best.yaml"
CONFIG = SEARCH_CONFIG
FORK = "fork"  # the kind of a note: a trial began with the state of another one
log = logging.getLogger("trainwright")
_WORDS = re.compile(r"[^\s'\",\[\]{}]+")


class TrialSummary(NamedTuple):
    """A trial: its parameters, and how it has ended.

    Attributes:
        number: Its number, from 0 on.
        status: As it has ended; before that, the status of its run.
        value: The best value of the first metric; None if there is none.
        step: The step of this value.
        seconds: The training time.
        run_id: Its run; that of the first fold, if there are several; empty if a Python function was tuned.
        params: Its parameters, by dotted key.
        values: Where the study has several metrics or constraints: these.
        error: Why it has failed.
    """

    number: int
    status: str
    value: float | None
    step: int | None
    seconds: float | None
    run_id: str
    params: Json
    values: Mapping[str, float] = MappingProxyType({})
    error: str | None = None

    def to_json(self) -> Json:
        """Return it as a JSON document, without `values` and `error` where there are none."""
        document = self._asdict() | {"values": dict(self.values)}
        return {key: value for key, value in document.items() if value or key not in ("values", "error")}

    def to_row(self) -> Json:
        """Return it as a row of a table, with a column for each parameter."""
        head = {"trial": self.number, "status": self.status, "value": self.value, "step": self.step}
        head |= {"seconds": self.seconds, "run_id": self.run_id, **self.values, **self.params}
        return head | ({"error": self.error} if self.error else {})


class Tuning(StudyView):
    """A read-only view of a tuning study's folder; each property reads the files again."""

    @property
    def trials(self) -> Any:
        """The trials as a data frame: number, status, value, step, seconds, run id, and the parameters."""
        import pandas as pd

        return pd.DataFrame(rows(self.path))

    def trials_dataframe(self) -> Any:
        """Return `trials`; a name that users of Optuna know."""
        return self.trials

    @property
    def best_trial(self) -> TrialSummary | None:
        """The best trial; None if none has a value."""
        best = self.typed_result.best
        return trials_of(self.path)[best.trial] if best else None

    @property
    def best_trials(self) -> list[TrialSummary]:
        """The trials of the Pareto front; with one metric, the best one."""
        result = self.typed_result
        front = result.front or ([result.best.trial] if result.best else [])
        trials = trials_of(self.path) if front else []
        return [trials[number] for number in front]

    @property
    def best_run(self) -> Run | None:
        """The run of the best trial; None if none has a value, or a Python function was tuned."""
        best = self.typed_result.best
        return Run(RunDir(self.path.parent / best.run_id)) if best and best.run_id else None

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters of the best trial, by dotted key; empty if none has a value."""
        best = self.typed_result.best
        return dict(best.params) if best else {}

    @property
    def best_config(self) -> Path | None:
        """The config of the best trial, which trains as it is; None where there is no best run."""
        return self.path / BEST if self.best_run is not None else None

    @property
    def best_value(self) -> float | None:
        """The value of the best trial, by the first metric; None if none has one."""
        best = self.typed_result.best
        return best.value if best else None

    @property
    def digest(self) -> str | None:
        """The digest over all trials: two studies with the same one made the same trials."""
        return self.typed_result.digest

    @property
    def typed_result(self) -> TuningResult:
        """The content of `result.json` as a record; before the end, metric and mode alone are set."""
        result = TuningResult.of(self.result)
        first = next(iter(metrics_of(self.path).items()), None)
        if result.mode is None and first is not None:
            return result.model_copy(update={"metric": first[0], "mode": first[1]})
        return result

    def __repr__(self) -> str:
        result = self.typed_result
        value = f": {result.metric}={number(result.best.value, zeros=False)}" if result.best else ""
        return f"<Tuning {self.path.parent.name}/{self.id} {self.status}{value}>"


def trials_of(folder: Path) -> list[TrialSummary]:
    """Return what the log of a study says of its trials."""
    return [_summary(trial, folder) for trial in read_trials(folder)]


def _summary(trial: LoggedTrial, folder: Path) -> TrialSummary:
    number, run_id, params, end = trial.number, trial.run_id, trial.params, trial.ending
    if end is None:
        return TrialSummary(number, status_of(trial, folder), None, None, None, run_id, params)
    result = (end.status, end.value, end.step, end.seconds)
    return TrialSummary(number, *result, run_id, params, end.values or {}, end.error)


def rows(folder: Path) -> list[Json]:
    """Return the trials of a study as rows of a table."""
    return [trial.to_row() for trial in trials_of(folder)]


def counted(log: LoggedTrials) -> list[LoggedTrial]:
    """Return the trials of a study without those in whose place a fork has begun."""
    replaced = {note["instead_of"] for note in log.notes if note["kind"] == FORK}
    return [trial for trial in log.trials if trial.number not in replaced]


def length_so_far(study: Study, planned: int) -> int:
    """Return how many trials a search is to have: as many as was said last, and at least what it has.

    Args:
        study: The search.
        planned: How many it was to have in the beginning.
    """
    logged = read_log(study.path)
    return max(planned, len(counted(logged)), *logged.lengths())


@contextmanager
def going_on(study: Study, wanted: int, more: str) -> Iterator[None]:
    """Go on with a search, if it is not to have fewer trials than it has; say so if it has ended.

    Args:
        study: The search; a new one has no trials.
        wanted: How many trials it is to have.
        more: How to get more of them, in words.

    Raises:
        InputError: It has more trials already.
    """
    before = read_log(study.path)
    made = len(counted(before))
    if made > wanted:
        raise InputError(
            f"study {study.id} has {made} trials, and cannot have {wanted}: give {made} or more, or begin "
            "another study"
        )
    was_completed = study.status == "completed"
    yield
    if was_completed and len(read_log(study.path).trials) == len(before.trials):
        log.info("study %s is completed: there is nothing left to do; %s", study.id, more)


def resume_command(study: Path, *options: str) -> str:
    """Return the command that goes on with a search.

    Args:
        study: Its folder.
        options: Options to put after its name.
    """
    runs, config = study.parent.parent, study / CONFIG
    words = ["trainwright", "resume", study.name]
    if runs.absolute() != runs_folder().absolute():
        words += ["--runs-dir", str(runs)]
    if config.exists() and not is_own(study, CONFIG):
        text = read_regular(config).decode(errors="replace")
        words += ["--trust"] if any(import_paths(_WORDS.findall(text))) else []
    return shlex.join([*words, *options])
