"""The rules that tasks and frameworks are asked, not recognized, as functions of a source tree."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from architecture import Tree, some

UNDECIDED = "auto"  # what a config says instead of a task


def askers_of_tasks(
    tree: Tree, tasks: Collection[str], home: str, tables: Collection[str], table: str
) -> list[str]:
    """What recognizes a task outside its home.

    That is a comparison with the name of a task, written out or a constant; a table by the names of tasks, which
    adapters of some kinds may have, from tasks to what their library calls them; and an import of a task's own
    module, by which one could ask for its class. A comparison with `auto` among other names is free: a data set
    with one task checks by it what a config says.

    Args:
        tree: The modules.
        tasks: The names of the tasks.
        home: The package of the tasks.
        tables: The packages that may have tables from tasks to something of a library.
        table: The module with the table of all adapters.
    """
    constants = _constants(tree, tasks)
    some((name for name in tree.files if _holds(tree.syntax[name], tasks)), "module with the name of a task")
    wrong = []
    for name, syntax in tree.syntax.items():
        top = name.split(".")[0]
        if top == home:
            continue
        known = _known(name, syntax, tree, constants)
        wrong += [f"{name} compares with {value}" for value in _compared(syntax, tasks, known)]
        if top not in tables and name != table:
            wrong += [f"{name} has a table by {key!r}" for key in _keys(syntax, tasks)]
        own = (other for other in tree.imports[name] if other.removeprefix(f"{home}.") in tasks)
        wrong += [f"{name} imports {other}" for other in sorted(own)]
    return wrong


def askers_of_frameworks(tree: Tree, names: Collection[str], home: str, free: Mapping[str, str]) -> list[str]:
    """What recognizes a framework or a model by its name outside the frameworks.

    That is a comparison with the name, written out or a constant, and a table by such names. Names in a call are
    free: they are those of packages (`version("torch")`).

    Args:
        tree: The modules.
        names: The names of the frameworks, and the short names of models that the table lists.
        home: The package of the frameworks.
        free: Modules and packages that may, and why.
    """
    constants = _constants(tree, names)
    some((name for name in tree.files if _holds(tree.syntax[name], names)), "module with such a name")
    gone = [f"no module is in {package}" for package in free if not tree.inside(package)]
    others = {
        name: syntax
        for name, syntax in tree.syntax.items()
        if not any(f"{name}.".startswith(f"{package}.") for package in (home, *free))
    }
    wrong = []
    for name, syntax in others.items():
        known = _known(name, syntax, tree, constants)
        wrong += [f"{name} compares with {value}" for value in _compared(syntax, names, known, calls=False)]
        wrong += [f"{name} has a table by {key!r}" for key in _keys(syntax, names)]
    return gone + wrong


def _holds(node: ast.AST, tasks: Collection[str]) -> bool:
    return any(isinstance(part, ast.Constant) and part.value in tasks for part in ast.walk(node))


def _constants(tree: Tree, tasks: Collection[str]) -> set[tuple[str, str]]:
    """Return (module, name) of each constant that is a task's name, or a collection with one; no tables are."""
    return {
        (name, target.id)
        for name, syntax in tree.syntax.items()
        for node in syntax.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        if not isinstance(node.value, ast.Dict | ast.DictComp) and _holds(node.value, tasks)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _known(name: str, syntax: ast.Module, tree: Tree, constants: Collection[tuple[str, str]]) -> set[str]:
    """Return the names by which a module knows these constants: its own, and those that it imports."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(syntax)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if (node.module.removeprefix(f"{tree.root.name}."), alias.name) in constants
    }
    return imported | {constant for module, constant in constants if module == name}


def _compared(
    syntax: ast.AST, tasks: Collection[str], known: Collection[str], *, calls: bool = True
) -> Iterator[str]:
    """Yield what is compared with: names, and constants that hold one; without `calls`, none within calls."""
    for node in ast.walk(syntax):
        if not isinstance(node, ast.Compare | ast.MatchValue):
            continue
        parts = list(ast.walk(node) if calls else _outside_calls(node))
        if any(isinstance(part, ast.Constant) and part.value == UNDECIDED for part in parts):
            continue
        for part in parts:
            if isinstance(part, ast.Constant) and part.value in tasks:
                yield repr(part.value)
            elif isinstance(part, ast.Name) and part.id in known:
                yield part.id


def _outside_calls(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Call):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _outside_calls(child)


def _keys(syntax: ast.AST, tasks: Collection[str]) -> Iterator[str]:
    for node in ast.walk(syntax):
        if isinstance(node, ast.Dict):
            yield from (
                key.value for key in node.keys if isinstance(key, ast.Constant) and key.value in tasks
            )
