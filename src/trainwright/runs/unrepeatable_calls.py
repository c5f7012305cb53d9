"""The places where the user's code reads the clock, or draws random numbers that no seed determines.

Values computed from them cannot be reproduced. Times that are only subtracted from each other or
compared with each other (deadlines), shown or logged are left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from trainwright.process.module_sources import source_now
from trainwright.records.manifest import CodeIdentity

# The last two words of calls.
_CLOCK = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.strftime", "time.ctime"),
    *("time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.monotonic_ns"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("Timestamp.now", "Timestamp.utcnow", "Timestamp.today"),
}
_OF_WORDS = {"numpy.datetime64", "pandas.to_datetime", "pandas.Timestamp"}
_NOW = ("now", "today")  # their argument
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
        found += [f"{what} ({name}, line {line})" for line, what in sorted(_Source(tree).calls())]
    return found


class _Source:
    """The tree of a module, and the names that it gives to what it imports."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._names = dict[str, str]()  # and the words that they stand for
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._names |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                self._names |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
                }

    def calls(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of calls whose values no run can repeat, and what they read."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and (what := self._kind(node)) and not self._is_shown(node):
                yield node.lineno, what

    def _kind(self, call: ast.Call) -> str:
        """Return what a call reads that no run can repeat; "" for other calls."""
        words = self._words(call.func)
        now = words in _OF_WORDS and any(
            isinstance(a, ast.Constant) and a.value in _NOW for a in call.args[:1]
        )
        if words in _CLOCK or now:
            return "the clock"
        is_seeded = bool(call.args or call.keywords)
        is_of_system = words in _SYSTEM or words.startswith("secrets.")
        is_random = is_of_system or (words in _WITHOUT_SEED and not is_seeded)
        return "random numbers without a seed" if is_random else ""

    def _words(self, function: ast.expr) -> str:
        """Return the last two words of the name of a function: `datetime.now`; "" for another expression."""
        words = []
        while isinstance(function, ast.Attribute):
            words.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name) or function.id not in self._names:
            return ""
        whole = [*self._names[function.id].split("."), *reversed(words)]
        return ".".join(whole[-2:])

    def _is_shown(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a time is only subtracted from or compared with another one, shown or logged.

        Args:
            node: The expression that is the time.
            seen: The names that were given to it on the way here.
        """
        parent = self._above.get(node)
        while isinstance(parent, ast.expr | ast.keyword | ast.Expr):
            if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
                other = parent.right if node is parent.left else parent.left
                if self._is_time(other):
                    return True
            if isinstance(parent, ast.Compare):
                others = [one for one in (parent.left, *parent.comparators) if one is not node]
                return all(self._is_time(one) for one in others)
            is_call = isinstance(parent, ast.Call) and _last_word(parent.func) in _SHOWING
            if is_call or isinstance(parent, ast.JoinedStr | ast.Expr):
                return True
            node, parent = parent, self._above.get(parent)
        if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
            return False
        if (target := ast.unparse(parent.targets[0])) in seen:
            return True  # its other uses decide
        uses = [one for one in ast.walk(self._tree) if _is_use(one, target)]
        return bool(uses) and all(self._is_shown(one, seen | {target}) for one in uses)

    def _is_time(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether an expression is a time that was read from the clock, or some time from it."""
        if isinstance(node, ast.Call):
            return self._kind(node) == "the clock"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            return self._is_time(node.left, seen) != self._is_time(node.right, seen)
        if not isinstance(node, ast.Name | ast.Attribute) or (text := ast.unparse(node)) in seen:
            return False
        given = [one.value for one in ast.walk(self._tree) if _assigns(one, text)]
        return any(self._is_time(one, seen | {text}) for one in given)


def _assigns(node: ast.AST, text: str) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(ast.unparse(one) == text for one in node.targets)


def _last_word(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_use(node: ast.AST, target: str) -> bool:
    is_name = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    return is_name and ast.unparse(node) == target
