"""The rules of the architecture, as functions of a source tree: each returns what breaks it, one line each.

A rule that finds nothing to check raises `NothingToCheck`, so that none can pass by looking in the wrong
place.
"""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

Layers = Sequence[Collection[str]]
Table = Mapping[str, Mapping[str, Any]]  # kind -> name -> an entry with `target` and `extra`
Thing = TypeVar("Thing")
Function = ast.FunctionDef | ast.AsyncFunctionDef

LINES_OF_FILE, LINES_OF_FUNCTION, MEDIAN_OF_FUNCTIONS, REQUIRED_FIELDS = 500, 60, 10, 6
LINES_OF_ALL = 107_000
DRAWERS = {"util", "utils", "common", "helper", "helpers", "misc"}


class NothingToCheck(AssertionError):
    """A rule found nothing that it applies to."""


def some(things: Iterable[Thing], what: str) -> list[Thing]:
    """Return the things as a list, of which there must be one at least."""
    listed = list(things)
    if not listed:
        raise NothingToCheck(f"there is no {what}: the rule checks nothing")
    return listed


class Tree:
    """The modules of a package, by their names in it; the package itself is called by its own name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {self._name(path): path for path in sorted(root.rglob("*.py"))}
        some(self.files, f"module in {root}")

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.root).with_suffix("").parts
        return ".".join(part for part in parts if part != "__init__") or self.root.name

    @cached_property
    def syntax(self) -> Mapping[str, ast.Module]:
        """Each module's syntax tree."""
        return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.files.items()}

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """Which of the modules each one imports, also late or for type checkers."""
        return {name: frozenset(self._own(_imported(ast.walk(tree)))) for name, tree in self.syntax.items()}

    @cached_property
    def imports_at_once(self) -> Mapping[str, frozenset[str]]:
        """Which of the modules are imported with each one, and their parent packages."""
        return {
            name: frozenset(
                package
                for other in self._own(_imported(_at_once(tree)))
                for package in self._with_parents(other)
            )
            for name, tree in self.syntax.items()
        }

    def _with_parents(self, name: str) -> Iterator[str]:
        parts = name.split(".")
        return (parent for i in range(len(parts)) if (parent := ".".join(parts[: i + 1])) in self.files)

    def _own(self, imported: Iterable[tuple[str, str]]) -> Iterator[str]:
        prefix = f"{self.root.name}."
        for module, name in imported:
            for dotted in (f"{module}.{name}", module):
                short = dotted.removeprefix(prefix)
                if (dotted.startswith(prefix) or dotted == self.root.name) and short in self.files:
                    yield short
                    break

    def inside(self, package: str) -> list[str]:
        """Return a module and the modules inside it."""
        return [name for name in self.files if f"{name}.".startswith(f"{package}.")]


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import; the name is empty for `import module`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports are absolute"
            yield from ((node.module, alias.name) for alias in node.names)


def _at_once(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported: nothing in functions, nothing for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for otherwise in node.orelse:
                yield from (otherwise, *_at_once(otherwise))
            continue
        yield node
        yield from _at_once(node)


# --- directions


def layer_of(name: str, layers: Layers) -> int | None:
    """Return the layer of the longest prefix that a layer names, 0 being the highest."""
    matches = [
        (len(prefix), index)
        for index, prefixes in enumerate(layers)
        for prefix in prefixes
        if f"{name}.".startswith(f"{prefix}.")
    ]
    return max(matches)[1] if matches else None


def upward_imports(tree: Tree, layers: Layers) -> list[str]:
    """Modules that import from a layer above, that are in no layer, and layers that hold no module."""
    wrong = [f"{name} is in no layer" for name in tree.files if layer_of(name, layers) is None]
    prefixes = [prefix for layer in layers for prefix in layer]
    wrong += [f"no module is in {prefix}" for prefix in prefixes if not tree.inside(prefix)]
    edges = some(((name, other) for name in tree.files for other in tree.imports[name]), "import")
    for name, other in edges:
        mine, theirs = layer_of(name, layers), layer_of(other, layers)
        if mine is not None and theirs is not None and mine > theirs:
            wrong.append(f"{name} imports {other}, which is in a layer above")
    return wrong


def imports_of_engine(tree: Tree, engine: str, kinds: Collection[str]) -> list[str]:
    """Modules of the engine that import more of the adapters than their contracts."""
    modules = some(tree.inside(engine), f"module in {engine}")
    return [
        f"{name} imports {other}"
        for name in modules
        for other in tree.imports[name]
        if other.split(".")[0] in kinds and not other.endswith(".base")
    ]


def circles(tree: Tree) -> list[str]:
    """Import circles, late imports and imports for type checkers included."""
    some((other for others in tree.imports.values() for other in others), "import")
    reach = {name: _reachable(name, tree.imports) for name in tree.files}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in tree.files
        if name in reach[name]
    }
    return [f"circle: {', '.join(group)}" for group in sorted(groups)]


