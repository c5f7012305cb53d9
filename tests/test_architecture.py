"""The rules of the house hold for our sources, and each of them can fail."""

from __future__ import annotations

import tomllib
import traceback
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import architecture as rules
import trainwright
from architecture import NothingToCheck, Tree
from name_rules import askers_of_frameworks, askers_of_tasks
from trainwright.cli.main import main
from trainwright.plugins import BUILT_IN
from trainwright.records.manifest import Manifest
from trainwright.records.result import Result
from trainwright.records.study import StudyRecord

ROOT = Path(trainwright.__file__).parent
TESTS = Path(__file__).parent
PYPROJECT = TESTS.parent / "pyproject.toml"

# Each layer imports only from itself and from those further down this list.
LAYERS = (
    ("cli", "__main__", "trainwright"),
    ("testing",),
    ("servers",),
    ("api",),
    ("studies", "integrations", "compression"),
    ("runs",),
    ("exporters",),
    ("inference",),
    ("evaluation", "monitoring", "reports", "trackers.feed"),
    ("engine",),
    ("frameworks", "datasets", "trackers", "stores", "samplers", "tuners", "callbacks", "versions"),
    ("frameworks.boosting",),
    (
        "frameworks.support",
        "datasets.tables",
        "datasets.images",
        "datasets.texts",
        "datasets.samples",
        "stores.support",
        "trackers.support",
    ),
    (
        "records",
        "storage",
        "plugins",
        "tasks",
        "frameworks.base",
        "datasets.base",
        "trackers.base",
        "stores.base",
        "samplers.base",
        "tuners.base",
        "callbacks.base",
        "versions.base",
        "servers.base",
    ),
    (
        "config",
        "order",
        "digest",
        "safe_files",
        "require",
        "redact",
        "types",
        "numerals",
        "process",
        "errors",
        "version",
        "world",
    ),
)
SHARED = (
    "frameworks.boosting",
    "frameworks.support",
    "datasets.tables",
    "datasets.images",
    "datasets.texts",
    "datasets.samples",
    "stores.support",
    "tasks.support",
    "trackers.feed",
    "callbacks",
    "servers.service",
    "exporters.certificates",
    "exporters.opened",
    "exporters.prepared",
    "exporters.opened",
    "exporters.weights",
    "trackers.support",
    "exporters.programs",
    "exporters.trees",
    "servers.rendering",
    "servers.requirements",
)  # beside adapters, and no adapters
# The kinds that have a package of their own; strategies are part of training with torch.
OUTER = {kind: entries for kind, entries in BUILT_IN.items() if kind != "strategy"}
KINDS = tuple(f"{kind}s" for kind in OUTER)
NAMING_FRAMEWORKS = {
    "plugins": "the table of all adapters",
    "runs.semantics": "the table of the versions of our parts",
    "exporters.onnx": "the table of its converters",
    "exporters.pmml": "the table of its converters",
    "exporters.native": "the table of its libraries",
    "exporters.pt2": "a format of one framework",
    "exporters.aoti": "a format of one framework",
    "exporters.torchscript": "a format of one framework",
    "exporters.executorch": "a format of one framework",
    "exporters.mar": "a format of one framework",
    "exporters.litert": "a format of one framework",
    "testing": "knows the settings that libraries have in a process",
    "servers.rendering": "a table of libraries of the system that wheels need",
    "runs.environment": "the names under which packages are distributed",
}
TORCH = "frameworks/torch/step.py"
# The files that a step passes through; the loop knows frameworks by their contract alone.
WAY = ("cli/train.py", "api/training.py", "runs/attempt.py", "runs/wiring.py", "engine/loop.py", TORCH)


@pytest.fixture(scope="module")
def ours() -> Tree:
    return Tree(ROOT)


@pytest.fixture(scope="module")
def extras() -> dict[str, list[str]]:
    return rules.extras_of(PYPROJECT)


@pytest.fixture(scope="module")
def heavy(extras: dict[str, list[str]]) -> set[str]:
    return rules.heavy_libraries(extras, metadata.packages_distributions())


def test_imports_run_downwards(ours: Tree) -> None:
    assert rules.upward_imports(ours, LAYERS) == []


def test_the_engine_knows_contracts_alone(ours: Tree) -> None:
    assert rules.imports_of_engine(ours, "engine", KINDS) == []


