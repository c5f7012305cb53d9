"""Gates: expressions over metrics that a model has to pass, such as `val_f1 >= parent - 0.005`.

    gate       := condition ("and" condition)*
    condition  := NAME ("<" | "<=" | ">" | ">=") bound
    bound      := ["-"] NUMBER | REFERENCE [("+" | "-" | "*") NUMBER]

NAME is that of a metric. REFERENCE, such as `parent` or `champion`, stands for the value that another model
has of the same metric. Numbers are compared as they are written in decimals, so that 0.845 passes
`>= parent - 0.005` where the parent has 0.85. What is not a number passes no condition.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from trainwright.errors import GateError, InputError
from trainwright.numerals import number

PARENT = "parent"  # the reference to the model that another one was made from
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CONDITION = re.compile(
    rf"\s*(?P<name>[A-Za-z_][\w.@/-]*)\s*(?P<sign><=|>=|<|>)\s*"
    rf"(?:(?P<bound>-?\s*{_NUMBER})|(?P<reference>[A-Za-z_]\w*)"
    rf"(?:\s*(?P<change>[-+*])\s*(?P<amount>{_NUMBER}))?)\s*"
)
_AND = re.compile(r"\band\b")
_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_CHANGES = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_EXAMPLES = "'val_f1 >= 0.8' or 'val_f1 >= parent - 0.005'"
_SHOWN = 12  # names that a message lists
Values = Mapping[str, float]


@dataclass(frozen=True)
class Condition:
    """One comparison of a gate: `amount` is added to the reference, taken from it or multiplied by it.

    Without a `reference`, it is the bound itself.
    """

    text: str
    name: str
    sign: str
    amount: Decimal
    reference: str | None = None
    change: str = "+"

    def margin(self, values: Values, references: Mapping[str, Values]) -> float:
        """Return how far a value is on the right side of its bound; negative on the wrong one.

        Args:
            values: The metrics of the model.
            references: Those of the models that conditions may refer to, by the names of these.

        Raises:
            InputError: The model or the reference has no such metric.
        """
        value, bound = self._sides(values, references)
        return float(value - bound if self.sign.startswith(">") else bound - value)

    def passes(self, values: Values, references: Mapping[str, Values]) -> bool:
        """Return whether a model passes; see `margin`.

        Raises:
            InputError: The model or the reference has no such metric.
        """
        value, bound = self._sides(values, references)
        if value.is_nan() or bound.is_nan():
            return False
        return bool(_SIGNS[self.sign](value, bound))

    def in_words(self, values: Values, references: Mapping[str, Values]) -> str:
        """Return the condition with its values, for people."""
        value, bound = self._sides(values, references)
        is_passed = "passed" if self.passes(values, references) else "not passed"
        return f"{self.text}: {is_passed} ({number(float(value))} against {number(float(bound))})"

    def _sides(self, values: Values, references: Mapping[str, Values]) -> tuple[Decimal, Decimal]:
        value = _decimal(_value(values, self.name, "the model"))
        if self.reference is None:
            return value, self.amount
        if self.reference not in references:
            known = " or ".join(sorted(references)) or "none"
            raise InputError(
                f"gate: {self.text!r} refers to {self.reference!r}; there is {known} to refer to"
            )
        base = _decimal(_value(references[self.reference], self.name, self.reference))
        return value, _CHANGES[self.change](base, self.amount)


@dataclass(frozen=True)
class Gate:
    """An expression that a model has to pass: all of its conditions."""

    text: str
    conditions: tuple[Condition, ...]

    @staticmethod
    def parse(text: str) -> Gate:
        """Read a gate.

        Raises:
            InputError: It does not follow the grammar.
        """
        return Gate(text.strip(), tuple(_condition(part, text) for part in _AND.split(text)))

    def check_names(self, names: Collection[str], references: Collection[str]) -> None:
        """Check that a model will have the metrics of the conditions, and that there are the references.

        Raises:
            InputError: One is unknown.
        """
        for one in self.conditions:
            if one.name not in names:
                listed = ", ".join(sorted(names)[:_SHOWN])
                raise InputError(f"gate: {one.text!r}: there is no metric {one.name}; there are {listed}")
            if one.reference is not None and one.reference not in references:
                raise InputError(
                    f"gate: {one.text!r} refers to {one.reference!r}; it can refer to "
                    f"{' or '.join(sorted(references)) or 'nothing'}"
                )

    def passes(self, values: Values, references: Mapping[str, Values]) -> bool:
        """Return whether a model passes all conditions.

        Raises:
            InputError: The model or a reference lacks a metric.
        """
        return all(one.passes(values, references) for one in self.conditions)

    def in_words(self, values: Values, references: Mapping[str, Values]) -> str:
        """Return the conditions with their values, for people."""
        return "; ".join(one.in_words(values, references) for one in self.conditions)


def judged(gate: Gate | None, table: dict[str, Any], said: str) -> GateError | None:
    """Note in a table of `parent` and `child` what a gate says; return the error if the child does not pass.

    Args:
        gate: The gate; None passes.
        table: The metrics of both; gets `gate`.
        said: The beginning of the error.

    Raises:
        InputError: A model lacks a metric.
    """
    if gate is None:
        return None
    values, references = table["child"], {PARENT: table["parent"]}
    passed = gate.passes(values, references)
    table["gate"] = {"text": gate.text, "said": gate.in_words(values, references), "passed": passed}
    return None if passed else GateError(f"{said}: {table['gate']['said']}", table)


def _condition(part: str, text: str) -> Condition:
    found = _CONDITION.fullmatch(part)
    if found is None:
        raise InputError(
            f"gate: {text!r} cannot be read at {part.strip()!r}; write, for example, {_EXAMPLES}"
        )
    bound, amount = found["bound"], found["amount"]
    amount = Decimal(bound.replace(" ", "")) if bound else Decimal(amount or "0")
    if not math.isfinite(float(amount)):
        raise InputError(f"gate: {text!r} has a number that is too large")
    change = found["change"] or "+"
    return Condition(part.strip(), found["name"], found["sign"], amount, found["reference"], change)


def _value(values: Values, name: str, whose: str) -> float:
    if name not in values:
        raise InputError(f"gate: {whose} has no {name}; there are {', '.join(sorted(values)[:_SHOWN])}")
    return values[name]


def _decimal(value: float) -> Decimal:
    """Return a value as it is written; infinite ones stay so."""
    return Decimal("NaN") if math.isnan(value) else Decimal(repr(float(value)))
