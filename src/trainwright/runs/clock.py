"""The places where the user's code reads the clock: what it computes from that, no run can repeat.

Times that are only subtracted from each other, shown or logged are left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from trainwright.process.module_sources import source_now
from trainwright.records.manifest import CodeIdentity

# The last two words of calls that read the clock.
_READS = {
    *("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("Timestamp.now", "Timestamp.utcnow", "Timestamp.today"),
}
_SHOWING = {"print", "log", "debug", "info", "warning", "error", "exception", "strftime", "set_description"}


def clock_reads(code: CodeIdentity) -> list[str]:
    """Return where the modules of a run read the clock, as `module, line N`."""
    found = []
    for name in code.modules:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        source = source_now(Path(file), getattr(module, "__loader__", None))
        try:
            tree = ast.parse(source or b"")
        except (SyntaxError, ValueError):  # edited since it was imported
            continue
        found += [f"{name}, line {line}" for line in sorted(_lines(tree))]
    return found


def _lines(tree: ast.Module) -> Iterator[int]:
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names = _imported(tree)
    for node in ast.walk(tree):
        is_read = isinstance(node, ast.Call) and _words(node.func, names) in _READS
        if isinstance(node, ast.Call) and is_read and not _is_shown(node, tree, above):
            yield node.lineno


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the names that a module gives to what it imports, and the words that they stand for."""
    names = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _words(function: ast.expr, names: dict[str, str]) -> str:
    """Return the last two words of the name of a function: `datetime.now`; "" for another expression."""
    words = []
    while isinstance(function, ast.Attribute):
        words.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or function.id not in names:
        return ""
    whole = [*names[function.id].split("."), *reversed(words)]
    return ".".join(whole[-2:])


def _is_shown(node: ast.AST, tree: ast.Module, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a time is only subtracted from another one, shown or logged."""
    parent = above.get(node)
    while isinstance(parent, ast.expr | ast.keyword | ast.Expr):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
            return True
        if isinstance(parent, ast.JoinedStr | ast.Expr):
            return True
        if isinstance(parent, ast.Call) and _last_word(parent.func) in _SHOWING:
            return True
        node, parent = parent, above.get(parent)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    target = ast.unparse(parent.targets[0])
    uses = [one for one in ast.walk(tree) if _is_use(one, target)]
    return bool(uses) and all(_is_shown(one, tree, above) for one in uses)


def _last_word(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_use(node: ast.AST, target: str) -> bool:
    is_name = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    return is_name and ast.unparse(node) == target
