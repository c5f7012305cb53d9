"""The check of a `tuning` section against the rest of its config, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.config.schema import ModelConfig, RunConfig
from trainwright.config.tree import DEFAULT, Source
from trainwright.config.tuning import HalvingPruner, TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.runs.children.compatibility import LENGTH, refusal
from trainwright.runs.frameworks import framework_name
from trainwright.samplers.base import Sampler, Space
from trainwright.studies.configs import StudyConfig
from trainwright.studies.tuning.goals import Goals, goals_of
from trainwright.studies.tuning.optuna_storage import check_storage
from trainwright.studies.tuning.search_space import check_space, read_space
from trainwright.studies.tuning.trial_configs import check_resources, check_trial_configs, with_length
from trainwright.studies.tuning.tuning_view import CONFIG
from trainwright.tuners.base import Tuner

T = TypeVar("T")
_WITHOUT_WEIGHTS = ("dropout",)  # options of networks that change the shape of no weight
# What a tuner does itself, and where its options say how.
_INSTEAD = {
    "sampler": "proposes trials by itself (tuner.search of ray)",
    "pruner": "decides by itself which trials continue (tuner.scheduler of ray)",
    "parallel": "runs as many trials at once as fit (tuner.num_cpus of ray, and tuning.resources)",
    "horizon": "decides from whatever has ended first, so its trials are not a function of the config",
    "order": "decides from whatever has ended first in any case",
    "folds": "judges one run of a trial at a time; pruner: hyperband, without a tuner, goes with folds",
    "repeats": "judges one run of a trial at a time; pruner: hyperband, without a tuner, goes with repeats",
}


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


def tuner_of(tuning: TuningConfig) -> Tuner | None:
    """Return the tuner of a section, whose library is not imported yet; None if it has none.

    Raises:
        InputError: It is a plugin that cannot be used.
    """
    if tuning.tuner is None:
        return None
    cls = plugins.adapter("tuner", tuning.tuner.type)
    # The loader has checked the options as JSON, where a whole number is fine for a real one.
    tuner: Tuner = cls(cls.Params.model_validate(tuning.tuner.params, strict=False))
    return tuner


def forkable_keys(space: Space, config: RunConfig) -> list[str]:
    """Return the keys of a space that a fork may change, since the state fits all their values."""
    return [one.key for one in space if _fits(_long(one.key), config)]


def _fits(key: str, config: RunConfig) -> bool:
    section, _, option = key.partition(".")
    framework = plugins.adapter("framework", framework_name(config, None))
    if section not in ("training", "model") or key in LENGTH or refusal(key, config, framework) is not None:
        return False
    is_network = "batch_size" in framework.training_keys(config.model.type, config.model.params)
    return section == "training" or not is_network or option.removeprefix("params.") in _WITHOUT_WEIGHTS


def _long(key: str) -> str:
    """Return a key with its full path: options of the model may be written beside its type."""
    section, _, option = key.partition(".")
    inline = section == "model" and option.partition(".")[0] not in ModelConfig.model_fields
    return f"model.params.{option}" if inline else key


def check_tuner(goals: Goals, space: Space, base: StudyConfig, tuning: TuningConfig) -> None:
    """Refuse what a tuner and the rest of the section cannot do together.

    Raises:
        ConfigError: It is given.
    """
    tuner = tuner_of(tuning)
    if tuner is None:
        return
    assert tuning.tuner is not None
    name = tuning.tuner.type
    problems = [
        Problem(f"tuner {name} {why}; leave it out", f"tuning.{key}")
        for key, why in _INSTEAD.items()
        if _is_given(base, f"tuning.{key}")
    ]
    if goals.measured:
        key = "constraints" if goals.constraints else "metric"
        message = (
            f"tuner {name} searches by one metric; for several, leave the tuner out and use sampler: tpe"
        )
        problems.append(Problem(message, f"tuning.{key}"))
    if (tuning.resources.nproc or base.resolved.config.distributed.nproc) != 1:
        message = f"tuner {name} judges a trial within its process, so it has one; leave it out"
        problems.append(Problem(message, "tuning.resources.nproc"))
    if base.objects:
        problems.append(
            Problem(f"{name} trains in other processes, and data given as objects stay in this one", "data")
        )
    if (reason := tuner.refusal(space, forkable_keys(space, base.resolved.config))) is not None:
        problems.append(Problem(reason, "tuning.tuner"))
    if problems:
        raise ConfigError(problems)


def _is_given(base: StudyConfig, key: str) -> bool:
    """Return whether the user has written a key; the config that a study keeps has all of them."""
    return any(
        source != DEFAULT and Path(source.file).name != CONFIG
        for name, source in base.resolved.sources.items()
        if name == key or name.startswith(f"{key}.")
    )
