"""Read YAML 1.2 (core schema) into nodes that know their line and column.

ruamel.yaml scans and parses. The values are made here from its events, because its own constructors stop at
the first problem and lose line and column. Scalars follow YAML 1.2: `off`, `012` and `1:30` are not a
boolean, an octal number and a time, and `1e-4` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from trainwright.config.tree import Node, Problems, Source, is_unicode, join, mapping, walk

Event = Any  # ruamel.yaml.events.Event, imported late

MAX_DEPTH = 50
MAX_NODES = 200_000  # aliases of aliases can make billions of values from ten lines
KEPT_CHARACTERS = 1 << 16  # of the texts whose events are kept
LONGEST = 60  # characters of a text that a message repeats
SETTING = re.compile(r"[a-z_]+(\.\w+)+=")  # KEY.PATH=VALUE, as on the command line
INT = re.compile(r"[-+]?[0-9]+")
BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_/.+-]*|-?[0-9][0-9.e+-]*")  # one word without signs of YAML
INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
CONSTANTS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
HINTS = (
    ("\\t", "indent with spaces, not tabs"),
    (
        "mapping values are not allowed",
        "is the line before indented alike? Text that contains ': ' needs quotes",
    ),
    ("expected ',' or", "a bracket is not closed, or ${env:NAME} inside [ ] or { } is not in quotes"),
    ("expected <block end>", "the lines of one section must be indented alike"),
    ("could not find expected ':'", "a key needs ': ' and a value behind it"),
    ("while scanning a quoted scalar", "a quote is not closed"),
    ("expected chomping or", "text that begins with > or | needs quotes"),
    ("cannot start any token", "put the text in quotes"),
    ("undefined alias", "define it first, as &NAME before a value"),
)


class StopReading(Exception):  # noqa: N818
    """Reading cannot continue; the reason has been reported."""


def scalar(text: str) -> bool | int | float | str | None:
    """Return the value of text without quotes."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if INT.fullmatch(text):
        return int(text) if len(text) < 1000 else text
    if BASED.fullmatch(text):
        return int(text, 0)
    if FLOAT.fullmatch(text):
        return float(text)
    infinite = INF.fullmatch(text)
    return float(f"{infinite[1]}inf") if infinite else text


def read_file(path: Path, problems: Problems, name: str = "") -> Node | None:
    """Read a file, which messages call `name`; return None if that fails, after reporting why."""
    name = name or str(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        setting = SETTING.match(str(path))
        hint = ", but a setting; name the config file first" if setting else _similar_files(path)
        problems.report(f"no such file{hint}", source=Source(name))
        return None
    except IsADirectoryError:
        problems.report("is a folder; give a YAML file", source=Source(name))
        return None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        problems.report(f"cannot be read: {getattr(error, 'strerror', None) or error}", source=Source(name))
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        problems.report(
            f"is not UTF-8 text (byte 0x{data[error.start]:02x}); save it as UTF-8",
            source=Source(name, line, column),
        )
        return None
    return read(text, name, problems)


def _similar_files(path: Path) -> str:
    """Return a hint at the YAML files that may have been meant."""
    from trainwright.config.words import nearest

    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder} either"
    others = sorted(other.name for other in folder.iterdir() if other.suffix in {".yaml", ".yml"})
    return nearest(path.name, others) or (f"; {folder} holds {', '.join(others[:8])}" if others else "")


def read(text: str, file: str, problems: Problems) -> Node | None:
    """Read one document whose top is a mapping; return None if that fails, after reporting why."""
    root = read_value(text, file, problems)
    if root is None:
        return None
    if root.value is None:
        problems.report("is empty; a config needs at least `model: {type: ...}`", source=Source(file, 1, 1))
    elif not isinstance(root.value, dict):
        problems.report(
            f"expected sections like `model:` at the top, got {_top(root.value)}", source=root.source
        )
    else:
        return root
    return None


def _top(value: Any) -> str:
    """Describe the top of a file that is not a config."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        dots = "..." if len(value) > LONGEST else ""
        return f"the text {value[:LONGEST]!r}{dots}; for a data file: trainwright init FILE"
    return str(value)


def read_value(text: str, file: str, problems: Problems) -> Node | None:
    """Read one document of any kind; return None if that fails, after reporting why."""
    if PLAIN.fullmatch(text):  # most values of overrides, without the cost of a parser
        return Node(scalar(text), Source(file, 1, 1), bare=True)
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        return _Composer(_events(text), file, problems).document()
    except StopReading:
        return None
    except ReaderError as error:
        before = text[: error.position]
        source = Source(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        problems.report(
            f"YAML forbids the character U+{ord(text[error.position]):04X}; remove it", source=source
        )
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        source = Source(file, mark.line + 1, mark.column + 1) if mark else Source(file)
        problems.report(_syntax(error.problem or "", error.context or ""), source=source)
    return None


def _events(text: str) -> Iterator[Event]:
    """Return the events of the parser, up to the first error, which it raises then."""
    from ruamel.yaml.error import YAMLError

    if len(text) <= KEPT_CHARACTERS:
        try:
            return iter(_kept_events(text))
        except YAMLError:
            pass  # parsed again, since problems before the error are reported with it
    return _parsed(text)


@lru_cache(maxsize=4)
def _kept_events(text: str) -> tuple[Event, ...]:
    """Parse a text; the config of a run is read when it begins, and again for its report."""
    return tuple(_parsed(text))


def _parsed(text: str) -> Iterator[Event]:
    """Yield the events of the parser, up to the first collection that is nested too deeply.

    The scanner holds back the start of each collection that may be a key: it compares them all at each token,
    which takes seconds for a thousand brackets. Of what is refused anyway, it need not know.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.scanner import Scanner

    class ShallowScanner(Scanner):
        def fetch_flow_collection_start(self, token_class: Any, to_push: str) -> None:
            super().fetch_flow_collection_start(token_class, to_push)
            if self.flow_level > MAX_DEPTH + 1:
                self.possible_simple_keys.clear()

    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = ShallowScanner
    depth = 0
    for event in yaml.parse(text):
        yield event
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if depth > MAX_DEPTH + 3:  # the stream and the document are counted, too
            return


