"""The check of a space: the config must take what any trial may be given."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trainwright.config.tree import DEFAULT
from trainwright.errors import ConfigError, Problem
from trainwright.samplers.base import Parameter, Space
from trainwright.studies.tuning.space import can_be

log = logging.getLogger(__name__)
Params = dict[str, Any]
Load = Callable[[Mapping[str, Any]], Any]  # loads the user's config with overrides by dotted key
_DECIDE_KEYS = ("type", "framework", "model", "optimizer", "scheduler")  # which other keys there are


class _Context(NamedTuple):
    """Values of other parameters with which one exists; `key` is the one that differs between contexts."""

    params: Params
    key: str = ""
    value: Any = None


def check_space(space: Space, load: Load) -> None:
    """Check that the config takes every choice, and both ends of every range; warn of those without effect.

    Args:
        space: The parameters.
        load: Loads the config with some of them, as a `StudyConfig`.

    Raises:
        ConfigError: It does not take a key or a value; each is named once.
    """
    check = _SpaceCheck(space, load)
    problems = [problem for parameter in space if (problem := check.of(parameter)) is not None]
    if not problems and (problem := check.of_all()) is not None:
        problems = [problem]
    if problems:
        raise ConfigError(problems)


class _SpaceCheck:
    """Load the config with values of the space; equal ones once."""

    def __init__(self, space: Space, load: Load) -> None:
        self._space, self._load = space, load
        self._by_key = {parameter.key: parameter for parameter in space}
        self._seen: dict[str, Any] = {}

    def of(self, parameter: Parameter) -> Problem | None:
        """Return what is wrong with a parameter, or None; warn if it has no effect."""
        first, *others = _ends(parameter)
        contexts = [one for one in self._contexts(parameter) if not self._errors(one.params)]
        found = [(one, self._problem(parameter, first, one)) for one in contexts]
        fitting = [one for one, problem in found if problem is None]
        wrong = [(one, problem) for one, problem in found if problem is not None]
        if not fitting:  # in none of them, or they are wrong by themselves
            return wrong[0][1] if wrong else None
        if wrong:
            return _conditional(parameter, wrong, fitting)
        for value in others:
            if (problem := self._problem(parameter, value, fitting[0])) is not None:
                return problem
        self._warn_without_effect(parameter, fitting)
        return None

    def of_all(self) -> Problem | None:
        """Return what is wrong with a trial that has all parameters, such as two spellings of one key."""
        params: Params = {}
        for parameter in self._space:
            if all(params.get(key) in values for key, values in parameter.when.items()):
                params[parameter.key] = _ends(parameter)[0]
        for problem in self._errors(params):
            if problem.path in self._by_key and "another spelling" in problem.message:
                return Problem(problem.message, f"tuning.space.{problem.path}")
        return None

    def _problem(self, parameter: Parameter, value: Any, context: _Context) -> Problem | None:
        """Return why a parameter cannot have a value."""
        for problem in self._errors(context.params | {parameter.key: value}):
            own = problem.path == parameter.key
            message = problem.message if own else f"{problem.path}: {problem.message}"
            meant = f"model.{parameter.key.rpartition('__')[2]}"  # pipelines of scikit-learn: clf__max_depth
            if own and "." not in parameter.key and not self._errors(context.params | {meant: value}):
                return Problem(f"unknown key; write {meant}", f"tuning.space.{parameter.key}")
            return Problem(f"{value!r}: {message}", f"tuning.space.{parameter.key}")
        return None

    def _errors(self, params: Params) -> Sequence[Problem]:
        loaded = self._loaded(params)
        return loaded.problems if isinstance(loaded, ConfigError) else ()

    def _loaded(self, params: Params) -> Any:
        """Return the config with some parameters, or the error that it is."""
        key = json.dumps(params, sort_keys=True, default=repr)
        if key not in self._seen:
            try:
                self._seen[key] = self._load(params)
            except ConfigError as error:
                self._seen[key] = error
        return self._seen[key]

    def _contexts(self, parameter: Parameter) -> Iterator[_Context]:
        """Yield the values of those other parameters that may decide whether this one exists."""
        without = self._conditions(parameter)
        deciding = [other for other in self._space if self._decides(other, parameter)]
        firsts = {other.key: _ends(other)[0] for other in deciding if not other.when}
        yield _Context(firsts | without)
        for key, values in parameter.when.items():
            for value in values:
                if can_be(self._by_key[key], value):
                    yield _Context(firsts | without | {key: value}, key, value)
        for other in deciding:
            above = self._conditions(other)
            if other.key not in without and all(
                without.get(key, value) == value for key, value in above.items()
            ):
                for value in _ends(other):
                    yield _Context(firsts | above | without | {other.key: value}, other.key, value)

    def _decides(self, other: Parameter, parameter: Parameter) -> bool:
        """Return whether another parameter may decide whether one exists."""
        is_kind = other.choices is not None and other.key.rpartition(".")[2] in _DECIDE_KEYS
        return is_kind and other.key != parameter.key and parameter.key not in self._conditions(other)

    def _conditions(self, parameter: Parameter) -> Params:
        """Return values of other parameters with which this one exists."""
        params: Params = {}
        for key, values in parameter.when.items():
            other = self._by_key[key]
            params |= self._conditions(other)
            params[key] = next(value for value in values if can_be(other, value))
        return params

    def _without_effect(self, key: str, value: Any, params: Params) -> str:
        """Return why a value of a parameter has no effect beside others; empty if it has one."""
        before, now = self._loaded(params).resolved, self._loaded(params | {key: value}).resolved
        for line in sorted(set(now.unused) - set(before.unused)):
            why: str = line.partition(": ")[2]
            if before.sources.get(why.partition(" ")[0], DEFAULT) == DEFAULT:  # it is this key that was added
                return why
        return ""

    def _warn_without_effect(self, parameter: Parameter, contexts: Sequence[_Context]) -> None:
        """Warn of a parameter that has no effect with any of its values, as far as can be told.

        Under another model of the space it may have one.
        """
        if {"model", "model.type"} & self._by_key.keys() - parameter.when.keys():
            return
        own = [one.params for one in contexts if not one.key or one.key in parameter.when]
        unused = [
            self._without_effect(parameter.key, value, one) for value in _ends(parameter) for one in own
        ]
        if all(unused):
            why = unused[0]
            log.warning("tuning.space.%s: %s; leave it out: it changes no trial", parameter.key, why)


def _ends(parameter: Parameter) -> Sequence[Any]:
    """Return the choices, or both ends of the range, and what lies between them by a step."""
    if parameter.choices is not None:
        return parameter.choices
    step = () if parameter.step is None else (parameter.low + parameter.step,)
    return [parameter.low, parameter.high, *step]


def _conditional(
    parameter: Parameter, wrong: Sequence[tuple[_Context, Problem]], fitting: Sequence[_Context]
) -> Problem:
    """Return the problem of a parameter that exists only with some values of another one."""
    good: dict[str, list[Any]] = {}
    for one in fitting:
        good.setdefault(one.key, []).append(one.value)
    context, problem = next(((one, what) for one, what in wrong if one.key and one.key in good), wrong[0])
    if not context.key:
        return problem
    with_it = f"with {context.key}: {context.value}: {problem.message}"
    if context.key in parameter.when:
        return Problem(f"when has a value too many: {with_it}", problem.path)
    values = good.get(context.key, [])
    listed = str(values[0]) if len(values) == 1 else f"[{', '.join(map(str, values))}]"
    return Problem(f"needs when: {{{context.key}: {listed}}}; {with_it}", problem.path)
