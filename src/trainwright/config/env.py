"""Expand `${env:NAME}` in text. It is expanded for the run only, and never in what is written to disk."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trainwright.config.tree import Node, Problems, is_unicode, walk
from trainwright.config.yaml import scalar
from trainwright.redact import is_secret, remember, remember_passwords
from trainwright.require import import_rule

VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
SUBSTITUTION = re.compile(r"\$\{[^}]*\}?")
_OUTSIDE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|//|\\\\")
_PUBLIC = "experiment.name"  # it names a folder, and stands in every path
_LONG_SECRET = 8  # characters; a shorter one is hidden only next to its key: it may be a word of many texts
_LONG_NUMBER = 8  # digits; shorter numbers are batch sizes and seeds, and hiding them would spoil every table
DATA_PATHS = ("data.path", "data.train_path", "data.val_path", "data.test_path")


def expand(
    root: Node,
    problems: Problems,
    environ: Mapping[str, str] | None = None,
    *,
    foreign: Collection[str] = (),
    known: Mapping[str, str] | None = None,
) -> None:
    """Expand the variables in the whole tree; an unset one is a problem.

    Args:
        root: The tree.
        problems: The problems, to which more are added.
        environ: The variables; default: those of the process.
        foreign: Files whose texts stay as they are.
        known: The texts of keys that are not expanded again, unless an override gives another one.
    """
    for path, node in walk(root):
        if known and path in known and node.source.line and isinstance(node.value, str):
            node.template = node.value
            node.value = node.text = known[path]
            continue
        if node.source.file in foreign and isinstance(node.value, str) and VARIABLE.search(node.value):
            node.template = node.text = node.value
            continue
        expand_node(node, path, problems, environ)
        if isinstance(node.value, str):
            remember_passwords(node.value)
            is_long = len(node.value) >= _LONG_SECRET and "://" not in node.value  # of a URI, see above
            if is_long and node.template is None and is_secret(path, node.value):
                remember(node.value)


def expand_node(node: Node, path: str, problems: Problems, environ: Mapping[str, str] | None = None) -> None:
    """Expand one text. A value that is a single variable without quotes may become a number or a boolean."""
    if not isinstance(node.value, str) or "${" not in node.value or node.template is not None:
        return
    environ = os.environ if environ is None else environ
    template = node.template = node.value
    if _report_wrong(template, node, path, problems, environ):
        node.value = None  # with a template but no text, so that validation does not report it again
        return
    node.text = VARIABLE.sub(lambda match: environ[match[1]], template)
    node.value = scalar(node.text) if node.bare and VARIABLE.fullmatch(template) else node.text
    if path != _PUBLIC and (isinstance(node.value, str) or len(node.text) >= _LONG_NUMBER):
        for name in VARIABLE.findall(template):
            remember(environ[name], f"${{env:{name}}}")


def remember_numbers(nodes: Mapping[str, Node]) -> None:
    """Hide the values that looked like numbers, and turned out to be text when the config was validated."""
    for path, node in nodes.items():
        is_variable = node.template is not None and VARIABLE.fullmatch(node.template)
        if is_variable and path != _PUBLIC and isinstance(node.value, str):
            remember(node.value, str(node.template))


def names_outside(text: str) -> bool:
    """Return whether a value leads out of the files of this machine: it has a variable, or names a host."""
    return "://" in text or VARIABLE.search(text) is not None or _OUTSIDE.match(text) is not None


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a value of a config, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from texts_in(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from texts_in(child)


def is_public_path(template: str, text: str) -> bool:
    """Return whether the path of data may be stored with its variables expanded: it holds no secret.

    It may hold one where a variable is called so, and in the user or the query of a URL.

    Args:
        template: The path, with its variables.
        text: The same, expanded.
    """
    is_named_secret = any(is_secret(name, "x") for name in VARIABLE.findall(template))
    return not (is_named_secret or ("://" in text and ("@" in text or "?" in text)))


def filled_in(text: str) -> str:
    """Return a text from a run's files with the variables that are set filled in.

    Raises:
        InputError: The run is neither own nor trusted, and the text has a variable.
    """
    if (rule := import_rule()) is not None:
        rule.check_outside("init_from", text)
    return VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), text)


def _report_wrong(
    template: str, node: Node, path: str, problems: Problems, environ: Mapping[str, str]
) -> bool:
    before = len(problems)
    for name in VARIABLE.findall(template):
        if name not in environ:
            problems.report(
                f"the environment variable {name} is not set; export {name}=... first", path, node.source
            )
        elif not is_unicode(environ[name]):
            problems.report(f"the environment variable {name} does not hold valid Unicode", path, node.source)
    for text in SUBSTITUTION.findall(template):
        if not VARIABLE.fullmatch(text):
            name = text.removeprefix("${").removesuffix("}").rpartition(":")[2]
            hint = f"; did you mean '${{env:{name}}}'?" if name.isidentifier() else ""
            problems.report(f"{text} is not a substitution; only ${{env:NAME}} is{hint}", path, node.source)
    return len(problems) > before
