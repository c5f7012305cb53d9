"""A config before it is validated: plain values that remember where they came from.

All steps between reading and validating (other spellings, `extends`, overrides, `${env:NAME}`) move `Node`
objects, and each keeps its `Source`, so every message can point at what the user wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias

from trainwright.config.adapters import Adapters
from trainwright.errors import Problem


@dataclass(frozen=True)
class Source:
    """The source of a value: a line and column (from 1) of a file, or just `command line`, `default` ..."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


DEFAULT = Source("default")
_LONGEST = 1000  # numbers of an array that may be a list of a config; more are data

Value: TypeAlias = "bool | int | float | str | dict[str, Node] | list[Node] | None"


@dataclass
class Node:
    """A value, its source, and the source of its key.

    `bare`: the text has no quotes, so `${env:NAME}` may become a number. `template` and `text`: the text
    before and after `${env:NAME}` was filled in. `inline`: an adapter's option that is written beside `type`,
    or a `params` that is not written at all. `written`: the dotted key that was given, once it is moved.
    """

    value: Value
    source: Source
    key: Source | None = None
    bare: bool = False
    template: str | None = None
    text: str | None = None
    inline: bool = False
    written: str = ""

    @property
    def key_source(self) -> Source:
        """The source to point at if the key is the problem."""
        return self.key or self.source

    def copy(self) -> Node:
        """Return a copy that shares nothing; YAML aliases need it."""
        if isinstance(self.value, dict):
            return replace(self, value={key: child.copy() for key, child in self.value.items()})
        if isinstance(self.value, list):
            return replace(self, value=[child.copy() for child in self.value])
        return replace(self)


class Problems(list[Problem]):
    """The problems of a config, collected so that all of them are reported at once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[object] = set()

    def once(self, text: str, subject: object) -> list[str]:
        """Return the text as the only item of a list; an empty list if the subject was spoken of before."""
        if subject in self._said:
            return []
        self._said.add(subject)
        return [text]

    def report(self, message: str, path: str = "", source: Source | None = None) -> None:
        """Add a problem, unless it is already there."""
        where = source or Source("")
        problem = Problem(message, path, where.file, where.line, where.column)
        if problem not in self:
            self.append(problem)


def join(path: str, key: str | int) -> str:
    """Return the dotted key of a child."""
    return f"{path}.{key}" if path else str(key)


def mapping(node: Node | None) -> dict[str, Node]:
    """Return the children of a mapping; an empty mapping for anything else."""
    return node.value if node is not None and isinstance(node.value, dict) else {}


def find(root: Node, path: str) -> Node | None:
    """Return the node at a dotted key, or None."""
    node = root
    for part in path.split("."):
        value, child = node.value, None
        if isinstance(value, dict):
            child = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            child = value[int(part)]
        if child is None:
            return None
        node = child
    return node


def find_value(root: Node, path: str) -> Node | None:
    """Return the node at a dotted key; None if it is absent or null."""
    node = find(root, path)
    return None if node is None or node.value is None else node


def put(root: Node, path: str, node: Node) -> None:
    """Set a dotted key and make the mappings above it; validation reports parents that are not mappings."""
    *parents, last = path.split(".")
    at = root
    for part in parents:
        at = mapping(at).setdefault(part, Node({}, node.source, node.key))
    mapping(at)[last] = node


def take(root: Node, path: str) -> Node | None:
    """Remove a dotted key, and the mappings above it that are then empty; return its node, or None."""
    head, _, rest = path.partition(".")
    children = mapping(root)
    if not rest:
        return children.pop(head, None)
    parent = children.get(head)
    taken = None if parent is None else take(parent, rest)
    if taken is not None and parent is not None and parent.value == {}:
        del children[head]
    return taken


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node with its dotted key, the root first."""
    yield path, node
    children = enumerate(node.value) if isinstance(node.value, list) else mapping(node).items()
    for key, child in children:
        yield from walk(child, join(path, key))


