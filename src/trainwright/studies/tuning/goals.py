"""The goals of a search: its metrics with their modes, and the bounds that the best trial keeps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainwright.config.metrics import metric_path
from trainwright.config.schema import RunConfig
from trainwright.config.tuning import NoPruner, TuningConfig
from trainwright.errors import ConfigError, InputError, Problem
from trainwright.evaluation.metrics import check_metric, mode_in
from trainwright.records.trials import Ending, LoggedTrial
from trainwright.types import Mode

# What is measured of a trained model, besides the metrics of its evaluations; lower is always better.
MEASURES = {
    "latency_ms": "milliseconds for the prediction of one row",
    "model_bytes": "size of the weights' file",
    "parameters": "numbers in the weights",
    "train_seconds": "time of training",
}
_BOUND = re.compile(r"(<=|>=)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)")


class Constraint(NamedTuple):
    """A bound of a metric or measure: at most `bound` if `sign` is 1, at least it if `sign` is -1."""

    name: str
    sign: float
    bound: float

    def violation(self, value: float) -> float:
        """Return how far a value exceeds the bound; 0 or less where it holds, infinity for NaN."""
        return math.inf if math.isnan(value) else self.sign * (value - self.bound)

    def __str__(self) -> str:
        return f"{self.name} {'<=' if self.sign > 0 else '>='} {self.bound:g}"


@dataclass(frozen=True)
class Goals:
    """The metrics and bounds that trials are judged by; the first metric decides which models are kept."""

    metrics: Sequence[str]
    modes: Sequence[Mode]
    constraints: Sequence[Constraint] = ()

    @property
    def measured(self) -> list[str]:
        """The values that an ending must have besides that of the first metric."""
        bounded = [constraint.name for constraint in self.constraints]
        if len(self.metrics) == 1 and not bounded:
            return []
        return list(dict.fromkeys([*self.metrics, *bounded]))

    def values(self, ending: Ending) -> tuple[float, ...]:
        """Return the values of the metrics; empty if one is missing."""
        if len(self.metrics) == 1:
            return () if ending.value is None else (ending.value,)
        values = [(ending.values or {}).get(name, math.nan) for name in self.metrics]
        return () if any(map(math.isnan, values)) else tuple(values)

    def violations(self, ending: Ending) -> dict[str, float]:
        """Return how far each constraint is exceeded."""
        values = ending.values or {}
        return {str(one): one.violation(values.get(one.name, math.nan)) for one in self.constraints}

    def is_feasible(self, ending: Ending) -> bool:
        """Return whether all constraints hold."""
        if not self.constraints:
            return True
        return all(violation <= 0 for violation in self.violations(ending).values())

    def is_reached(self, target: float | None, value: float | None) -> bool:
        """Return whether a value of the first metric is as good as a target; False if one is missing."""
        if target is None or value is None:
            return False
        return value <= target if self.modes[0] == "min" else value >= target

    def front(self, trials: Sequence[LoggedTrial]) -> list[LoggedTrial]:
        """Return the trials that no other one equals or beats in all metrics, sorted by the first metric.

        Trials that break a constraint are left out, and all but the first of equal ones. With one metric it
        is the best trial.
        """
        signs = [1.0 if mode == "min" else -1.0 for mode in self.modes]
        points = {
            trial.number: tuple(sign * value for sign, value in zip(signs, values, strict=True))
            for trial in trials
            if trial.ending is not None
            and self.is_feasible(trial.ending)
            and (values := self.values(trial.ending))
        }
        ordered = sorted(points, key=lambda number: (points[number], number))
        front: list[int] = []
        for number in ordered:  # only those before it can be as good in the first metric
            if not any(_covers(points[other], points[number]) for other in front):
                front.append(number)
        return [trials[number] for number in front]

    def best(self, trials: Sequence[LoggedTrial]) -> LoggedTrial | None:
        """Return the trial of the front that is best by the first metric; None if the front is empty."""
        if len(self.metrics) > 1 or self.constraints:
            return next(iter(self.front(trials)), None)
        sign = 1.0 if self.modes[0] == "min" else -1.0
        ended = ((trial.ending, trial) for trial in trials if trial.ending is not None)
        values = [(sign * end.value, trial.number) for end, trial in ended if end.value is not None]
        return trials[min(values)[1]] if values else None


def _covers(point: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a point is as good as another one in each metric."""
    return all(one <= another for one, another in zip(point, other, strict=True))


