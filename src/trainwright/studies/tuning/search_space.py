"""The space of a search, as the config has it: read, and checked against what the config takes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trainwright.config.tree import DEFAULT
from trainwright.errors import ConfigError, Problem
from trainwright.samplers.base import Parameter, Space

log = logging.getLogger(__name__)
_KEYS = {"low", "high", "log", "step", "choices", "when"}
_LISTED = 6  # values that a message lists
# Sections and keys that are those of the study, or of its records: the same for all trials.
_OF_STUDY = ("tuning", "experiment.name", "checkpoint.metric", "checkpoint.mode", "tracking", "logging")
_EXAMPLE = "{low: 1e-5, high: 1e-1, log: true}, or a list of choices"
Params = dict[str, Any]
Load = Callable[[Mapping[str, Any]], Any]  # loads the user's config with overrides by dotted key
_DECIDE_KEYS = ("type", "framework", "model", "optimizer", "scheduler")  # which other keys there are


def read_space(space: Mapping[str, Any]) -> Space:
    """Return the parameters of `tuning.space`, each after those that it depends on.

    Raises:
        ConfigError: A range or a condition is wrong; all problems are listed.
    """
    if not space:
        raise ConfigError(
            [
                Problem(
                    "is empty; for example, {training.learning_rate: [1e-3, 1e-2]}",
                    "tuning.space",
                )
            ]
        )
    problems: list[Problem] = []
    parameters = {}
    for key, spec in _flat(space).items():
        try:
            parameters[key] = _parameter(key, spec)
        except ValueError as error:
            problems.append(Problem(str(error), f"tuning.space.{key}"))
    if not problems:
        problems = [
            Problem(message, f"tuning.space.{key}.when")
            for key, parameter in parameters.items()
            for message in _condition_problems(parameter, parameters)
        ]
    if problems:
        raise ConfigError(problems)
    return _sorted(parameters)


def _flat(space: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a space by dotted key; sections may be nested, as those of the command line are."""
    flat: dict[str, Any] = {}
    for key, spec in space.items():
        at = f"{path}.{key}" if path else str(key)
        is_section = isinstance(spec, Mapping) and spec and not _KEYS.intersection(spec)
        if is_section and all(isinstance(inner, list | Mapping) for inner in spec.values()):
            flat |= _flat(spec, at)
        else:
            flat[at] = spec
    return flat


def _parameter(key: str, spec: Any) -> Parameter:
    if any(key == name or key.startswith(f"{name}.") for name in _OF_STUDY):
        raise ValueError("is the same for all trials of a study; leave it out of the space")
    if isinstance(spec, list):
        return Parameter(key, choices=_choices(spec))
    if not isinstance(spec, Mapping):
        raise ValueError(f"expected {_EXAMPLE}; got {spec!r}")
    if unknown := sorted(set(spec) - _KEYS):
        raise ValueError(
            f"there is no {unknown[0]!r}; a range has low, high, log and step (whole numbers if low "
            "and high are), a list has choices, and each may have when"
        )
    when = _when(spec.get("when"))
    if "choices" in spec:
        if extra := sorted(set(spec) & {"low", "high", "log", "step"}):
            raise ValueError(f"choices and {extra[0]} are both given; keep one")
        return Parameter(key, choices=_choices(spec["choices"]), when=when)
    return _range(key, spec, when)


def _choices(choices: Any) -> Sequence[Any]:
    if not isinstance(choices, list) or not choices:
        raise ValueError("the list of choices is empty; give at least one value")
    if len({repr(choice) for choice in choices}) < len(choices):
        raise ValueError("a choice is given twice")
    return choices


def _range(key: str, spec: Mapping[str, Any], when: Mapping[str, Sequence[Any]]) -> Parameter:
    for name in ("low", "high"):
        if spec.get(name) is None:
            raise ValueError(f"has no {name}; expected {_EXAMPLE}")
    numbers = [spec[name] for name in ("low", "high", "step") if spec.get(name) is not None]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"low, high and step are numbers; got {number!r}")
    low, high, step, log = spec["low"], spec["high"], spec.get("step"), spec.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"log is true or false; got {log!r}")
    if low > high:
        raise ValueError(f"the range is empty: low is {low:g}, high is {high:g}; swap them")
    if log and low <= 0:
        raise ValueError(f"log: true needs a low above 0; got {low:g}")
    if log and step is not None:
        raise ValueError("log and step are both given; keep one")
    if step is not None and step <= 0:
        raise ValueError(f"step must be above 0; got {step:g}")
    if step is not None and step > high - low:
        raise ValueError(f"step {step:g} leads beyond the range of {low:g} to {high:g}; give a smaller one")
    integer = all(isinstance(number, int) for number in numbers)
    return Parameter(key, low, high, log, step, integer, when=when)


def _when(when: Any) -> Mapping[str, Sequence[Any]]:
    if when is None:
        return {}
    if not isinstance(when, Mapping) or not when:
        raise ValueError("when takes other parameters of the space and their values, as {model.type: mlp}")
    return {str(key): value if isinstance(value, list) else [value] for key, value in when.items()}


def _condition_problems(parameter: Parameter, others: Mapping[str, Parameter]) -> Sequence[str]:
    problems = []
    for key, values in parameter.when.items():
        other = others.get(key)
        if other is None:
            way = f"write {key}.type" if f"{key}.type" in others else "add it there, or leave when out"
            problems.append(f"{key} is not in the space; {way}")
        elif key == parameter.key or _depends(other, parameter.key, others):
            problems.append(f"{parameter.key} depends on itself, by {key}; leave one of the conditions out")
        elif not any(can_be(other, value) for value in values):
            never = " or ".join(map(repr, values))
            problems.append(f"never holds: {key} is never {never}; it is {_values(other)}")
    return problems


def _depends(parameter: Parameter, key: str, others: Mapping[str, Parameter], depth: int = 0) -> bool:
    return depth <= len(others) and any(
        name == key or (name in others and _depends(others[name], key, others, depth + 1))
        for name in parameter.when
    )


def _values(parameter: Parameter) -> str:
    if parameter.choices is None:
        return f"from {parameter.low:g} to {parameter.high:g}"
    listed = " or ".join(map(repr, parameter.choices[:_LISTED]))
    return listed + (" ..." if len(parameter.choices) > _LISTED else "")


def can_be(parameter: Parameter, value: Any) -> bool:
    """Return whether a parameter can have a value."""
    if parameter.choices is not None:
        return value in parameter.choices
    return isinstance(value, int | float) and parameter.low <= value <= parameter.high


def _sorted(parameters: Mapping[str, Parameter]) -> Space:
    placed: dict[str, Parameter] = {}
    while len(placed) < len(parameters):
        placed |= {
            key: parameter
            for key, parameter in parameters.items()
            if key not in placed and all(name in placed for name in parameter.when)
        }
    return list(placed.values())


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
    """The config with values of the space; equal ones are loaded once."""

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
            is_of_key = problem.path == parameter.key
            message = problem.message if is_of_key else f"{problem.path}: {problem.message}"
            meant = f"model.{parameter.key.rpartition('__')[2]}"  # pipelines of scikit-learn: clf__max_depth
            if is_of_key and "." not in parameter.key and not self._errors(context.params | {meant: value}):
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
        having = [one.params for one in contexts if not one.key or one.key in parameter.when]
        unused = [
            self._without_effect(parameter.key, value, one) for value in _ends(parameter) for one in having
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
