"""Copies of all environment variables: whether the code that makes one only hands it to a program."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

_CHANGES = ("pop", "setdefault", "update")  # methods of a copy that the program is given later


def is_for_program(frame: FrameType) -> bool:
    """Return whether what a frame computes now is only the variables of a program, as `env=` says.

    Args:
        frame: The user's code, at the expression that copies the variables.
    """
    return _is_for_program(frame.f_code, frame.f_lasti)


@lru_cache
def _is_for_program(code: CodeType, instruction: int) -> bool:
    first, last, begin, end = list(code.co_positions())[instruction // 2]
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return False
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (first, last, begin, end) == (
            node.lineno,
            node.end_lineno,
            node.col_offset,
            node.end_col_offset,
        ):
            return _is_given(node, above)
    return False


def _is_given(node: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    parent = above[node]
    if isinstance(parent, ast.keyword):
        return parent.arg == "env"
    if not (isinstance(parent, ast.Assign) and isinstance(name := parent.targets[0], ast.Name)):
        return False
    uses = list(_uses(name.id, parent, above))
    return bool(uses) and all(_only_changes(use, above) or _is_env(use, above) for use in uses)


def _uses(name: str, assignment: ast.AST, above: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """Yield the other places that a name is in, within the function that assigns it."""
    scope = assignment
    while not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        scope = above[scope]
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and above[node] is not assignment:
            yield node


def _is_env(use: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    return isinstance(parent := above[use], ast.keyword) and parent.arg == "env"


def _only_changes(use: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a copy is changed, and what it holds is not used: `env["A"] = "1"`."""
    parent = above[use]
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    is_method = isinstance(parent, ast.Attribute) and parent.attr in _CHANGES
    return is_method and isinstance(call := above[parent], ast.Call) and isinstance(above[call], ast.Expr)