def test_nothing_asks_which_task_it_is(ours: Tree) -> None:
    """An adapter of a framework has its own table from tasks to the objectives of its library."""
    assert askers_of_tasks(ours, BUILT_IN["task"], "tasks", ["frameworks"], "plugins") == []


def test_nothing_asks_which_framework_it_is(ours: Tree) -> None:
    entries = BUILT_IN["framework"]
    names = {*entries, *(model for entry in entries.values() for model in entry.serves or ())}
    assert askers_of_frameworks(ours, names, "frameworks", NAMING_FRAMEWORKS) == []


def test_the_root_is_small() -> None:
    assert len([path.name for path in ROOT.glob("[!_]*.py")]) in range(5, 11)


def test_there_are_no_circles(ours: Tree) -> None:
    assert rules.circles(ours) == []


def test_adapters_are_in_the_table(ours: Tree) -> None:
    assert rules.unregistered(ours, OUTER, SHARED) == []
    strategies = rules.subclasses_in(ours, "frameworks.torch.parallel", "Strategy")
    assert strategies == {entry.target for entry in BUILT_IN["strategy"].values()}


def test_no_adapter_imports_another(ours: Tree) -> None:
    assert rules.adapters_that_import_others(ours, OUTER) == []


def test_each_adapter_passes_its_suite() -> None:
    assert rules.untested(TESTS, BUILT_IN) == []


def test_each_adapter_has_its_extra(ours: Tree, extras: dict[str, list[str]]) -> None:
    assert rules.wrong_extras(ours, BUILT_IN, extras) == []


def test_optional_libraries_are_imported_late(ours: Tree, heavy: set[str]) -> None:
    assert {
        "torch",
        "sklearn",
        "pandas",
        "keras",
        "tensorflow",
        "jax",
        "xgboost",
        "google",
        "lightning",
    } <= heavy
    assert not heavy & {"numpy", "pydantic", "click", "trainwright"}
    shared = "frameworks.support.torch_draws"  # two adapters import it, where they import torch
    assert rules.heavy_imports(ours, heavy, BUILT_IN, ["testing", "servers.service", shared]) == []


def test_records_have_one_reader(ours: Tree) -> None:
    files = [Manifest.FILE, Result.FILE, StudyRecord.FILE]
    # A checkpoint has a manifest of its own.
    free = ["engine.checkpoint", "integrations.checkpoints", "testing.store_suite"]
    assert rules.readers_of_records(ours, "records", files, free) == []


def test_the_code_stays_small(ours: Tree) -> None:
    count = rules.lines_of_code(ours)
    print(f"{len(ours.files)} files, {count:,} lines of code")
    assert count <= rules.LINES_OF_ALL


def test_lines_of_code_are_counted_without_comments_and_docstrings(make: Make) -> None:
    text = '"""A module.\n\nMore.\n"""\n\n# why\nx = 1  # here\n\n\ndef f():\n    """Do."""\n    return x\n'
    assert rules.lines_of_code(make({"a": text})) == 3


def test_docstrings_begin_with_a_verb_or_a_noun(ours: Tree) -> None:
    assert rules.clauses(ours) == []


def test_a_docstring_that_begins_with_a_clause_is_found(make: Make) -> None:
    text = '"""The module."""\ndef f():\n    """Whether it is so."""\nclass C:\n    """What it does."""\n'
    assert len(rules.clauses(make({"a": text}))) == 2


def test_budgets(ours: Tree) -> None:
    assert rules.long_files(ours) == []
    assert rules.long_functions(ours) == []
    # The parameters of a user's own kind of model are the fields of its constructor.
    assert rules.wide_constructors(ours, ["frameworks.torch.models"]) == []
    assert rules.drawers(ours) == []


def test_faults_are_put_into_all_of_the_engine() -> None:
    targets = tomllib.loads((TESTS / "mutation" / "targets.toml").read_text(encoding="utf-8"))["groups"]
    files = {name for group in targets.values() for name in group["files"]}
    guards = {name for group in targets.values() for name in group["guards"]}
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert [name for name in guards if not (TESTS / name).exists()] == []
    engine = {f"engine/{path.name}" for path in (ROOT / "engine").glob("[!_]*.py")}
    assert len(engine) > 10
    assert (engine | {"order.py", "frameworks/torch/step.py"}) - files == set()