def _reachable(start: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


# --- adapters


def unregistered(tree: Tree, table: Table, shared: Collection[str]) -> list[str]:
    """Adapters that are not in the table of names, and entries of the table that are not in the tree.

    A kind's folder is one with a `base.py`. Beside it are adapters and the packages in `shared`, nothing
    else.
    """
    folders = some(
        (name.removesuffix(".base") for name in tree.files if re.fullmatch(r"\w+\.base", name)), "kind"
    )
    wrong = [
        f"{folder} has a base.py, but plugins.py has no such kind"
        for folder in folders
        if folder not in shared and folder[:-1] not in table
    ]
    wrong += [f"{kind}s/ is not there" for kind in table if f"{kind}s" not in folders]
    targets = {entry.target for entries in table.values() for entry in entries.values()}
    defined = {
        f"{tree.root.name}.{target}" for kind in table for target in _adapter_classes(tree, kind, shared)
    }
    children = {child for kind in table for child in _children(tree, f"{kind}s", shared)}
    entries = {target.partition(":")[0].removeprefix(f"{tree.root.name}.") for target in targets}
    wrong += [f"{target} is not in the table of names" for target in sorted(defined - targets)]
    wrong += [
        f"the table of names names {target}, which is not there" for target in sorted(targets - defined)
    ]
    return wrong + [f"{child} is no adapter of the table of names" for child in sorted(children - entries)]


def _children(tree: Tree, folder: str, shared: Collection[str]) -> set[str]:
    inside = [name for name in tree.inside(folder) if name != folder]
    children = {".".join(name.split(".")[:2]) for name in inside}
    return children - {f"{folder}.base"} - set(shared)


def _adapter_classes(tree: Tree, kind: str, shared: Collection[str]) -> Iterator[str]:
    """Yield module:Class of each adapter class, such as `CsvDataset`, in a child of its folder, if not shared."""
    for name in tree.inside(f"{kind}s"):
        if name.count(".") == 1 and not name.endswith(".base") and name not in shared:
            for node in tree.syntax[name].body:
                if isinstance(node, ast.ClassDef) and node.name.endswith(kind.capitalize()):
                    yield f"{name}:{node.name}"


def subclasses_in(tree: Tree, package: str, base: str) -> set[str]:
    """Return module:Class of each class in a package that derives from `base` by its name."""
    found = {
        f"{tree.root.name}.{name}:{node.name}"
        for name in tree.inside(package)
        for node in ast.walk(tree.syntax[name])
        if isinstance(node, ast.ClassDef) and base in {ast.unparse(one) for one in node.bases}
    }
    return set(some(found, f"subclass of {base}"))


def adapters(tree: Tree, table: Table) -> list[str]:
    """Return the modules in the table of names."""
    prefix = f"{tree.root.name}."
    targets = [entry.target.partition(":")[0] for entries in table.values() for entry in entries.values()]
    return some((target.removeprefix(prefix) for target in targets if target.startswith(prefix)), "adapter")


def adapters_that_import_others(tree: Tree, table: Table) -> list[str]:
    """Adapters (files or folders) that import another adapter, of any kind."""
    all_adapters = adapters(tree, table)
    wrong = []
    for adapter in all_adapters:
        for name in some(tree.inside(adapter), f"module in {adapter}"):
            others = {other for other in tree.imports[name] if other not in tree.inside(adapter)}
            wrong += [
                f"{name} imports {other}"
                for other in sorted(others)
                if any(f"{other}.".startswith(f"{one}.") for one in all_adapters)
            ]
    return wrong


def untested(tests: Path, table: Table) -> list[str]:
    """Adapters without a test class that subclasses their kind's contract suite and names them."""
    wrong = []
    for kind, entries in table.items():
        suite = f"{kind.capitalize()}Suite"
        files = [
            path for path in sorted(tests.rglob("test_*.py")) if suite in path.read_text(encoding="utf-8")
        ]
        bodies = some((body for path in files for body in _subclasses(path, suite)), f"subclass of {suite}")
        for name, entry in entries.items():
            cls = entry.target.partition(":")[2]
            is_named = kind in ("framework", "strategy")  # by its name, not by its class
            mention = rf"^ +{kind}(: [^=]+)? = ['\"]{name}['\"]" if is_named else rf"\b{cls}\b"
            if not any(re.search(mention, body, re.MULTILINE) for body in bodies):
                wrong.append(f"no test of {kind} {name} subclasses {suite}")
    return wrong


def _subclasses(path: Path, suite: str) -> Iterator[str]:
    """Yield the source of each class that subclasses a suite, at one remove or more."""
    text = path.read_text(encoding="utf-8")
    suites = {suite}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and suites & {ast.unparse(base) for base in node.bases}:
            suites.add(node.name)
            yield ast.get_source_segment(text, node) or ""


# --- optional libraries


def extras_of(pyproject: Path) -> dict[str, list[str]]:
    """Return the distributions that each extra brings."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = {
        extra: [_distribution(requirement) for requirement in requirements]
        for extra, requirements in project["optional-dependencies"].items()
    }
    some(extras, "extra")
    core = {_distribution(requirement) for requirement in project["dependencies"]} | {project["name"]}
    return {extra: [name for name in names if name not in core] for extra, names in extras.items()}


def _distribution(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement.strip(), maxsplit=1)[0].lower()


def heavy_libraries(extras: Mapping[str, Sequence[str]], provided: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the import names of all optional libraries.

    Args:
        extras: The distributions of each extra.
        provided: Import name -> distributions, from `importlib.metadata.packages_distributions`. One
            that is not installed is taken to have the import name that its own name suggests.
    """
    wanted = {name for names in extras.values() for name in names}
    heavy = {top for top, names in provided.items() if wanted & {name.lower() for name in names}}
    installed = {name.lower() for names in provided.values() for name in names}
    heavy |= {name.replace("-", "_") for name in wanted - installed}
    return set(some((name for name in heavy if not name.startswith("_")), "optional library"))


def heavy_imports(tree: Tree, heavy: Collection[str], table: Table, free: Collection[str]) -> list[str]:
    """Modules that import an optional library while they are imported, themselves or through another module.

    Allowed are the inner modules of an adapter's folder (the adapter imports them when it is constructed),
    the integration or the module of `support` that is named after a library, and the packages in `free`.
    """
    direct = {name: _heavy_at_once(tree.syntax[name], heavy) for name in tree.files}
    some((libraries for libraries in direct.values() if libraries), "import of an optional library")
    entries = adapters(tree, table)
    wrong = []
    for name in tree.files:
        reached = {name, *_reachable(name, tree.imports_at_once)}
        libraries = sorted(set().union(*(direct[other] for other in reached)))
        inner = any(name != entry and name.startswith(f"{entry}.") for entry in entries)
        integration = name.startswith("integrations.") and name.split(".")[1] in heavy
        support = ".support." in name and name.rpartition(".")[2].split("_")[0] in heavy
        exempt = any(f"{name}.".startswith(f"{package}.") for package in free)
        if libraries and not (inner or integration or support or exempt):
            wrong.append(f"{name} imports {', '.join(libraries)} at once")
    return wrong


def _heavy_at_once(tree: ast.Module, heavy: Collection[str]) -> set[str]:
    """Return the optional libraries that are imported with a module, by a statement or by `require`."""
    nodes = list(_at_once(tree))
    names = {module.split(".")[0] for module, _ in _imported(nodes)}
    names |= {library.split(".")[0] for library, _ in _required(nodes)}
    return names & set(heavy)


def _required(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield (library, extra) of each call of `require` with constants."""
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "require" and len(node.args) == 2:
            library, extra = node.args
            if isinstance(library, ast.Constant) and isinstance(extra, ast.Constant):
                yield str(library.value), str(extra.value)


def wrong_extras(tree: Tree, table: Table, extras: Mapping[str, Sequence[str]]) -> list[str]:
    """Adapters whose entry names another extra than their code asks for, or one that does not exist."""
    wrong, prefix = [], f"{tree.root.name}."
    for entries in table.values():
        for name, entry in entries.items():
            module = entry.target.partition(":")[0].removeprefix(prefix)
            nodes = [node for inner in tree.inside(module) for node in ast.walk(tree.syntax[inner])]
            used = {extra for _, extra in _required(nodes)}
            if used and entry.extra not in used:
                wrong.append(
                    f"{name} needs the extra {' or '.join(sorted(used))}, the table says {entry.extra}"
                )
            if not used and entry.extra is not None:
                wrong.append(f"{name} needs no extra, the table says {entry.extra}")
            named = used | ({entry.extra} if entry.extra else set())
            wrong += [
                f"{name}: pyproject.toml has no extra {extra}" for extra in sorted(named - extras.keys())
            ]
    some(
        (entry for entries in table.values() for entry in entries.values() if entry.extra),
        "adapter with an extra",
    )
    return wrong


# --- records


def readers_of_records(
    tree: Tree, home: str, files: Collection[str], free: Collection[str] = ()
) -> list[str]:
    """Modules outside `home` and `free` that name the file of a record, as its second reader would."""
    some(tree.inside(home), f"module in {home}")
    named = some(
        ((name, file) for name, syntax in tree.syntax.items() for file in _texts(syntax) if file in files),
        "name of a record's file",
    )
    gone = [f"no module is in {package}" for package in free if not tree.inside(package)]
    return gone + [
        f"{name} names {file}"
        for name, file in named
        if not any(f"{name}.".startswith(f"{package}.") for package in (home, *free))
    ]


def _texts(syntax: ast.Module) -> list[str]:
    """Return the strings of a module; a docstring that merely mentions a file is longer than its name."""
    return [
        node.value
        for node in ast.walk(syntax)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


# --- budgets


def _functions(tree: Tree) -> Iterator[tuple[str, Function]]:
    for name, syntax in tree.syntax.items():
        yield from ((name, node) for node in ast.walk(syntax) if isinstance(node, Function))


def _lines(node: Function) -> int:
    """Return the lines of a function's body, its docstring not counted."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def long_functions(tree: Tree) -> list[str]:
    """Functions that are too long, and a median that is."""
    lengths = some(((_lines(node), f"{name}.{node.name}") for name, node in _functions(tree)), "function")
    wrong = [f"{name} has {lines} lines" for lines, name in lengths if lines > LINES_OF_FUNCTION]
    median = statistics.median(lines for lines, _ in lengths)
    return wrong + ([f"the median function has {median} lines"] if median > MEDIAN_OF_FUNCTIONS else [])


def lines_of_code(tree: Tree) -> int:
    """The lines of all files, without blank lines, comments and docstrings."""
    total = 0
    for name, path in tree.files.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree.syntax[name]):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
                first = node.body[0].lineno - 1
                lines[first : node.body[0].end_lineno] = [""] * ((node.body[0].end_lineno or 0) - first)
        total += sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)
    return total


