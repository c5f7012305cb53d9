"""Choose and order runs of a list by what their summaries say: `val_f1 > 0.9 and model = lightgbm`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainwright.errors import InputError

Json = dict[str, Any]
Test = Callable[[Mapping[str, Any]], bool]
FIELDS = (
    *("run", "experiment", "study", "status", "steps", "epochs", "model", "data", "duration"),
    *("gpu_hours", "cost"),
)
_SAMPLE = "val_f1 > 0.9 and model = lightgbm"
_TOKEN = re.compile(
    r"""\s*(?:(?P<operator><=|>=|!=|==|[=<>~])|(?P<bracket>[()])|(?P<text>'[^']*'|"[^"]*")"""
    r"""|(?P<word>[^\s()=<>!~'"]+)|(?P<stray>\S))"""
)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def values(summary: Mapping[str, Any]) -> Json:
    """Return what a run can be chosen by: the fields of its summary, and its metrics by their names."""
    fields = {name: summary.get(name) for name in FIELDS} | {"run": summary["run_id"]}
    metrics = {name: _number(value) for name, value in summary.get("metrics", {}).items()}
    return {**metrics, **fields}


def chosen(summaries: Iterable[Json], expression: str) -> list[Json]:
    """Return the runs that an expression is true for.

    It compares values with `=`, `!=`, `<`, `<=`, `>`, `>=` or `~` (contains), and joins comparisons by `and`,
    `or`, `not` and brackets. A run that has no such value is not chosen by any comparison.

    Raises:
        InputError: The expression cannot be read, or names what no run has.
    """
    runs = list(summaries)
    query = _Query(expression)
    test = query.parse()
    known = {name for run in runs for name in values(run)} | {*FIELDS}
    check_names(query.names, known, "--filter")
    return [run for run in runs if test(values(run))]


def ordered(summaries: Iterable[Json], name: str) -> list[Json]:
    """Return runs by a value, the smallest first; with `-` before its name, the greatest.

    Runs without the value, or where it is NaN, come last.

    Raises:
        InputError: No run has such a value.
    """
    runs, field = list(summaries), name.removeprefix("-")
    check_names([field], {key for run in runs for key in values(run)} | {*FIELDS}, "--sort")
    by_run = [(values(run).get(field), run) for run in runs]
    having = [(value, run) for value, run in by_run if value is not None and value == value]  # noqa: PLR0124
    lacking = [run for value, run in by_run if value is None or value != value]  # noqa: PLR0124 - NaN
    having.sort(key=lambda pair: pair[0], reverse=name.startswith("-"))
    return [run for _, run in having] + lacking


def check_names(names: Iterable[str], known: Iterable[str], option: str) -> None:
    """Check that runs have values of these names.

    Raises:
        InputError: None has one of them.
    """
    from difflib import get_close_matches

    known = sorted(known)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InputError(
                f"{option}: no run has a value {name!r}{hint} There are {', '.join(FIELDS)}, and metrics "
                "such as test_accuracy"
            )


class _Query:
    """A parser of expressions, by recursive descent.

    Args:
        expression: The text.
    """

    def __init__(self, expression: str) -> None:
        self.names: list[str] = []
        self._expression = expression
        self._tokens = [
            (str(match.lastgroup), match[match.lastgroup or 0])
            for match in _TOKEN.finditer(expression.strip())
        ]

    def parse(self) -> Test:
        """Return the test that the expression means.

        Raises:
            InputError: It cannot be read.
        """
        test = self._any()
        if self._tokens:
            raise self._error(f"`and` or `or` expected, not {self._tokens[0][1]!r}")
        return test

    def _any(self) -> Test:
        tests = [self._all()]
        while self._takes("or"):
            tests.append(self._all())
        return lambda run: any(test(run) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._takes("and"):
            tests.append(self._one())
        return lambda run: all(test(run) for test in tests)

    def _one(self) -> Test:
        if self._takes("not"):
            denied = self._one()
            return lambda run: not denied(run)
        if self._takes("("):
            test = self._any()
            if not self._takes(")"):
                raise self._error("a bracket is never closed")
            return test
        name = self._next(("word",), "the name of a value")
        sign = self._next(("operator",), f"a comparison after {name!r}")
        value = self._next(("word", "text"), f"a value after {name} {sign}")
        self.names.append(name)
        return lambda run: self._compare(name, run.get(name), sign, value)

    def _compare(self, name: str, value: Any, sign: str, other: str) -> bool:
        """Compare a run's value; an order is one of numbers, or one of texts."""
        if isinstance(value, int | float) and sign[0] in "<>" and isinstance(_number(other), str):
            raise self._error(f"{name} is a number, and {other!r} is none")
        return _compare(value, sign, other)

    def _takes(self, word: str) -> bool:
        """Take the next token if it is this word."""
        if self._tokens and self._tokens[0][0] != "text" and self._tokens[0][1].lower() == word:
            self._tokens.pop(0)
            return True
        return False

    def _next(self, kinds: Sequence[str], what: str) -> str:
        """Take the next token, of one of these kinds, without its quotes."""
        kind, text = self._tokens.pop(0) if self._tokens else ("", "")
        if kind not in kinds:
            raise self._error(f"{what} expected, not {text!r}" if text else f"{what} is missing at the end")
        return text[1:-1] if kind == "text" else text

    def _error(self, problem: str) -> InputError:
        return InputError(f"--filter {self._expression!r}: {problem}; write it like {_SAMPLE!r}")


def _compare(value: Any, sign: str, other: str) -> bool:
    if value is None:
        return False
    if sign == "~":
        return other.casefold() in str(value).casefold()
    number = _number(other)
    if isinstance(value, int | float) and isinstance(number, float):
        return _OPERATORS[sign](float(value), number)
    return _OPERATORS[sign](str(value), other)


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