def test_a_step_imports_its_way(ours: Tree) -> None:
    modules = [file.removesuffix(".py").replace("/", ".") for file in WAY[:-1]]
    # `trainwright.train` is `api.train`, which the package itself imports when it is asked for.
    assert rules.missing_links(ours, [modules[0], "trainwright", "api", modules[1]]) == []
    assert trainwright.train.__module__ == f"trainwright.{modules[1]}"
    assert rules.missing_links(ours, modules[1:]) == []
    assert rules.missing_links(ours, ["engine.loop", "frameworks.base"]) == [], (
        "the loop reaches it by its contract"
    )
    step = TORCH.removesuffix(".py").replace("/", ".")
    assert rules.missing_links(ours, ["frameworks.torch", "frameworks.torch.learner", step]) == []


@pytest.mark.slow
def test_a_step_passes_through_the_files_of_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.engine.loop import Loop
    from trainwright.frameworks.torch.step import TorchStep

    made = record_stack(monkeypatch, Loop, "__init__")
    stepped = record_stack(monkeypatch, TorchStep, "_microbatch")
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        "{data: {type: iris}, model: mlp, training: {max_steps: 1, threads: 1}}", encoding="utf-8"
    )
    assert main(["train", str(config), "--quiet"]) == 0
    for stack, way in ((made, WAY[:4]), (stepped, [file for file in WAY if file != "runs/wiring.py"])):
        indexes = [stack.index(file) for file in way]
        assert indexes == sorted(indexes)


