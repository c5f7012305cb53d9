"""The places where the user's code reads the clock, or draws random numbers that no seed determines.

Values computed from them cannot be reproduced. Times that are only subtracted from each other, shown or
logged are left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from trainwright.process.module_sources import source_now
from trainwright.records.manifest import CodeIdentity

# The last two words of calls.
_CLOCK = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.strftime", "time.ctime"),
    *("time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.monotonic_ns"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("Timestamp.now", "Timestamp.utcnow", "Timestamp.today"),
}
_SYSTEM = {"os.urandom", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom"}  # and all of `secrets`
_WITHOUT_SEED = {"random.default_rng", "random.RandomState", "random.Random", "random.SeedSequence"}
_SHOWING = {"print", "log", "debug", "info", "warning", "error", "exception", "set_description"}


def unrepeatable_calls(code: CodeIdentity) -> list[str]:
    """Return what the modules of a run call: `the clock (module, line N)`, or the same of random numbers."""
    found = list[str]()
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
        found += [f"{what} ({name}, line {line})" for line, what in sorted(_calls(tree))]
    return found


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names = _imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not (what := _kind(node, names)):
            continue
        if not _is_shown(node, tree, above, names):
            yield node.lineno, what


def _kind(call: ast.Call, names: dict[str, str]) -> str:
    """Return what a call reads that no run can repeat; "" for other calls."""
    words = _words(call.func, names)
    if words in _CLOCK:
        return "the clock"
    is_seeded = bool(call.args or call.keywords)
    is_random = words in _SYSTEM or words.startswith("secrets.") or (words in _WITHOUT_SEED and not is_seeded)
    return "random numbers without a seed" if is_random else ""


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


def _is_shown(node: ast.AST, tree: ast.Module, above: dict[ast.AST, ast.AST], names: dict[str, str]) -> bool:
    """Return whether a time is only subtracted from another one, shown or logged."""
    parent = above.get(node)
    while isinstance(parent, ast.expr | ast.keyword | ast.Expr):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
            other = parent.right if node is parent.left else parent.left
            return _is_time(other, tree, names)
        if isinstance(parent, ast.JoinedStr | ast.Expr):
            return True
        if isinstance(parent, ast.Call) and _last_word(parent.func) in _SHOWING:
            return True
        node, parent = parent, above.get(parent)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    target = ast.unparse(parent.targets[0])
    uses = [one for one in ast.walk(tree) if _is_use(one, target)]
    return bool(uses) and all(_is_shown(one, tree, above, names) for one in uses)


def _is_time(node: ast.expr, tree: ast.Module, names: dict[str, str]) -> bool:
    """Return whether an expression is a time that was read from the clock, too."""
    if isinstance(node, ast.Call):
        return _kind(node, names) == "the clock"
    text = ast.unparse(node)
    given = [one.value for one in ast.walk(tree) if isinstance(one, ast.Assign) and _is_target(one, text)]
    return any(isinstance(one, ast.Call) and _kind(one, names) == "the clock" for one in given)


def _is_target(node: ast.Assign, text: str) -> bool:
    return any(ast.unparse(one) == text for one in node.targets)


def _last_word(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_use(node: ast.AST, target: str) -> bool:
    is_name = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    return is_name and ast.unparse(node) == target
