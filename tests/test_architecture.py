"""The rules of the house: who may import whom, and how large things may grow."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainyard

ROOT = Path(trainyard.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
HEAVY = {
    "torch",
    "sklearn",
    "pandas",
    "pyarrow",
    "mlflow",
    "tensorboard",
    "xgboost",
    "lightgbm",
    "tensorflow",
    "keras",
}

FACE = "the package itself"

# Each layer imports only from itself and from those further down this list.
LAYERS = [
    ["cli", "__main__", FACE],
    ["testing"],
    ["api"],
    ["studies", "integrations"],
    ["runs"],
    ["evaluation", "reports", "trackers.feed"],
    ["engine"],
    ["frameworks", "datasets", "trackers", "stores", "callbacks"],
    [
        "records",
        "registry",
        "frameworks.base",
        "datasets.base",
        "trackers.base",
        "stores.base",
        "callbacks.base",
    ],
    ["config", "order", "digest", "imported", "regular", "require", "redact", "types", "errors"],
]


def name_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(part for part in parts if part != "__init__") or FACE


def layer(name: str) -> int:
    """The layer of the longest prefix that a layer names."""
    matches = [
        (len(prefix), i)
        for i, some in enumerate(LAYERS)
        for prefix in some
        if f"{name}.".startswith(f"{prefix}.")
    ]
    return max(matches)[1] if matches else len(LAYERS)


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module.startswith("trainyard"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> Iterator[str]:
    modules = {name_of(file) for file in FILES}
    for name in imports(path):
        short = name.removeprefix("trainyard.")
        if name.startswith("trainyard.") and short in modules:
            yield short


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_downwards(path: Path) -> None:
    me = name_of(path)
    for other in ours(path):
        if me.startswith("engine."):
            assert layer(other) != layer("frameworks"), f"{me} imports an adapter: {other}"
        assert layer(me) <= layer(other), f"{me} imports {other}, which stands above it"


@pytest.mark.parametrize("kind", ["frameworks", "datasets", "trackers", "stores"])
def test_no_adapter_imports_another(kind: str) -> None:
    folders = {
        name_of(file).split(".")[1]: file
        for file in (ROOT / kind).glob("*.py")
        if file.stem not in ("__init__", "base")
    }
    adapters = {
        name
        for name, file in folders.items()
        if f"class {name.title().replace('_', '')}{kind[:-1].title()}" in file.read_text()
    }
    for name in adapters:
        taken = {other.split(".")[1] for other in ours(folders[name]) if other.startswith(f"{kind}.")}
        assert not (taken & adapters - {name}), f"{kind}.{name} imports {taken & adapters}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if "frameworks/torch/" not in str(path)], ids=name_of
)
def test_heavy_libraries_are_imported_late(path: Path) -> None:
    heavy = {name.split(".")[0] for name in imports(path, top_level=True)} & HEAVY
    assert not heavy, f"{name_of(path)} imports {heavy} at its top"


def lengths(path: Path) -> Iterator[tuple[str, int]]:
    """Functions and their lines of code, docstrings not counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short() -> None:
    found = [(length, name_of(path), name) for path in FILES for name, length in lengths(path)]
    assert max(found)[0] <= 60, max(found)
    assert statistics.median(length for length, _, _ in found) <= 10


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short(path: Path) -> None:
    docstrings = 0
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            docstrings += (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    assert len(path.read_text(encoding="utf-8").splitlines()) - docstrings <= 500


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_constructors_take_six_parameters_at_most(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and "models" not in path.parts:
            assert len(node.args.args) + len(node.args.kwonlyargs) - 1 <= 6, f"{name_of(path)}:{node.lineno}"


def test_no_drawer_for_odds_and_ends() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "common", "helpers")]