def plain(node: Node) -> Any:
    """Return the bare values."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def is_unicode(text: str) -> bool:
    """Return whether text can be written as UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_plain(value: Any, source: Source, problems: Problems | None = None, path: str = "") -> Node:
    """Convert Python values to nodes, and report those that a config cannot hold."""
    if isinstance(value, range):
        value = list(value)
    elif type(value).__module__ == "numpy" and getattr(value, "size", _LONGEST + 1) <= _LONGEST:
        value = value.tolist()  # numpy.logspace(-4, -1, 4), or one number of it
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
    if isinstance(value, type | FunctionType | BuiltinFunctionType) and problems is not None:
        value = _import_path(value, problems, path, source)
    if value is not None and not isinstance(value, bool | int | float | str):
        if problems is not None:
            kind = type(value).__name__
            problems.report(
                f"a config cannot hold a value of type {kind}; "
                "allowed: text, numbers, true, false, null, lists, mappings",
                path,
                source,
            )
        value = None
    if isinstance(value, str) and not is_unicode(value):
        if problems is not None:
            problems.report(f"{value!r} is not valid Unicode", path, source)
        value = None
    return Node(value, source, bare=isinstance(value, str))


def _import_path(value: Any, problems: Problems, path: str, source: Source) -> str:
    """Report a class or function, which a config only names; return its import path."""
    kind = "class" if isinstance(value, type) else "function"
    name = f"{value.__module__}:{value.__qualname__}"
    if value.__module__ == "__main__" or "<" in name:
        how = f"put the {kind} into a module of its own, and write package.module:{kind}"
    else:
        how = f"write '{name}'"
    problems.report(f"a config names a {kind} by its import path; {how}", path, source)
    return name


@dataclass
class Draft:
    """One layer of a config, or all of them merged, while its keys and values become ours.

    Args:
        root: The tree, which is changed in place.
        problems: Where problems are reported.
        notes: Where translations are noted.
        adapters: The installed adapters; None: what they know is left as it is.
        files: The names of the files of the merged config, each before those that it extends.
        objects: The data are given in Python, so there need be no `data` section.
    """

    root: Node
    problems: Problems
    notes: list[str]
    adapters: Adapters | None = None
    files: Sequence[str] = ()
    objects: bool = False

    @property
    def installed(self) -> Adapters:
        """The installed adapters, for the conversions that need them."""
        assert self.adapters is not None
        return self.adapters

    def convert(self, table: Iterable[tuple[str, Conversion]]) -> None:
        """Convert the keys of a table that the config has, in the table's order."""
        for path, conversion in table:
            if (node := find(self.root, path)) is not None:
                conversion(self, path, node)

    def note(self, node: Node, text: str) -> None:
        """Note a translation of a key."""
        self.notes.append(f"{node.key_source}: {text}")

    def refuse(self, old: str, node: Node, new: str, newer: Node) -> None:
        """Report that a key and another one of the same meaning are both given."""
        given = f"which is given too ({newer.key_source}); keep one"
        self.problems.report(f"is another spelling of {new}, {given}", node.written or old, node.key_source)

    def move(self, old: str, new: str) -> None:
        """Move a key, or a section key by key; it is a problem if the new key is given, too.

        Args:
            old: The dotted key that was given.
            new: The dotted key that it means.
        """
        if old.partition(".")[0] not in mapping(self.root) or (node := find(self.root, old)) is None:
            return
        newer = find(self.root, new)
        if newer is not None and isinstance(newer.value, dict) and isinstance(node.value, dict):
            for key in list(node.value):
                self.move(join(old, key), join(new, key))
            take(self.root, old)
            return
        take(self.root, old)
        if newer is not None:
            self.refuse(old, node, new, newer)
        else:
            node.written = node.written or old
            put(self.root, new, node)
            self.note(node, f"{old} is read as {new}")


# Rewrites the value of a key, given its dotted name and node, or moves it.
Conversion = Callable[[Draft, str, Node], None]


def named(node: Node, key: str = "type") -> dict[str, Node]:
    """Return the mapping that a value alone stands for: `adam` is `{type: adam}`."""
    return {key: Node(node.value, node.source, node.key, bare=node.bare)}
