"""Small faults, one at a time, in a source file: what a test that can fail should notice."""

from __future__ import annotations

import ast
import copy
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

COMPARISONS: dict[type, type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type, type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
SYMMETRIC = {
    "min",
    "max",
    "isinstance",
    "contextlib.suppress",
}  # swapping their arguments changes nothing, or fails at once
COMPLEMENTS = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # flipping them negates the condition
LOGGED = {"log.info", "log.debug"}  # lines for a reader that promise nothing
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One fault. What identifies it does not contain a line number, so that moved lines keep their explanation."""

    file: str
    function: str  # qualified; empty for what runs at import
    operator: str
    before: str
    after: str
    nth: int  # among those in the function that read the same
    lines: range  # a test that reaches one of them may notice it
    path: tuple[tuple[str, int | None], ...]  # from the module's node to the one that is replaced
    replacement: ast.AST
    at_import: bool

    @property
    def key(self) -> str:
        """What a list of explained survivors calls it."""
        text = f"{self.file}::{self.function}::{self.operator}: {self.before} => {self.after}"
        return text if self.nth == 0 else f"{text} #{self.nth + 1}"

    def compiled(self, source: str, filename: str) -> CodeType:
        """Return the module's code with the fault in it; lines keep their numbers."""
        tree = ast.parse(source)
        _replace(tree, self.path, copy.deepcopy(self.replacement))
        return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all mutants of a file, in the order of its lines."""
    tree, seen, mutants = ast.parse(source), Counter[tuple[str, ...]](), []
    for site in _sites(tree, (), _Context()):
        for operator, replacement in _replacements(site.node, site.context):
            before, after = _text(tree, site, None), _text(tree, site, replacement)
            identity = (site.context.function, operator, before, after)
            lines = _lines(site)
            mutants.append(
                Mutant(
                    file, site.context.function, operator, before, after, seen[identity], lines, site.path,
                    replacement, site.context.at_import,
                )
            )  # fmt: skip
            seen[identity] += 1
    return mutants


@dataclass(frozen=True)
class _Context:
    """Where a node stands."""

    function: str = ""
    statement: ast.stmt | None = None
    statement_path: tuple[tuple[str, int | None], ...] = ()
    at_import: bool = True
    in_init: bool = False


@dataclass(frozen=True)
class _Site:
    node: ast.AST
    path: tuple[tuple[str, int | None], ...]
    context: _Context


def _sites(node: ast.AST, path: tuple[Any, ...], context: _Context) -> Iterator[_Site]:
    """Walk over what may be mutated: no annotations, no messages, no docstrings."""
    if isinstance(node, ast.JoinedStr) or _is_docstring(node):
        return
    if isinstance(node, ast.keyword) and node.arg in ("strict", "copy"):
        return  # of zip, a check that never fails; of NumPy, time and no value
    if isinstance(node, ast.stmt):
        context = _Context(context.function, node, path, context.at_import, context.in_init)
    yield _Site(node, path, context)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        if isinstance(node, ast.Raise):
            continue  # what an error says is checked where it matters, and not here
        within = context
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            function = ".".join(filter(None, (context.function, node.name)))
            body = isinstance(node, FUNCTIONS) and name == "body"
            at_import = context.at_import and not body
            within = _Context(function, node, path, at_import, body and node.name == "__init__")
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _sites(child, (*path, (name, i)), within)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replacements(node: ast.AST, context: _Context) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand in a node's stead, with the operator's name."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            changed = [*node.ops]
            changed[i] = COMPARISONS[type(operator)]()
            yield "compare", ast.Compare(node.left, changed, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "unary", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.stmt):
        yield from _statements(node, context)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _negated(node)
    if isinstance(node, ast.comprehension):
        for i, test in enumerate(node.ifs):
            ifs = [*node.ifs[:i], ast.UnaryOp(ast.Not(), test), *node.ifs[i + 1 :]]
            if not _is_complement(test):
                yield "negate", ast.comprehension(node.target, node.iter, ifs, node.is_async)


def _is_complement(test: ast.expr) -> bool:
    """Say whether negating a condition is what another operator does already."""
    compared = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], COMPLEMENTS)
    return compared or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _negated(node: ast.If | ast.While | ast.IfExp) -> Iterator[tuple[str, ast.AST]]:
    if not _is_complement(node.test):
        changed = copy.copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield "negate", changed


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = ast.unparse(node.func)
    first = node.args[:2]
    starred = any(isinstance(argument, ast.Starred) for argument in first)
    alike = len({ast.unparse(argument) for argument in first}) == 1
    if len(first) == 2 and not starred and not alike and name not in SYMMETRIC:
        yield "swap arguments", ast.Call(node.func, [first[1], first[0], *node.args[2:]], node.keywords)
    for i, keyword in enumerate(node.keywords):
        flipped = isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, int | float)
        if keyword.arg and not flipped:
            yield "drop argument", ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])


def _statements(node: ast.stmt, context: _Context) -> Iterator[tuple[str, ast.AST]]:
    if context.at_import:
        return
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "return", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Break | ast.Continue):
        yield "jump", ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif _is_removable(node, context):
        # The statement stays below a condition that is never true, so that the function's variables remain
        # the same.
        yield "remove", ast.If(ast.Constant(False), [node], [])


def _is_removable(node: ast.stmt, context: _Context) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and ast.unparse(node.value.func) not in LOGGED
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        # A constructor without an attribute fails at once: such a mutant would only flatter the figure.
        return not context.in_init and any(isinstance(t, ast.Attribute | ast.Subscript) for t in targets)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete)


def _lines(site: _Site) -> range:
    """Return the lines by which a test comes to a fault.

    These are the lines of its statement, without those of the statements in it; all of the function for the
    default of an argument, and all of the file for what else runs at import.
    """
    node: Any = site.context.statement or site.node
    if isinstance(node, FUNCTIONS):
        return range(node.lineno, node.end_lineno + 1)
    if site.context.at_import:
        return range(1, sys.maxsize)
    body = getattr(node, "body", None)
    last = max(node.lineno, body[0].lineno - 1) if isinstance(body, list) and body else node.end_lineno
    return range(node.lineno, last + 1)


def _replace(tree: ast.AST, path: tuple[Any, ...], replacement: ast.AST) -> None:
    node: Any = tree
    for name, i in path[:-1]:
        node = getattr(node, name) if i is None else getattr(node, name)[i]
    name, i = path[-1]
    old = getattr(node, name) if i is None else getattr(node, name)[i]
    if hasattr(old, "lineno"):
        ast.copy_location(replacement, old)
    if i is None:
        setattr(node, name, replacement)
    else:
        getattr(node, name)[i] = replacement


def _text(tree: ast.Module, site: _Site, replacement: ast.AST | None) -> str:
    """Return the statement that holds a node in one line, as it is or with the fault in it."""
    statement = site.context.statement
    if statement is None:
        return ""
    if replacement is not None:
        if site.node is statement:
            if isinstance(replacement, ast.If) and not isinstance(statement, ast.If):
                return "(nothing)"
            statement = replacement  # type: ignore[assignment]
        else:
            wrapper = ast.Module([copy.deepcopy(statement)], [])
            inside = site.path[len(site.context.statement_path) :]
            _replace(wrapper, (("body", 0), *inside), copy.deepcopy(replacement))
            statement = wrapper.body[0]
    return _header(statement)


def _header(statement: ast.stmt) -> str:
    shown: ast.stmt = statement
    if hasattr(statement, "body"):
        shown = copy.copy(statement)
        shown.body = [ast.Pass()]  # type: ignore[attr-defined]
        for rest in ("orelse", "finalbody", "handlers", "decorator_list"):
            if hasattr(shown, rest):
                setattr(shown, rest, [])
        if isinstance(shown, ast.Try):
            return "try"
    text = ast.unparse(ast.fix_missing_locations(shown))
    return " ".join(text.removesuffix("pass").split()).removesuffix(":")
