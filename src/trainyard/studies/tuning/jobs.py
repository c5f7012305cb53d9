"""A job: one trial to train, as it is sent to the process that trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trainyard.config import load as load_config
from trainyard.config.tuning import NoPruner, Pruner
from trainyard.engine.outside import Verdict
from trainyard.errors import TrainyardError
from trainyard.records.journal import evaluations, number, read
from trainyard.records.manifest import Parent
from trainyard.records.result import Result
from trainyard.records.run_dir import RunDir
from trainyard.records.status import DECIDED
from trainyard.records.trials import Ending
from trainyard.runs.attempt import run_attempt
from trainyard.runs.catalog import Catalog
from trainyard.runs.objects import Objects
from trainyard.runs.process import as_fresh_process
from trainyard.runs.request import Request
from trainyard.runs.trust import of_own_config
from trainyard.studies.tuning.pruning import Curve, Judge, judge_of
from trainyard.types import Mode

_PRUNER: TypeAdapter[Pruner] = TypeAdapter(Pruner)


@dataclass(frozen=True)
class Job:
    """A trial to train.

    `curves` are those that its pruner may know, by status. `study_id` is that of the study.
    """

    number: int
    run: Path
    study_id: str
    metric: str
    mode: Mode
    pruner: Pruner = field(default_factory=NoPruner)
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        plain = {name: getattr(self, name) for name in ("number", "study_id", "metric", "mode", "curves")}
        return plain | {"run": str(self.run), "pruner": self.pruner.model_dump()}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Job:
        """Read what `to_json` returned."""
        own = {"run": Path(plain["run"]), "pruner": _PRUNER.validate_python(plain["pruner"])}
        return Job(**{**plain, **own})


def train(job: Job, objects: Objects | None = None) -> str:
    """Train the run of a job, or go on with it, as a fresh process would; return how the attempt ended.

    Raises:
        TrainyardError: The run cannot be trained.
        Stopped: A signal came before the first step.
    """
    run = RunDir(job.run)
    if (status := run.status()) in ("completed", *DECIDED):
        return status
    with as_fresh_process():
        resolved = load_config(run.checked_config_file(), adapters=Catalog())
        parent = Parent(run_id=job.study_id, relation="tune")
        request = Request(resolved, run, objects or Objects(), parent, verdict=_verdict(job, run), keep=True)
        with of_own_config(run, resolved):
            return run_attempt(request).status


def _verdict(job: Job, run: RunDir) -> Verdict | None:
    """Return the verdict of the job's pruner.

    It is not asked again about evaluations that an earlier attempt has judged: the judge sees them first.
    """
    if isinstance(job.pruner, NoPruner):
        return None
    judge: Judge = judge_of(job.pruner, job.curves, job.mode)
    earlier = dict(curve_of(run, job.metric))

    def verdict(step: int, metrics: Mapping[str, float]) -> Any:
        for before in sorted(at for at in earlier if at < step):
            judge(before, earlier.pop(before))
        return "prune" if judge(step, metrics[job.metric]) else "keep"

    return verdict


def curve_of(run: RunDir, metric: str) -> tuple[tuple[int, float], ...]:
    """Return the metric at each evaluation of a run, as (step, value)."""
    rows = evaluations(read(run.journal)) if run.journal.exists() else []
    return tuple((step, number(values[metric])) for step, values in rows if metric in values)


def ending_of(job: Job) -> Ending:
    """Return how a trial has ended, whose run is completed, stopped or pruned."""
    run = RunDir(job.run)
    result: Result = run.require_result()
    curve = curve_of(run, job.metric)
    sign = 1.0 if job.mode == "min" else -1.0
    finite = [(sign * value, step) for step, value in curve if not math.isnan(value)]
    best, step = min(finite, default=(None, None))
    return Ending(
        "pruned" if result.status == "pruned" else "completed",
        None if best is None else sign * best,
        step,
        curve,
        result.digest,
        result.train_seconds,
    )


def failed(error: str) -> Ending:
    """Return the ending of a trial that cannot be trained."""
    return Ending("failed", error=error)


def hidden(run: Path, error: TrainyardError) -> str:
    """Return an error's message without secrets of the run's config."""
    return load_config(RunDir(run).checked_config_file(), adapters=Catalog()).hide(str(error))