def long_files(tree: Tree) -> list[str]:
    """Files that are too long, docstrings not counted."""
    wrong = []
    for name, path in tree.files.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        for node in ast.walk(tree.syntax[name]):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
        if lines > LINES_OF_FILE:
            wrong.append(f"{name} has {lines} lines")
    return wrong


def wide_constructors(tree: Tree, free: Collection[str] = ()) -> list[str]:
    """Constructors and dataclasses with too many fields that callers must give, outside `free`."""
    classes = some(
        (
            (name, node)
            for name, tree_ in tree.syntax.items()
            for node in ast.walk(tree_)
            if isinstance(node, ast.ClassDef)
        ),
        "class",
    )
    return [
        f"{name}.{node.name} requires {len(fields)} fields"
        for name, node in classes
        if len(fields := _required_fields(node)) > REQUIRED_FIELDS
        and not any(f"{name}.".startswith(f"{package}.") for package in free)
    ]


def _required_fields(node: ast.ClassDef) -> list[str]:
    """Return the fields or parameters of a class that have no default."""
    init = next((one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None)
    if init is not None:
        positional = [*init.args.posonlyargs, *init.args.args][1:]
        required = positional[: len(positional) - len(init.args.defaults)]
        keyword = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
        return [one.arg for one in [*required, *(one for one, default in keyword if default is None)]]
    words = {ast.unparse(one).split("(")[0].split(".")[-1] for one in node.decorator_list}
    if "dataclass" not in words:
        return []
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    return [
        ast.unparse(one.target)
        for one in fields
        if "ClassVar" not in ast.unparse(one.annotation) and not _has_default(one.value)
    ]


def _has_default(value: ast.expr | None) -> bool:
    """Return whether the value of a dataclass field is a default; `field(repr=False)` is none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "dataclasses.field"):
        return any(keyword.arg in ("default", "default_factory", "init") for keyword in value.keywords)
    return value is not None


def drawers(tree: Tree) -> list[str]:
    """Modules and folders that are named for nothing in particular."""
    return [name for name in tree.files if set(name.split(".")) & DRAWERS]


# --- the way of a step


def missing_links(tree: Tree, way: Sequence[str]) -> list[str]:
    """Neighbors on a way of modules of which the first does not import the second."""
    some(way[1:], "link")
    gone = [f"there is no {name}" for name in way if name not in tree.files]
    return gone or [
        f"{one} does not import {other}" for one, other in pairwise(way) if other not in tree.imports[one]
    ]


# --- English


_CLAUSES = re.compile(r"(What|Whether|How|Who|Whose|That|Whatever|Where|When|Why)\b")


def clauses(tree: Tree) -> list[str]:
    """Docstrings that begin with a clause: a function does something, a class or module is something."""
    documented = some(
        (
            (name, node, text)
            for name, module in tree.syntax.items()
            for node in ast.walk(module)
            if isinstance(node, Function | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node))
        ),
        "docstring",
    )
    return [
        f"{name}: {getattr(node, 'name', 'the module')}: {text.splitlines()[0]}"
        for name, node, text in documented
        if _CLAUSES.match(text)
    ]
