"""A stint: one trial to train, to its end or up to a rung. It is sent to the process that trains it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter

from trainwright.config import Resolved
from trainwright.config.tuning import HalvingPruner, NoPruner, Pruner
from trainwright.digest import sha256_bytes
from trainwright.engine.outside import VerdictFunction
from trainwright.engine.rules import TrainingShare
from trainwright.engine.signals import STATUS_OF, Stopped
from trainwright.errors import (
    DataError,
    InputError,
    TrainingError,
    TrainwrightError,
    is_from_outside,
    is_of_disks,
)
from trainwright.records.journal import evaluations, number, read
from trainwright.records.manifest import Parent
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL, Ended
from trainwright.records.trials import Ending
from trainwright.runs.attempt import run_attempt
from trainwright.runs.objects import Objects
from trainwright.runs.processes.isolation import as_fresh_process
from trainwright.runs.recorded_inputs import changed_since
from trainwright.runs.request import Request
from trainwright.runs.run_config import read_config, usable_config
from trainwright.runs.trust import of_own_config
from trainwright.runs.wiring import load_data
from trainwright.storage.ownership import is_own
from trainwright.studies.tuning.pruning import Curve, pruning_rule
from trainwright.studies.tuning.tuning_view import resume_command
from trainwright.trackers.feed import send_rest
from trainwright.types import Mode

log = logging.getLogger("trainwright")
_POLL_SECONDS = 0.05  # between two checks whether a run is free
_WARN_SECONDS = 5.0  # after which the user is told what is waited for
_PLAIN = ("study_id", "metric", "mode", "curves", "until", "alike", "searches_data", "allow_change", "tested")
_PRUNER: TypeAdapter[Pruner] = TypeAdapter(Pruner)


@dataclass(frozen=True)
class Stint:
    """A trial to train: its runs, one after the other.

    Attributes:
        trial: The number of the trial.
        runs: The folders of its runs.
        study_id: The id of the study.
        metric: The metric that the pruner judges.
        mode: Whether the lowest or the highest value is best.
        pruner: The options of the pruner.
        curves: The curves of other trials that the pruner may know, by status.
        until: The share of the training after which the trial pauses; None: it trains to the end.
        alike: The ids of runs that have the inputs which each of the runs must have, as far as there are any.
        searches_data: Whether the trials of the study have different data.
        allow_change: Accept changed inputs.
        configs: The configs of runs that this process has just created, by run id; another process reads
            them from their files.
        trusted: Whether the user trusts the study, which may not be their own.
        tested: Whether the runs are evaluated on the test split: no trial is, but the last training is.
    """

    trial: int
    runs: Sequence[Path]
    study_id: str
    metric: str
    mode: Mode
    pruner: Pruner = field(default_factory=NoPruner)
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    until: TrainingShare | None = None
    alike: Sequence[str | None] = ()
    searches_data: bool = False
    allow_change: bool = False
    configs: Mapping[str, Resolved] = field(default_factory=dict)
    trusted: bool = False
    tested: bool = False

    def alike_of(self, run: RunDir) -> RunDir | None:
        """Return the run whose inputs one of the runs must have."""
        known = dict(zip((path.name for path in self.runs), self.alike, strict=False)).get(run.id)
        return RunDir(run.path.parent / known) if known else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        plain = {"number": self.trial} | {name: getattr(self, name) for name in _PLAIN}
        # Another process may be on a machine without this user's key.
        trusted = self.trusted or all(map(is_own, self.runs))
        paths = {"runs": [str(run) for run in self.runs], "pruner": self.pruner.model_dump()}
        return plain | paths | {"trusted": trusted}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Stint:
        """Read what `to_json` returned."""
        read = {
            "trial": plain["number"],
            "runs": [Path(run) for run in plain["runs"]],
            "pruner": _PRUNER.validate_python(plain["pruner"]),
            "trusted": plain["trusted"],
        }
        until = plain["until"] and tuple(plain["until"])
        return Stint(**{**{name: plain[name] for name in _PLAIN}, **read, "until": until})


Judge = Callable[[Stint, RunDir], VerdictFunction | None]


def no_objects(_: Resolved) -> Objects:
    """Return no objects: the config names all."""
    return Objects()


def train(
    stint: Stint,
    given: Callable[[Resolved], Objects] = no_objects,
    judge: Judge | None = None,
) -> str:
    """Train the runs of a stint, or continue them, each as a fresh process would.

    Args:
        stint: The stint.
        given: Returns what a run is given in Python.
        judge: Returns the function that judges a run, instead of the stint's pruner.

    Returns:
        How the last run has ended, or the one that a signal ended; `paused` if any has paused.

    Raises:
        TrainwrightError: A run cannot be trained.
        Stopped: A signal came before the first step.
    """
    statuses: list[str] = []
    for path in stint.runs:
        verdict = (judge or _pruner_verdict)(stint, RunDir(path))
        statuses.append(_train_run(stint, RunDir(path), given, verdict))
        if statuses[-1] in STATUS_OF.values():
            break
    return "paused" if "paused" in statuses[:-1] and statuses[-1] == "completed" else statuses[-1]


class StintOutcome(NamedTuple):
    """The end of the attempt of a stint: a status of runs, or `failed` with an error."""

    stint: Stint
    status: str
    error: str | None = None


def do(
    stint: Stint,
    given: Callable[[Resolved], Objects] = no_objects,
    judge: Judge | None = None,
) -> StintOutcome:
    """Do a stint in this process; see `train`.

    Raises:
        InputError, TrainingError: The trial cannot be trained for now, which is no result of it.
        Stopped: A signal came.
    """
    try:
        status = train(stint, given, judge)
    except (TrainwrightError, OSError) as error:
        return failed_outcome(stint, error, given)
    if status in STATUS_OF.values():
        raise Stopped(cast("Ended", status))
    return StintOutcome(stint, status)


def _train_run(
    stint: Stint,
    run: RunDir,
    given: Callable[[Resolved], Objects],
    verdict: VerdictFunction | None,
) -> str:
    _wait_for_owner(run)
    if (status := run.status()) in FINAL:  # when it ended, its trackers may not have had it all yet
        for warning in send_rest(run.path, status):
            log.warning("%s", warning)
        return status
    with as_fresh_process():
        resolved = stint.configs.get(run.id) or usable_config(run, trust=stint.trusted)
        parent = Parent(run_id=stint.study_id, relation="tune", untested=not stint.tested)
        request = Request(
            resolved,
            run,
            given(resolved),
            parent,
            allow_change=stint.allow_change,
            verdict=verdict,
            until=stint.until,
            alike=stint.alike_of(run),
            keep=True,
        )
        with of_own_config(run, resolved, trust=stint.trusted):
            return run_attempt(request).status


def _wait_for_owner(run: RunDir) -> None:
    """Wait while another process owns a run: after a kill, the workers of a study end a moment later."""
    began, has_warned = time.monotonic(), False
    while run.is_locked():
        if not has_warned and time.monotonic() - began > _WARN_SECONDS:
            log.warning(
                "run %s of this study is owned by another process; waiting until that has ended", run.id
            )
            has_warned = True
        time.sleep(_POLL_SECONDS)


def judges_by_curves(pruner: Pruner) -> bool:
    """Return whether a pruner judges a run while it trains, by the curves of other trials."""
    return not isinstance(pruner, NoPruner | HalvingPruner)


def _pruner_verdict(stint: Stint, run: RunDir) -> VerdictFunction | None:
    """Return the function that judges a run by the stint's pruner; None where it never prunes.

    A rule may depend on all evaluations so far. It is not asked about those of an earlier attempt again, and
    sees them before the first new one.
    """
    if not judges_by_curves(stint.pruner):
        return None
    should_prune = pruning_rule(stint.pruner, stint.curves, stint.mode)
    earlier = dict(curve_of(run, stint.metric))

    def verdict(step: int, metrics: Mapping[str, float]) -> Any:
        for before in sorted(at for at in earlier if at < step):
            should_prune(before, earlier.pop(before))
        return "prune" if should_prune(step, metrics[stint.metric]) else "keep"

    return verdict


def curve_of(run: RunDir, metric: str) -> tuple[tuple[int, float], ...]:
    """Return the metric at each evaluation of a run, as (step, value)."""
    rows = evaluations(read(run.journal)) if run.journal.exists() else []
    return tuple((step, number(values[metric])) for step, values in rows if metric in values)


def ending_of(stint: Stint) -> Ending:
    """Return the ending of a trial whose runs are completed, stopped, pruned or paused: their mean."""
    endings = [_ending_of_run(stint, RunDir(run)) for run in stint.runs]
    if len(endings) == 1:
        return endings[0]
    values = [one.value for one in endings if one.value is not None]
    steps = [one.step for one in endings if one.step is not None]
    has_value = len(values) == len(endings)
    points = zip(*(one.curve for one in endings), strict=False)  # folds may differ by a step in an epoch
    return Ending(
        "paused" if any(one.status == "paused" for one in endings) else "completed",
        math.fsum(values) / len(values) if has_value else None,
        round(sum(steps) / len(steps)) if has_value else None,
        tuple((point[0][0], math.fsum(value for _, value in point) / len(point)) for point in points),
        sha256_bytes("\n".join(str(one.digest) for one in endings).encode()),
        math.fsum(one.seconds for one in endings),
    )


def _ending_of_run(stint: Stint, run: RunDir) -> Ending:
    result: Result = run.require_result()
    curve = curve_of(run, stint.metric)
    sign = 1.0 if stint.mode == "min" else -1.0
    finite = [(sign * value, step) for step, value in curve if not math.isnan(value)]
    best, step = min(finite, default=(None, None))
    return Ending(
        result.status if result.status in ("pruned", "paused") else "completed",
        None if best is None else sign * best,
        step,
        curve,
        result.digest,
        result.train_seconds,
    )


def failed(error: str) -> Ending:
    """Return the ending of a trial that cannot be trained."""
    return Ending("failed", error=error)


def is_of_trial(
    stint: Stint,
    error: TrainwrightError | OSError,
    given: Callable[[Resolved], Objects] = no_objects,
) -> bool:
    """Return whether an error is a result of a trial, which would fail in the same way again.

    If not, the study cannot go on for now: its inputs are not what they were, or something outside is broken.
    """
    if stint.searches_data and isinstance(error, DataError):
        return not is_of_disks(error)
    if is_from_outside(error):
        return False
    return not isinstance(error, InputError) or all(
        _has_inputs(stint, RunDir(run), given) for run in stint.runs
    )


def failed_outcome(
    stint: Stint,
    error: TrainwrightError | OSError,
    given: Callable[[Resolved], Objects] = no_objects,
) -> StintOutcome:
    """Return the outcome of a stint that has failed.

    Raises:
        InputError, TrainingError: The trial cannot be trained for now, which is no result of it.
    """
    message = hidden(stint.runs[0], error)
    if is_of_trial(stint, error, given):
        return StintOutcome(stint, "failed", message)
    raise unfinished(stint, message, is_input=isinstance(error, InputError)) from error


def failure(stint: Stint, error: TrainwrightError | OSError) -> dict[str, Any]:
    """Return how a worker answers for a stint that has failed."""
    return {
        "status": "failed",
        "error": hidden(stint.runs[0], error),
        "is_from_outside": not is_of_trial(stint, error),
        "is_input": isinstance(error, InputError),
    }


def _has_inputs(stint: Stint, run: RunDir, given: Callable[[Resolved], Objects]) -> bool:
    """Return whether data and code of a run are there, and those of the run that it must be like."""
    try:
        resolved, like = usable_config(run, trust=stint.trusted), stint.alike_of(run)
        with as_fresh_process(), of_own_config(run, resolved, trust=stint.trusted):
            objects = given(resolved)
            data = objects.data or load_data(resolved.config, objects.model)
            before = like.manifest() if like is not None else None
            return before is None or stint.allow_change or not changed_since(before, resolved, objects, data)
    except (TrainwrightError, OSError):
        return False


def unfinished(stint: Stint, message: str, *, is_input: bool = False) -> TrainwrightError:
    """Return the error that ends a study which cannot go on with a trial for now.

    Args:
        stint: What was to be done.
        message: What has happened.
        is_input: Whether it is something that the user gave.
    """
    return (InputError if is_input else TrainingError)(
        f"trial {stint.trial} cannot be trained now: {message}; then go on with the same trials: "
        f"{resume_command(stint.runs[0].parent / stint.study_id)}"
    )


def hidden(run: Path, error: TrainwrightError | OSError) -> str:
    """Return an error's message without secrets of the run's config."""
    return read_config(RunDir(run)).hide(str(error))
