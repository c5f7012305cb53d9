"""Validate a config, and report what pydantic finds in plain words, where the user wrote it.

Messages are made from the field's own type and limits ("expected a whole number above 0"), not from
pydantic's texts, so a new field or adapter option needs no message of its own.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trainwright.config.hints import Options, key_hint
from trainwright.config.normalize import key_meant
from trainwright.config.schema import RunConfig
from trainwright.config.tree import Node, Problems, join, mapping, plain
from trainwright.config.words import (
    choice,
    describe,
    got,
    is_tagged,
    literal,
    mismatch,
    nearest,
    some,
    tag,
    without_null,
    words,
)

Model = TypeVar("Model", bound=BaseModel)
CUSTOM = "custom"  # the type of a section that names a user's own function by its import path
MOST_SECTIONS = 3  # a key that exists in more sections than that is not a helpful suggestion


def validate(
    model: type[Model],
    node: Node,
    path: str,
    problems: Problems,
    siblings: Sequence[str] = (),
    option: Options | None = None,
    listed: str = "",
) -> Model | None:
    """Validate a node strictly; return None if it has problems.

    Args:
        model: The section, or the options of an adapter.
        node: What to validate.
        path: The dotted key of the node.
        problems: Where problems are reported.
        siblings: Keys that are also allowed beside the options of `model`, if these are written inline.
        option: Tells the option of the model, or of the data, that a name means, for hints.
        listed: What `trainwright config names` calls the options of an adapter.
    """
    result = _attempt(model, node)
    if isinstance(result, ValidationError) and _read_as_text(result, model, node):
        result = _attempt(model, node)
    if not isinstance(result, ValidationError):
        return result
    report = _Report(model, node, path, problems, siblings, option, listed)
    for error in result.errors(include_url=False):
        report.add(error)
    return None


def _attempt(model: type[Model], node: Node) -> Model | ValidationError:
    # JSON mode is strict, but accepts a list for a tuple and text for a path, as a config file needs it.
    try:
        return model.model_validate_json(json.dumps(plain(node)), strict=True)
    except ValidationError as error:
        return error


def _read_as_text(result: ValidationError, model: type[BaseModel], root: Node) -> bool:
    """Read `${env:NAME}` as text where text is expected, even if it holds `007`; return whether any did."""
    changed = False
    for error in result.errors(include_url=False):
        node = locate(model, root, error["loc"]).node
        if error["type"] == "string_type" and node.text is not None and node.value != node.text:
            node.value = node.text
            changed = True
    return changed


class Spot(NamedTuple):
    """The position of an error: the keys that lead to it, its node, and what is allowed there.

    `left` is the rest of pydantic's location, which names no node: a missing key, or a branch of a union.
    """

    keys: tuple[str, ...]
    node: Node
    annotation: Any
    field: FieldInfo | None
    left: tuple[str | int, ...]


def locate(model: type[BaseModel], root: Node, location: tuple[str | int, ...]) -> Spot:
    """Follow pydantic's location as far as it names nodes."""
    spot = Spot((), root, model, None, location)
    while spot.left and (inner := _step(spot)) is not None:
        spot = inner
    return spot


def _step(spot: Spot) -> Spot | None:
    """Return the position one part further down, or None if the location leaves the tree."""
    annotation, part = without_null(spot.annotation), spot.left[0]
    if is_tagged(spot.annotation, spot.field):
        # The part is the tag of the chosen member.
        member = next((one for one in get_args(annotation) if tag(one) == part), None)
        return None if member is None else spot._replace(annotation=member, field=None, left=spot.left[1:])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field, child = annotation.model_fields.get(str(part)), mapping(spot.node).get(str(part))
        if field is None or child is None:
            return None
        return Spot((*spot.keys, str(part)), child, field.annotation, field, spot.left[1:])
    child, inner = _element(spot.node, annotation, part)
    return None if child is None else Spot((*spot.keys, str(part)), child, inner, None, spot.left[1:])


def _element(node: Node, annotation: Any, part: str | int) -> tuple[Node | None, Any]:
    """Return an item of a list or a mapping, and its type."""
    arguments = get_args(annotation)
    if get_origin(annotation) in {Union, types.UnionType} or not arguments:
        return None, None
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        by_position = get_origin(annotation) is tuple and len(arguments) > part and arguments[-1] is not ...
        return node.value[part], arguments[part] if by_position else arguments[0]
    return mapping(node).get(str(part)), arguments[-1]


