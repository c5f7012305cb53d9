"""A config before it is validated: plain values that remember where they came from.

Everything that happens between reading and validating (older spellings, `extends`, overrides, `${env:NAME}`)
moves `Node`s about, and each keeps its `Source`; so every message can point at what the user wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from trainyard.errors import Problem


@dataclass(frozen=True)
class Source:
    """Where something stands: a place in a file (line and column from 1), or `file` alone (`command line`, `default`)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


DEFAULT = Source("default")

Value: TypeAlias = "bool | int | float | str | dict[str, Node] | list[Node] | None"


@dataclass
class Node:
    """A value, where it stands (`source`), and where its key does (`key`).

    `bare`: text without quotes, so that `${env:NAME}` may become a number. `template` and `text`: what stood there
    before and after `${env:NAME}` was filled in.
    `inline`: an adapter's option that is written beside `type`, or a `params` that is not written at all.
    """

    value: Value
    source: Source
    key: Source | None = None
    bare: bool = False
    template: str | None = None
    text: str | None = None
    inline: bool = False

    @property
    def place(self) -> Source:
        """Where to point when the key is the problem."""
        return self.key or self.source

    def copy(self) -> Node:
        """A copy that shares nothing; YAML aliases need it."""
        if isinstance(self.value, dict):
            return replace(self, value={key: child.copy() for key, child in self.value.items()})
        if isinstance(self.value, list):
            return replace(self, value=[child.copy() for child in self.value])
        return replace(self)


class Problems(list[Problem]):
    """Collects what is wrong, so that all of it can be reported at once."""

    def report(self, message: str, path: str = "", source: Source | None = None) -> None:
        where = source or Source("")
        problem = Problem(message, path, where.file, where.line, where.column)
        if problem not in self:
            self.append(problem)


def join(path: str, key: str | int) -> str:
    return f"{path}.{key}" if path else str(key)


def mapping(node: Node | None) -> dict[str, Node]:
    """The children of a mapping; of anything else, none."""
    return node.value if node is not None and isinstance(node.value, dict) else {}


def find(root: Node, path: str) -> Node | None:
    """The node at a dotted key, or None."""
    node: Node | None = root
    for part in path.split("."):
        if node is None:
            return None
        if isinstance(node.value, list):
            node = node.value[int(part)] if part.isdecimal() and int(part) < len(node.value) else None
        else:
            node = mapping(node).get(part)
    return node


def given(root: Node, path: str) -> Node | None:
    """The node at a dotted key, unless it is absent or null."""
    node = find(root, path)
    return None if node is None or node.value is None else node


def put(root: Node, path: str, node: Node) -> None:
    """Sets a dotted key, making the mappings above it; one that is no mapping is left for validation to report."""
    *parents, last = path.split(".")
    at = root
    for part in parents:
        at = mapping(at).setdefault(part, Node({}, node.source, node.key))
    mapping(at)[last] = node


def take(root: Node, path: str) -> Node | None:
    """Removes a dotted key, and the mappings above it that are then empty."""
    head, _, rest = path.partition(".")
    children = mapping(root)
    if not rest:
        return children.pop(head, None)
    parent = children.get(head)
    found = None if parent is None else take(parent, rest)
    if found is not None and parent is not None and parent.value == {}:
        del children[head]
    return found


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every node with its dotted key, the root first."""
    yield path, node
    children = enumerate(node.value) if isinstance(node.value, list) else mapping(node).items()
    for key, child in children:
        yield from walk(child, join(path, key))


def plain(node: Node) -> Any:
    """The bare values."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def is_unicode(text: str) -> bool:
    """Whether text can be written as UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_plain(value: Any, source: Source, problems: Problems | None = None, path: str = "") -> Node:
    """Nodes for values that were given in Python; what a config cannot hold is a problem."""
    if isinstance(value, Mapping):
        children = {
            str(key): from_plain(child, source, problems, join(path, str(key)))
            for key, child in value.items()
        }
        return Node(children, source)
    if isinstance(value, list | tuple):
        return Node(
            [from_plain(child, source, problems, join(path, i)) for i, child in enumerate(value)], source
        )
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is not None and not isinstance(value, bool | int | float | str):
        if problems is not None:
            kind = type(value).__name__
            problems.report(
                f"a config cannot hold a value of type {kind}; allowed: text, numbers, true, false, null, lists, mappings",
                path,
                source,
            )
        value = None
    if isinstance(value, str) and not is_unicode(value):
        if problems is not None:
            problems.report(f"{value!r} is not valid Unicode", path, source)
        value = None
    return Node(value, source, bare=isinstance(value, str))