def goals_of(tuning: TuningConfig, config: RunConfig) -> Goals:
    """Return the goals of the `tuning` section.

    Raises:
        ConfigError: A metric, mode or constraint is wrong; all problems are listed.
    """
    metrics = [tuning.metric] if isinstance(tuning.metric, str) else tuning.metric
    problems = (
        _metric_problems(metrics) or _mode_problems(tuning, metrics) or _other_problems(tuning, metrics)
    )
    constraints = [_constraint(name, text, problems) for name, text in tuning.constraints.items()]
    modes = [] if problems else _modes(tuning, metrics, config, problems)
    if problems:
        raise ConfigError(problems)
    goals = Goals(metrics, modes, [one for one in constraints if one is not None])
    if config.data is not None and config.data.task != "auto":
        check_task(goals, config.data.task, config)
    return goals


def check_task(goals: Goals, task: str, config: RunConfig) -> None:
    """Check that the metrics are those of a task; all that are not are listed.

    Raises:
        ConfigError: One is of another task.
    """
    keys = {f"tuning.constraints.{one.name}": one.name for one in goals.constraints}
    problems = []
    for key, name in [*(("tuning.metric", name) for name in goals.metrics), *keys.items()]:
        if name in MEASURES:
            continue
        try:
            check_metric(metric_path(config, name), task)
        except InputError as error:
            problems.append(Problem(str(error), key))
    if problems:
        raise ConfigError(problems)


def _modes(
    tuning: TuningConfig, metrics: Sequence[str], config: RunConfig, problems: list[Problem]
) -> list[Mode]:
    given = tuning.mode if isinstance(tuning.mode, list) else [tuning.mode] * len(metrics)
    modes: list[Mode] = []
    for name, mode in zip(metrics, given, strict=True):
        if mode != "auto":
            modes.append(mode)
        elif name in MEASURES:
            modes.append("min")
        else:
            try:
                modes.append(mode_in(config, name))
            except InputError as error:
                problems.append(Problem(str(error), "tuning.metric"))
    return modes


def _metric_problems(metrics: Sequence[str]) -> list[Problem]:
    if not metrics:
        return [Problem("is an empty list; give val_loss or val_METRIC", "tuning.metric")]
    if not metrics[0].startswith("val_"):
        first = " first, which decides the model that a trial keeps" if len(metrics) > 1 else ""
        return [Problem(f"expected val_loss or val_METRIC{first}, got {metrics[0]!r}", "tuning.metric")]
    if len(set(metrics)) < len(metrics):
        return [Problem("a metric is given twice", "tuning.metric")]
    wrong = [name for name in metrics if not (name.startswith("val_") or name in MEASURES)]
    return [Problem(f"expected {_allowed()}; got {name!r}", "tuning.metric") for name in wrong]


def _mode_problems(tuning: TuningConfig, metrics: Sequence[str]) -> list[Problem]:
    if isinstance(tuning.mode, list) and len(tuning.mode) != len(metrics):
        return [Problem(f"{len(tuning.mode)} modes for {len(metrics)} metrics", "tuning.mode")]
    if isinstance(tuning.mode, str) and tuning.mode != "auto" and len(metrics) > 1:
        return [Problem("several metrics have a list of modes, as [max, min], or auto", "tuning.mode")]
    return []


def _other_problems(tuning: TuningConfig, metrics: Sequence[str]) -> list[Problem]:
    """Return what does not go together with several metrics."""
    if len(metrics) == 1:
        return []
    problems = []
    if not isinstance(tuning.pruner, NoPruner):
        problems.append(Problem("a pruner judges by one metric; give none with several", "tuning.pruner"))
    if tuning.target is not None:
        what = "is of one metric; with several, leave it out and give constraints"
        problems.append(Problem(what, "tuning.target"))
    return problems


def _constraint(name: str, text: str, problems: list[Problem]) -> Constraint | None:
    key, match = f"tuning.constraints.{name}", _BOUND.fullmatch(text.strip())
    if not (name.startswith("val_") or name in MEASURES):
        problems.append(Problem(f"expected {_allowed()}; got {name!r}", key))
    elif match is None:
        problems.append(Problem(f'expected a bound, as "<= 1e6" or ">= 0.9"; got {text!r}', key))
    else:
        return Constraint(name, 1.0 if match[1] == "<=" else -1.0, float(match[2]))
    return None


def _allowed() -> str:
    return f"val_METRIC, {', '.join(MEASURES)}"