def record_stack(monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> list[str]:
    """Return a list that will hold our files on the call stack of a method, the outermost first."""
    method, files = getattr(cls, name), list[str]()

    def recorded(*arguments: Any, **options: Any) -> Any:
        stack = [Path(frame.filename) for frame in traceback.extract_stack()]
        files.extend(str(path.relative_to(ROOT)) for path in stack if path.is_relative_to(ROOT))
        return method(*arguments, **options)

    monkeypatch.setattr(cls, name, recorded)
    return files


# --- Each rule can fail: on small trees made up for it.

Make = Callable[..., Tree]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a package `pack` with these modules."""

    def write(modules: dict[str, str]) -> Tree:
        for name, source in {"__init__": "", **modules}.items():
            path = tmp_path / "pack" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        return Tree(tmp_path / "pack")

    return write


def entry(target: str, extra: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(target=target, extra=extra)


def names(problems: Iterable[str]) -> str:
    return "\n".join(problems)


LATE = "def f():\n    from pack.{} import x"
TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.{} import x"


def test_an_empty_tree_is_nothing_to_check(tmp_path: Path, make: Make) -> None:
    with pytest.raises(NothingToCheck):
        Tree(tmp_path / "nowhere")
    bare = make({"a": ""})
    bare_rules: list[Callable[[], list[str]]] = [
        lambda: rules.upward_imports(bare, [["a", "pack"]]),
        lambda: rules.imports_of_engine(bare, "engine", ["things"]),
        lambda: askers_of_tasks(bare, ["sorting"], "tasks", [], "plugins"),
        lambda: askers_of_frameworks(bare, ["forest"], "frameworks", {}),
        lambda: rules.circles(bare),
        lambda: rules.unregistered(bare, {}, []),
        lambda: rules.adapters_that_import_others(bare, {}),
        lambda: rules.untested(tmp_path, {"thing": {"x": entry("pack.things.x:XThing")}}),
        lambda: rules.wrong_extras(bare, {}, {"x": ["x"]}),
        lambda: rules.heavy_imports(bare, {"torch"}, {}, []),
        lambda: sorted(rules.heavy_libraries({}, {})),
        lambda: rules.readers_of_records(bare, "records", ["a.json"]),
        lambda: rules.readers_of_records(bare, "a", ["a.json"]),
        lambda: rules.clauses(bare),
        lambda: rules.long_functions(bare),
        lambda: rules.wide_constructors(bare),
        lambda: rules.missing_links(bare, ["a"]),
    ]
    for rule in bare_rules:
        with pytest.raises(NothingToCheck):
            rule()


@pytest.mark.parametrize(
    "source", ["from pack.high import x", "import pack.high", LATE.format("high"), TYPED.format("high")]
)
def test_an_import_upwards_is_found(source: str, make: Make) -> None:
    layers = [["high", "pack"], ["low"]]
    assert rules.upward_imports(make({"high": "from pack.low import x", "low": ""}), layers) == []
    assert "low imports high" in names(rules.upward_imports(make({"high": "", "low": source}), layers))


def test_every_module_and_every_layer_counts(make: Make) -> None:
    tree = make({"high": "import pack.low", "low": "", "new": ""})
    assert rules.upward_imports(tree, [["high", "pack"], ["low", "gone"]]) == [
        "new is in no layer",
        "no module is in gone",
    ]
    part = make({"high": "", "low": "", "new": "", "low/base": "import pack.low"})
    layers = [["high", "pack", "new"], ["low"], ["low.base"]]
    assert names(rules.upward_imports(part, layers)).startswith("low.base imports low")


@pytest.mark.parametrize(
    ("source", "good"), [("from pack.things.base import T", True), ("from pack.things.x import X", False)]
)
def test_an_engine_that_knows_an_adapter_is_found(source: str, good: bool, make: Make) -> None:
    tree = make({"engine/loop": source, "things/base": "", "things/x": ""})
    assert (rules.imports_of_engine(tree, "engine", ["things"]) == []) is good


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('x.task == "sorting"', "compares with 'sorting'"),
        ('x.task in ("sorting", "other")', "compares with 'sorting'"),
        ('"sorting" != x', "compares with 'sorting'"),
        ('match x:\n    case "sorting":\n        pass', "compares with 'sorting'"),
        ('_TASK = "sorting"\ndef f(x):\n    return x == _TASK', "compares with _TASK"),
        ('ONES: tuple[str, ...] = ("sorting",)\ny = x in ONES', "compares with ONES"),
        ("from pack.tasks.sorting import NAME as it\ny = x is it", "compares with it"),
        ('y = {"sorting": 1}[x]', "has a table by 'sorting'"),
        ("from pack.tasks.sorting import Sorting", "imports tasks.sorting"),
    ],
)
@pytest.mark.parametrize("place", ["engine/loop", "frameworks/x"])
def test_who_asks_which_task_it_is_is_found(source: str, said: str, place: str, make: Make) -> None:
    def askers(modules: dict[str, str]) -> list[str]:
        own = f'NAME = "sorting"\n{source.replace("pack.tasks.sorting", "y")}'
        tree = make({"engine/loop": "", "tasks/sorting": own, **modules})
        return askers_of_tasks(tree, ["sorting"], "tasks", ["frameworks"], "plugins")

    assert askers({}) == askers({"tasks/other": source}) == []
    may = place == "frameworks/x" and "table" in said
    found = askers({place: source})
    assert (f"{place.replace('/', '.')} {said}" in found) is not may, found


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('y = x == "forest"', "compares with 'forest'"),
        ('y = x not in ("forest", "other")', "compares with 'forest'"),
        ('ONES = ("forest",)\ny = x in ONES', "compares with ONES"),
        ("from pack.lists import ONES\ny = [z for z in x if z in ONES]", "compares with ONES"),
        ('y = {"forest": 1}.get(x)', "has a table by 'forest'"),
        ('match x:\n    case "forest":\n        pass', "compares with 'forest'"),
        ('y = find_spec("forest") is None', None),
        ('y = ["forest"]', None),
    ],
)
def test_who_asks_which_framework_it_is_is_found(source: str, said: str | None, make: Make) -> None:
    tree = make({"frameworks/forest": source, "lists": 'ONES = ("forest",)', "reports": source})
    found = askers_of_frameworks(tree, ["forest"], "frameworks", {})
    assert found == ([] if said is None else [f"reports {said}"])
    assert askers_of_frameworks(tree, ["forest"], "frameworks", {"reports": "why"}) == []
    gone = askers_of_frameworks(tree, ["forest"], "frameworks", {"reports": "why", "no": ""})
    assert gone == ["no module is in no"]


def test_a_data_set_may_check_the_task_of_a_config(make: Make) -> None:
    source = '_TASK = "sorting"\nwrong = x.task not in ("auto", _TASK)'
    tree = make({"tasks/sorting": 'NAME = "sorting"', "datasets/x": source})
    assert askers_of_tasks(tree, ["sorting"], "tasks", [], "plugins") == []


@pytest.mark.parametrize("back", ["import pack.a", "from pack import a", LATE.format("a"), TYPED.format("a")])
def test_a_circle_is_found(back: str, make: Make) -> None:
    assert rules.circles(make({"a": "import pack.b", "b": "import pack.c", "c": ""})) == []
    assert rules.circles(make({"a": "import pack.b", "b": "import pack.c", "c": back})) == ["circle: a, b, c"]


THINGS = {
    "things/base": "",
    "things/x": "class XThing: ...",
    "things/y/__init__": "from pack.things.y.inner import f\nclass YThing: ...",
    "things/y/inner": "",
    "things/shared/__init__": "",
}
TABLE = {"thing": {"x": entry("pack.things.x:XThing"), "y": entry("pack.things.y:YThing")}}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        ({"things/z": "class ZThing: ..."}, "pack.things.z:ZThing is not in the table of names"),
        ({"things/z/__init__": "class ZThing: ..."}, "pack.things.z:ZThing is not in the table of names"),
        ({"things/odds": ""}, "things.odds is no adapter"),
        (
            {"things/x": "class Other: ..."},
            "the table of names names pack.things.x:XThing, which is not there",
        ),
        ({"others/base": ""}, "others has a base.py, but plugins.py has no such kind"),
    ],
)
def test_an_adapter_beside_the_table_is_found(more: dict[str, str], said: str, make: Make) -> None:
    found = rules.unregistered(make({**THINGS, **more}), TABLE, ["things.shared"])
    if said:
        assert said in names(found)
    else:
        assert found == []


@pytest.mark.parametrize("file", ["things/x", "things/y/__init__", "things/y/inner"])
def test_an_adapter_that_imports_another_is_found(file: str, make: Make) -> None:
    assert rules.adapters_that_import_others(make(THINGS), TABLE) == []
    other = "x" if "y" in file else "y.inner"
    name = file.removesuffix("/__init__").replace("/", ".")
    tree = make({**THINGS, file: LATE.format(f"things.{other}")})
    assert rules.adapters_that_import_others(tree, TABLE) == [f"{name} imports things.{other}"]


def test_an_adapter_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "class Base(ThingSuite):\n    def make(self): ...\n"
        "class TestX(Base):\n    def make(self): return XThing()",
        encoding="utf-8",
    )
    assert rules.untested(tmp_path, TABLE) == ["no test of thing y subclasses ThingSuite"]
    (tmp_path / "test_y.py").write_text("# ThingSuite\nclass TestY:\n    make = YThing", encoding="utf-8")
    assert rules.untested(tmp_path, TABLE) == ["no test of thing y subclasses ThingSuite"]
    frameworks = {"framework": {"x": entry("pack.frameworks.x:XFramework")}}
    (tmp_path / "test_f.py").write_text("class T(FrameworkSuite):\n    framework = 'y'", encoding="utf-8")
    assert rules.untested(tmp_path, frameworks) == ["no test of framework x subclasses FrameworkSuite"]


def test_heavy_libraries_come_from_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        """
[project]
name = "pack"
dependencies = ["numpy>=2"]
[project.optional-dependencies]
a = ["scikit-learn>=1,<2", "numpy"]
b = ["never-installed ; python_version > '3'"]
all = ["pack[a,b]"]
""",
        encoding="utf-8",
    )
    extras = rules.extras_of(tmp_path / "pyproject.toml")
    assert extras == {"a": ["scikit-learn"], "b": ["never-installed"], "all": []}
    provided = {"sklearn": ["scikit-learn"], "numpy": ["numpy"], "_private": ["scikit-learn"]}
    assert rules.heavy_libraries(extras, provided) == {"sklearn", "never_installed"}


@pytest.mark.parametrize(
    ("more", "guilty"),
    [
        ({}, set()),
        ({"cli": "import torch.nn"}, {"cli"}),
        ({"cli": "if True:\n    from torch import nn"}, {"cli"}),
        ({"cli": "class A:\n    import torch"}, {"cli"}),
        ({"cli": "torch = require('torch', 'torch')"}, {"cli"}),
        ({"cli": "def f():\n    import torch"}, set()),
        ({"cli": "import pack.things.y.inner"}, {"cli"}),
        ({"things/y/__init__": "import pack.things.y.inner"}, {"things.y"}),
        ({"things/x": "import torch"}, {"things.x"}),
        ({"testing": "import torch"}, set()),
        ({"integrations/torch": "import torch"}, set()),
        ({"integrations/torch": "import torch", "cli": "import pack.integrations.torch"}, {"cli"}),
        ({"integrations/other": "import torch"}, {"integrations.other"}),
    ],
)
def test_a_heavy_import_is_found(more: dict[str, str], guilty: set[str], make: Make) -> None:
    base = {
        **THINGS,
        "things/y/__init__": "class YThing: ...",
        "things/y/inner": "import torch",
        "cli": TYPED.format("things.x"),
    }
    problems = rules.heavy_imports(make({**base, **more}), {"torch"}, TABLE, ["testing"])
    assert {problem.split()[0] for problem in problems} == guilty


def test_a_wrong_extra_is_found(make: Make) -> None:
    tree = make(
        {
            **THINGS,
            "things/x": "def f():\n    require('torch', 'torch')",
            "things/y/inner": "require('yy', 'y')",
        }
    )
    table = {"thing": {"x": entry("pack.things.x:XThing", "torch"), "y": entry("pack.things.y:YThing", "y")}}
    assert rules.wrong_extras(tree, table, {"torch": [], "y": []}) == []
    assert rules.wrong_extras(tree, table, {"torch": []}) == ["y: pyproject.toml has no extra y"]
    wrong = {"thing": {"x": entry("pack.things.x:XThing"), "y": entry("pack.things.y:YThing", "torch")}}
    assert len(rules.wrong_extras(tree, wrong, {"torch": [], "y": []})) == 2
    idle = {"thing": {"shared": entry("pack.things.shared:S", "torch")}}
    assert rules.wrong_extras(tree, idle, {"torch": []}) == ["shared needs no extra, the table says torch"]


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("x = folder / 'a.json'", ["b names a.json"]),
        ("def f():\n    return read('a.json')", ["b names a.json"]),
        ('def f():\n    """Return the content of `a.json`."""\n    # a.json', []),
    ],
)
def test_a_second_reader_of_a_record_is_found(source: str, wrong: list[str], make: Make) -> None:
    tree = make({"records/a": "FILE = 'a.json'", "b": source})
    assert rules.readers_of_records(tree, "records", ["a.json"]) == wrong
    assert rules.readers_of_records(tree, "records", ["a.json"], ["b"]) == []
    assert rules.readers_of_records(tree, "records", ["a.json"], ["b", "gone"]) == ["no module is in gone"]


def test_long_things_are_found(make: Make) -> None:
    lines = "\n".join(f"    x = {i}" for i in range(61))
    docstring = '    """' + "\n" * 600 + '    """\n'
    assert rules.long_functions(make({"a": f"def f():\n{docstring}    x = 1"})) == []
    assert rules.long_functions(make({"a": f"class A:\n  async def f():\n{lines}"}))[0] == "a.f has 61 lines"
    assert (
        rules.long_functions(make({"a": f"def f():\n{lines[:-1]}"}))[1] == "the median function has 61 lines"
    )
    assert rules.long_files(make({"a": f"def f():\n{docstring}    x = 1"})) == []
    assert rules.long_files(make({"a": "x = 1\n" * 501})) == ["a has 501 lines"]


FIELDS = "\n".join(f"    f{i}: int" for i in range(7))
KEYWORDS = ", ".join(f"a{i}" for i in range(7))


@pytest.mark.parametrize(
    "source",
    [
        f"@dataclass(frozen=True)\nclass A:\n{FIELDS}",
        f"@dataclasses.dataclass\nclass A:\n{FIELDS}",
        "@dataclass\nclass A:\n" + FIELDS.replace("int", "int = field(repr=False)"),
        f"class A:\n    def __init__(self, {KEYWORDS}): ...",
        f"class A:\n    def __init__(self, a, /, *, {KEYWORDS[4:]}): ...",
    ],
)
def test_a_wide_constructor_is_found(source: str, make: Make) -> None:
    assert rules.wide_constructors(make({"a": source})) == ["a.A requires 7 fields"]
    assert rules.wide_constructors(make({"a": source}), ["a"]) == []
    easy = (
        source.replace("f0: int", "f0: ClassVar[int]")
        .replace("a6", "a6=0")
        .replace("repr=False", "default=1")
    )
    assert rules.wide_constructors(make({"a": easy})) == []


def test_a_drawer_is_found(make: Make) -> None:
    assert rules.drawers(make({"a/utils": "", "common/x": ""})) == ["a.utils", "common.x"]


def test_a_missing_link_is_found(make: Make) -> None:
    tree = make({"a": LATE.format("b"), "b": "", "c": ""})
    assert rules.missing_links(tree, ["a", "b"]) == []
    assert rules.missing_links(tree, ["a", "b", "c"]) == ["b does not import c"]
    assert rules.missing_links(tree, ["a", "gone"]) == ["there is no gone"]