def _syntax(problem: str, context: str) -> str:
    text = f"{context}: {problem}" if context else problem
    hint = next((hint for sign, hint in HINTS if sign in text), "")
    return f"not valid YAML: {problem}" + (f" ({hint})" if hint else "")


def _is_text_tag(tag: Any) -> bool:
    return tag is not None and str(tag) in {"!", "tag:yaml.org,2002:str"}


class _Composer:
    """The builder of nodes from parser events; only syntax errors end it, others are reported."""

    def __init__(self, events: Iterator[Event], file: str, problems: Problems) -> None:
        self.events = events
        self.file = file
        self.problems = problems
        self.anchors: dict[str, Node] = {}
        self.nodes = 0

    def source(self, event: Event) -> Source:
        return Source(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def document(self) -> Node:
        next(self.events)  # the start of the stream
        start = next(self.events)
        if type(start).__name__ == "StreamEndEvent":
            return Node(None, Source(self.file, 1, 1))
        if start.version not in {None, (1, 2)}:
            self.problems.report("only YAML 1.2 is read; remove the %YAML line", source=self.source(start))
        root = self.node(next(self.events), "", 0)
        next(self.events)  # the end of the document
        after = next(self.events)
        if type(after).__name__ != "StreamEndEvent":
            self.problems.report(
                "a second document begins; one file holds one config", source=self.source(after)
            )
        return root

    def node(self, event: Event, path: str, depth: int) -> Node:
        self.nodes += 1
        if depth > MAX_DEPTH:
            self.stop(f"nested more than {MAX_DEPTH} deep", path.partition(".")[0], event)
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self.alias(event, path)
        self.check_tag(event, path)
        if kind == "ScalarEvent":
            node = self.scalar(event, path)
        elif kind == "SequenceStartEvent":
            node = Node(list(self.items(path, depth)), self.source(event))
        else:
            node = Node(self.pairs(path, depth), self.source(event))
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def scalar(self, event: Event, path: str) -> Node:
        if not is_unicode(event.value):
            self.problems.report(f"{event.value!r} is not valid Unicode", path, self.source(event))
            return Node(None, self.source(event))
        # An unknown tag is reported, and the value is read as if it had none.
        bare = event.style is None and not _is_text_tag(event.tag)
        return Node(scalar(event.value) if bare else event.value, self.source(event), bare=bare)

    def check_tag(self, event: Event, path: str) -> None:
        if event.tag is not None and not _is_text_tag(event.tag):
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            self.problems.report(
                f"the tag {tag} is not allowed; write plain YAML values", path, self.source(event)
            )

    def alias(self, event: Event, path: str) -> Node:
        known = self.anchors.get(event.anchor)
        if known is None:
            self.stop(
                f"alias *{event.anchor}, but no complete &{event.anchor} comes before it; "
                f"quote a text that begins with an asterisk: '*{event.anchor}'",
                path,
                event,
            )
        self.nodes += sum(1 for _ in walk(known))
        if self.nodes > MAX_NODES:
            self.stop(f"its aliases expand to more than {MAX_NODES} values", path, event)
        return known.copy()

    def stop(self, message: str, path: str, event: Event) -> NoReturn:
        self.problems.report(message, path, self.source(event))
        raise StopReading

    def items(self, path: str, depth: int) -> Iterator[Node]:
        index = 0
        while type(event := next(self.events)).__name__ != "SequenceEndEvent":
            yield self.node(event, join(path, index), depth + 1)
            index += 1

    def pairs(self, path: str, depth: int) -> dict[str, Node]:
        children: dict[str, Node] = {}
        merged: list[Node] = []
        while type(event := next(self.events)).__name__ != "MappingEndEvent":
            name, source = self.key(event, path, depth)
            child = self.node(next(self.events), join(path, name), depth + 1)
            child.key = source
            if not name:
                continue  # it has been reported
            if name == "<<" and event.style is None:
                merged.extend(self.merge_sources(child, path))
            elif name in children:
                first = children[name].key
                self.problems.report(
                    f"given twice; first in line {first.line if first else '?'}", join(path, name), source
                )
            else:
                children[name] = child
        for base in merged:
            for name, child in mapping(base).items():
                children.setdefault(name, child)
        return children

    def key(self, event: Event, path: str, depth: int) -> tuple[str, Source]:
        source = self.source(event)
        if type(event).__name__ == "ScalarEvent":
            if not event.value:
                self.problems.report("a key is empty", path, source)
            return str(event.value), source
        self.problems.report("a key must be text", path, source)
        self.node(event, path, depth + 1)
        return "", source

    def merge_sources(self, child: Node, path: str) -> list[Node]:
        sources = child.value if isinstance(child.value, list) else [child]
        if not all(isinstance(source.value, dict) for source in sources):
            self.problems.report("`<<` takes a mapping or a list of mappings", path, child.source)
        return sources