@dataclass
class _Report:
    """The errors of one validation, turned into problems."""

    model: type[BaseModel]
    root: Node
    path: str
    problems: Problems
    siblings: Sequence[str]
    option: Options | None
    listed: str = ""

    def add(self, error: Any) -> None:
        """Report one of pydantic's errors."""
        spot = locate(self.model, self.root, error["loc"])
        node = spot.node
        if node.template is not None and node.text is None:
            return  # its variable is unset, which has been reported
        if error["type"] == "extra_forbidden":
            self._unknown(spot)
        elif error["type"] == "missing" and isinstance(node.value, dict):
            self._missing(spot)
        elif error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            chosen = mapping(node).get("type", node)
            tags = [str(tag(one)) for one in get_args(without_null(spot.annotation))]
            message = choice([one for one in tags if one != CUSTOM], chosen)
            if CUSTOM in tags:
                message += "; one of your own is named by its import path, package.module:function"
            self.problems.report(message, join(self._path(spot.keys), "type"), chosen.source)
        else:
            self.problems.report(_message(error, spot), node.written or self._path(spot.keys), node.source)

    def _path(self, keys: tuple[str, ...]) -> str:
        """Return the dotted key as the user wrote it: inline options are not under `params`."""
        first = mapping(self.root).get(keys[0]) if keys else self.root
        path = self.path.removesuffix(".params") if first is not None and first.inline else self.path
        return ".".join((path, *keys) if path else keys)

    def _missing(self, spot: Spot) -> None:
        name = str(spot.left[-1])
        field = without_null(spot.annotation).model_fields[name]
        meaning = f": {field.description}" if field.description else ""
        path = join(self._path(spot.keys), name)
        self.problems.report(f"is missing; expected {describe(field)}{meaning}", path, spot.node.key_source)

    def _unknown(self, spot: Spot) -> None:
        name = str(spot.left[-1])
        child = mapping(spot.node).get(name, spot.node)
        fields = getattr(without_null(spot.annotation), "model_fields", {})
        allowed = [field.serialization_alias or key for key, field in fields.items()]
        if child.inline:
            allowed += self.siblings
        path = self._path((*spot.keys, name))
        elsewhere, searches = _elsewhere(name), not self.path and "tuning" in mapping(self.root)
        if (known := key_hint(path, None if elsewhere else self.option, searches=searches)) is not None:
            self.problems.report(f"unknown key; {known}", path, child.key_source)
            return
        hint = _meant(name, path) or nearest(name, allowed) or elsewhere or "."
        kind = self.listed if self.path else ".".join(spot.keys) or "config"
        text = f"Allowed: {some(sorted(allowed), name, kind) or 'no options'}"
        listed = self.problems.once(text, tuple(allowed))
        self.problems.report(" ".join([f"unknown key{hint}", *listed]), path, child.key_source)


def _message(error: Any, spot: Spot) -> str:
    if error["type"] in {"value_error", "assertion_error"}:  # an adapter's own check
        text = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return text if isinstance(spot.node.value, dict) else f"{text}; got {got(spot.node)}"
    annotation = without_null(spot.annotation)
    if spot.left and not isinstance(spot.node.value, dict):  # a key's value alone stands for the section
        fields = getattr(annotation, "model_fields", {})
        annotation = without_null(fields[spot.left[0]].annotation) if spot.left[0] in fields else annotation
    if get_origin(annotation) is Literal:
        return choice([literal(one) for one in get_args(annotation)], spot.node)
    return mismatch(describe(spot.field) if spot.field is not None else words(spot.annotation), spot.node)


def _elsewhere(name: str) -> str:
    """Return a hint at the sections that have a key which is wrong here; `tuning` is for searches alone."""
    keys = [dotted for dotted in _schema_keys(RunConfig) if dotted.rpartition(".")[2] == name]
    keys = [key for key in keys if not key.startswith("tuning.")] or keys
    return f"; did you mean {' or '.join(keys)}?" if 0 < len(keys) <= MOST_SECTIONS else ""


def _meant(name: str, path: str) -> str:
    """Return a hint at the key that a name of another tool means where no section is open."""
    meant = key_meant(name)
    return f"; did you mean {meant}?" if meant not in (None, name, path) else ""


def _schema_keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield join(path, name)
        inner = without_null(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _schema_keys(inner, join(path, name))
