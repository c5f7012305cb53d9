"""The section `data.expect`: conditions on the rows that are read, without which no run begins."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from trainwright.config.fields import COMPARISON, Section, record
from trainwright.config.synonyms import fold, table
from trainwright.config.tree import Draft, Node, join, mapping
from trainwright.config.words import nearest

Cell = bool | int | float | str
Comparison = Annotated[str, Field(pattern=COMPARISON)]
_Pair = Field(min_length=2, max_length=2)


def _not_open(ends: list[Any]) -> list[Any]:
    if ends == [None, None]:
        raise ValueError("one of the ends must be given; null stands for an open one")
    return ends


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return text


Numbers = Annotated[list[int | float | None], _Pair, AfterValidator(_not_open)]
Ends = Annotated[list[int | float | str | None], _Pair, AfterValidator(_not_open)]


def _no_fraction(value: Any) -> Any:
    """Refuse a share or mean that is given alone: hardly any data have exactly that one."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(
            f'one number means exactly that one; write ">= {value}", "<= {value}", or [{value}, null]'
        )
    return value


Bound = Annotated[Comparison | int | Numbers, BeforeValidator(_no_fraction)]


class ColumnExpectation(Section):
    """The conditions on one column, which must be there; of missing cells, only `missing` speaks."""

    type: Literal["integer", "number", "boolean", "time", "date", "text"] | None = record(
        None, description="what its cells are; text that holds numbers or times counts as these, too"
    )
    missing: Bound | None = record(
        None, description='the share of missing cells: 0, "<= 0.01", or [lowest, highest]'
    )
    between: Ends | None = record(
        None, description="the least and the greatest value, of numbers or times; null: no limit"
    )
    after: str | None = record(None, description="a time that all others come after, such as 2020-01-01")
    before: str | None = record(None, description="a time that all others come before")
    one_of: Annotated[list[Cell], Field(min_length=1)] | None = record(
        None, serialization_alias="in", description="the values that may occur"
    )
    none_of: Annotated[list[Cell], Field(min_length=1)] | None = record(
        None, serialization_alias="not_in", description="values that must not occur"
    )
    matches: Annotated[str, AfterValidator(_expression)] | None = record(
        None, description="a regular expression that is found in each text: ^ and $ stand for its ends"
    )
    unique: bool = record(False, description="no value comes twice")
    mostly: Annotated[float, Field(gt=0, le=1)] = record(
        1.0,
        description="the share of the cells that must be as `type`, `between`, `after`, `before`, `in`, "
        "`not_in`, `matches` and `unique` say",
    )
    mean: Bound | None = record(None, description='of numbers: ">= 30", or [lowest, highest]')
    std: Bound | None = record(None, description="of numbers: their standard deviation")
    share: dict[str, Bound] = record(
        default_factory=dict, description='the shares of values among the cells: {yes: ">= 0.05"}'
    )

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not expected: a run's config would hold a dozen lines for each column."""
        given = {name: value for name, value in dump(self).items() if name in self.model_fields_set}
        return {written(name): value for name, value in given.items()}


def written(name: str) -> str:
    """Return the key of a condition as configs have it: no field can be called `in`."""
    return ColumnExpectation.model_fields[name].serialization_alias or name


class ColumnsExpected(Section):
    """The names of the columns."""

    required: list[str] = record(default_factory=list, description="columns that must be there")
    exact: list[str] | None = record(
        None, description="the columns that must be there, in any order, and no others"
    )


class ExpectConfig(Section):
    """The conditions on all rows that are read, before they are split and prepared.

    All other keys are columns; one that is called like a key stands under `column`.
    """

    rows: Bound | None = record(None, description='the number of rows: ">= 1000", or [lowest, highest]')
    columns: ColumnsExpected = ColumnsExpected()
    column: dict[str, ColumnExpectation] = record(
        default_factory=dict,
        description="columns by name; they may stand beside the other keys: {age: {between: [0, 120]}}",
    )

    @model_validator(mode="after")
    def _check_some(self) -> ExpectConfig:
        if self.rows is None and not self.column and self.columns == ColumnsExpected():
            raise ValueError("nothing is expected; give rows, columns or a column, or leave it out")
        return self


# What other tools call these, with values of the same form.
_WORDS = table(
    {
        "one_of": "in isin is_in accepted_values allowed_values value_set values",
        "none_of": "not_in notin forbidden_values",
        "matches": "regex pattern str_matches match",
        "between": "in_range range bounds",
        "type": "dtype",
    }
)
_LOW = ("ge", "min", "minimum", "min_value", "greater_than_or_equal_to", "at_least")
_HIGH = ("le", "max", "maximum", "max_value", "less_than_or_equal_to", "at_most")


def read_expectations(draft: Draft, path: str, node: Node) -> None:
    """Put columns under `column`, and read other tools' words in them as ours."""
    children = mapping(node)
    names = [name for name in children if name not in ExpectConfig.model_fields]
    for name in [name for name in names if not isinstance(children[name].value, dict)]:
        hint = nearest(name, ExpectConfig.model_fields) or "; a column takes a mapping: {between: [0, 120]}"
        draft.problems.report(f"unknown key{hint}", join(path, name), children.pop(name).key_source)
        names.remove(name)
    if names:
        first = children[names[0]]
        columns = children.setdefault("column", Node({}, first.key_source, first.key))
        for name in names:
            if name in mapping(columns):
                where = f"given twice: here and in column ({mapping(columns)[name].key_source}); keep one"
                draft.problems.report(where, join(path, name), children[name].key_source)
            mapping(columns).setdefault(name, children[name]).written = join(path, name)
            del children[name]
    for name, column in mapping(children.get("column")).items():
        _read_words(draft, join(join(path, "column"), name), mapping(column))


def _read_words(draft: Draft, path: str, given: dict[str, Node]) -> None:
    for word in [word for word in given if word not in ColumnExpectation.model_fields]:
        if (meant := _WORDS.get(fold(word))) is None:
            continue
        if meant in given:
            draft.refuse(join(path, word), given.pop(word), meant, given[meant])
            continue
        given[meant] = given.pop(word)
        if word == written(meant):
            given[meant].written = join(path, word)
        else:
            draft.note(given[meant], f"{path}.{word} is read as {written(meant)}")
    ends = [next((given[word] for word in words if word in given), None) for words in (_LOW, _HIGH)]
    first = next((end for end in ends if end is not None), None)
    if first is None or "between" in given:
        return
    for word in [word for word in given if word in (*_LOW, *_HIGH) and given[word] in ends]:
        draft.note(given.pop(word), f"{path}.{word} is read as an end of between")
    open_end = Node(None, first.source)
    given["between"] = Node([end or open_end for end in ends], first.source, first.key)
