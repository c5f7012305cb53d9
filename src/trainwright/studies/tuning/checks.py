"""The check of a `tuning` section against the rest of its config, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.config.tree import DEFAULT, Source
from trainwright.config.tuning import HalvingPruner, TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.samplers.base import Sampler, Space
from trainwright.studies.trials import StudyConfig
from trainwright.studies.tuning.goals import Goals, goals_of
from trainwright.studies.tuning.lengths import with_length
from trainwright.studies.tuning.resources import check_resources
from trainwright.studies.tuning.space import read_space
from trainwright.studies.tuning.space_check import check_space
from trainwright.studies.tuning.storage import check_storage
from trainwright.studies.tuning.trial_configs import check_trial_configs
from trainwright.studies.tuning.tuner_checks import check_tuner

T = TypeVar("T")


def check_tuning(base: StudyConfig) -> tuple[Goals, Space]:
    """Check the `tuning` section of a config, and return what it asks for.

    The library of the sampler is not imported.

    Raises:
        ConfigError: It is missing or wrong; all problems are listed, with their places in the file.
    """
    tuning = base.resolved.config.tuning
    if tuning is None:
        raise ConfigError([Problem("is missing: it says what to search, as tuning.space", "tuning")])
    problems: list[Problem] = []
    with located(base.resolved):
        goals = _tried(lambda: goals_of(tuning, base.resolved.config), problems)
        space = _tried(lambda: read_space(tuning.space), problems)
        if space is not None:
            without = base.with_overrides({"tuning": None})
            _tried(lambda: check_space(space, without.with_overrides), problems)
        if problems or goals is None or space is None:
            raise ConfigError(problems)
        check_storage(tuning)
        _check_order(tuning)
        check_resources(tuning, base.resolved.config)
        _check_sampler(goals, space, base, tuning)
        if isinstance(tuning.pruner, HalvingPruner):
            with_length(base, tuning.pruner, space)
        check_trial_configs(base, tuning, goals)
        check_tuner(goals, space, base, tuning)
        return goals, space


def _tried(make: Callable[[], T], problems: list[Problem]) -> T | None:
    """Return what is made; None if it is wrong, and its problems are added."""
    try:
        return make()
    except ConfigError as error:
        problems += error.problems
        return None


@contextmanager
def located(resolved: Resolved) -> Iterator[None]:
    """Give the problems of a section the places where the config has it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([_located(problem, resolved) for problem in error.problems]) from error


def _located(problem: Problem, resolved: Resolved) -> Problem:
    source = _source(problem.path, resolved)
    if problem.line or source == DEFAULT:
        return problem
    return replace(problem, file=source.file, line=source.line, column=source.column)


def _source(path: str, resolved: Resolved) -> Source:
    """Return where a key is written, or the first value within it; else where its parent begins."""
    while path:
        inside = [
            source
            for key, source in resolved.sources.items()
            if (key == path or key.startswith(f"{path}.")) and source != DEFAULT
        ]
        if inside:
            return min(inside, key=lambda source: (source.line, source.column))
        path = path.rpartition(".")[0]
    return DEFAULT


def _check_sampler(goals: Goals, space: Space, base: StudyConfig, tuning: TuningConfig) -> None:
    """Refuse a sampler that cannot do what is asked of it."""
    name, cls = tuning.sampler.type, plugins.adapter("sampler", tuning.sampler.type)
    if (problem := limit(name, getattr(cls, "limits", ()), goals)) is not None:
        raise ConfigError([Problem(problem, "tuning.sampler")])
    if name == "grid":  # which has to have ends
        make_sampler(goals, space, base, tuning)


def _check_order(tuning: TuningConfig) -> None:
    """Refuse free order with what it has no meaning for."""
    if tuning.order == "free" and tuning.horizon is not None:
        raise ConfigError([Problem("is of order: horizon; in free order, leave it out", "tuning.horizon")])
    if tuning.order == "free" and isinstance(tuning.pruner, HalvingPruner):
        what = f"is free, but {tuning.pruner.type} decides rung by rung; take pruner asha, or order: horizon"
        raise ConfigError([Problem(what, "tuning.order")])


def make_sampler(goals: Goals, space: Space, base: StudyConfig, tuning: TuningConfig) -> Sampler:
    """Return the sampler of a study, seeded by `experiment.seed`."""
    cls = plugins.adapter("sampler", tuning.sampler.type)
    modes = goals.modes if len(goals.modes) > 1 else goals.modes[0]
    options, seed = cls.Params(**tuning.sampler.params), base.resolved.config.experiment.seed
    sampler: Sampler = cls(options, space, modes, seed)
    return sampler


def limit(name: str, limits: Sequence[str], goals: Goals) -> str | None:
    """Return why a sampler cannot search for these goals, or None."""
    if len(goals.metrics) > 1 and "metrics" in limits:
        return f"{name} searches by one metric; nsga2 and tpe by several"
    if goals.constraints and "constraints" in limits:
        return f"{name} knows no constraints; tpe, gp and nsga2 do"
    return None
