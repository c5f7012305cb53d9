"""The table of names finds adapters, and a plugin that cannot be used harms nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from plugins import install, python, trainwright
from trainwright import plugins
from trainwright.config import load
from trainwright.errors import ConfigError, InputError, MissingExtraError, ModelError
from trainwright.frameworks.base import Framework, Library
from trainwright.plugins import BUILT_IN, KINDS, BuiltIn
from trainwright.runs.catalog import Catalog
from trainwright.stores.local import LocalStore

FLAWS = {  # name of the entry point: (its value, what is said of it)
    "boom": ("flawed_raises:Thing", "RuntimeError: no license found"),
    "exits": ("flawed_exits:Thing", "SystemExit: 3"),
    "syntax": ("flawed_syntax:Thing", "SyntaxError"),
    "gone": ("flawed_nowhere:Thing", "ModuleNotFoundError: No module named 'flawed_nowhere'"),
    "needy": ("flawed_needs:Thing", "ModuleNotFoundError: No module named 'flawed_other'"),
    "nameless": ("flawed_empty:Thing", "AttributeError: module 'flawed_empty' has no attribute 'Thing'"),
    "function": ("flawed_shape:function", "it is of type function, not a class"),
    "shapeless": ("flawed_shape:Thing", "it "),  # lacks ..., or is not a subclass: by kind
    "malformed": ("these are words", "an entry point must be package.module:Class"),
}
MODULES = {
    "flawed_raises": "raise RuntimeError('no license\\nfound')",
    "flawed_exits": "import sys; sys.exit(3)",
    "flawed_syntax": "class",
    "flawed_needs": "import flawed_other",
    "flawed_empty": "",
    "flawed_shape": "def function(): ...\n\nclass Thing: ...",
    "working": """
from pydantic import BaseModel

class Params(BaseModel):
    rows: int = 60

class Rings:
    names = ("rings",)
    Params = Params
    def __init__(self, config, params):
        self.config, self.params = config, params
    def load(self, request):
        import numpy as np
        from trainwright.datasets.samples.objects import from_objects
        y = np.arange(self.params.rows) % 2
        return from_objects((np.stack([y, y + 1], axis=1).astype("float32"), y), self.config, request=request)
""",
}
CONFIG = """
data: {type: iris}
model: {type: mlp, hidden: [4]}
training: {max_steps: 2, threads: 1}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every flaw in every kind of plugin, and one plugin that works."""
    site = tmp_path_factory.mktemp("site")
    flawed = "\n".join(f"{name} = {target}" for name, (target, _) in FLAWS.items() if name != "function")
    flawed += "\nfun = flawed_shape:function"
    lines = [line for kind in KINDS for line in (f"[{plugins.entry_point_group(kind)}]", flawed)]
    install(site, "flawed-things", "\n".join(lines), MODULES)
    install(site, "working-thing", "[trainwright.datasets]\nrings = working:Rings\ncsv = working:Rings\n", {})
    install(site, "yet-another-thing", "[trainwright.datasets]\nrings = nowhere:Rings\n", {})
    return site


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_the_table_says_what_the_classes_say() -> None:
    for kind, entries in BUILT_IN.items():
        for name, entry in entries.items():
            cls = plugins.adapter(kind, name)
            assert f"{cls.__module__}:{cls.__qualname__}" == entry.target
            assert plugins._lacks(kind, cls) is None
            served = {"framework": "models", "dataset": "names"}.get(kind)
            if served is not None and entry.serves is not None:
                assert sorted(entry.serves) == sorted(getattr(cls, served))
            if kind == "framework":
                assert cls.library.modules == (name,)
                assert entry.serves is None or sorted(entry.others) == sorted(cls.other_names())


@pytest.mark.slow
def test_only_what_is_asked_for_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from collections.abc import Iterator
from trainwright import plugins
plugins.framework_of("mlp"), plugins.dataset_of("npz"), plugins.names("tracker")
print([name for name in sys.modules if name.startswith("trainwright.") and name.count(".") == 2
       and name.split(".")[1] in ("frameworks", "datasets", "trackers") and ".base" not in name])
"""
    done = python(tmp_path, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = set(eval(done.stdout))
    assert imported == {f"trainwright.datasets.{name}" for name in ("npz", "samples", "tables")}


def test_a_framework_is_named_as_it_is_registered_wherever_its_class_is_from() -> None:
    class Elsewhere:
        """As a framework of another package, whose module may have any path."""

    assert plugins.name_of_framework(plugins.adapter("framework", "sklearn")) == "sklearn"
    assert plugins.name_of_framework(Elsewhere) == "Elsewhere"


def test_names_that_nobody_has() -> None:
    with pytest.raises(InputError, match="no tracker 'nope'; there are: mlflow, tensorboard"):
        plugins.adapter("tracker", "nope")
    with pytest.raises(InputError, match=r"no dataset 'nope'; there are: csv, .*npy, .*iris"):
        plugins.dataset_of("nope")
    with pytest.raises(ModelError, match=r"belongs to no known framework; known frameworks: .*torch"):
        plugins.framework_of_class(int)
    assert plugins.framework_of("nope") is None
    assert plugins.find_dataset("nope") is None


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "adapter_of_ours.py").write_text("import library_that_is_missing", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = BuiltIn("adapter_of_ours:Thing", "tabular")
    monkeypatch.setitem(BUILT_IN["tracker"], "ours", entry)  # type: ignore[index]
    with pytest.raises(
        MissingExtraError,
        match=r"library_that_is_missing.*pip install 'pandas.* installs the extra 'tabular'",
    ):
        plugins.adapter("tracker", "ours")


@pytest.mark.slow
def test_doctor_names_every_plugin_that_cannot_be_used(site: Path, tmp_path: Path) -> None:
    done = trainwright(site, "doctor", "--json", "--runs-dir", tmp_path, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    listed = {(plugin["kind"], plugin["name"], plugin["package"]): plugin for plugin in document["plugins"]}
    for kind in KINDS:
        for name, (target, said) in FLAWS.items():
            plugin = listed[kind, "fun" if name == "function" else name, "flawed-things 1.0"]
            assert plugin["error"].startswith(said), plugin
            assert "\n" not in plugin["error"]
            assert plugin["target"] == target
    assert listed["dataset", "rings", "working-thing 1.0"]["error"] is None
    assert (
        listed["dataset", "csv", "working-thing 1.0"]["ignored"] == "trainwright has a dataset of this name"
    )
    assert (
        listed["dataset", "rings", "yet-another-thing 1.0"]["ignored"]
        == "working-thing 1.0 has one of this name"
    )
    problems = "\n".join(document["problems"])
    assert problems.count("repair or uninstall flawed-things") == len(KINDS) * len(FLAWS)
    assert "working-thing" not in problems

    (line,) = [line for line in document["problems"] if line.startswith("tracker 'boom'")]
    assert line.endswith(
        "of flawed-things 1.0 (flawed_raises:Thing) cannot be used: RuntimeError: no license found; "
        "repair or uninstall flawed-things"
    )


@pytest.mark.slow
def test_everything_else_works(site: Path, config: Path, tmp_path: Path) -> None:
    assert "Train models" in trainwright(site, "--help", cwd=tmp_path).stdout
    for overrides in ([], ["model=random_forest", "data.type=rings", "tracking=[tensorboard]"]):
        done = trainwright(site, "config", "check", config, *overrides, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    schema = trainwright(site, "config", "schema", cwd=tmp_path)
    assert schema.returncode == 0
    assert {"rings", "iris"} <= set(
        json.loads(schema.stdout)["$defs"]["DataConfig"]["anyOf"][0]["anyOf"][0]["enum"]
    )
    assert "left out of the schema: tracker 'boom' of flawed-things 1.0" in schema.stderr
    done = trainwright(site, "train", config, "data.type=rings", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "flawed" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model={type: x, framework: boom}", "model.framework"),
        ("data.type=boom", "data.type"),
        ("tracking=[boom]", "tracking.0.type"),
    ],
)
@pytest.mark.parametrize("command", [("config", "check"), ("train",)])
def test_a_plugin_that_is_asked_for_is_refused_in_one_line(
    command: tuple[str, ...], override: str, key: str, site: Path, config: Path, tmp_path: Path
) -> None:
    done = trainwright(site, *command, config, override, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if key in line]
    kind = {"model": "framework", "data": "dataset", "tracking": "tracker"}[key.split(".")[0]]
    assert line.endswith(
        f"{kind} 'boom' of flawed-things 1.0 (entry point boom = flawed_raises:Thing in {plugins.entry_point_group(kind)}) "
        "cannot be used: RuntimeError: no license found; repair or uninstall flawed-things"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_unknown_name_names_only_plugins_that_might_have_had_it(
    site: Path, config: Path, tmp_path: Path
) -> None:
    for override in ("model=boom", "data.type=nope", "tracking=[nope]"):
        done = trainwright(site, "config", "check", config, override, cwd=tmp_path)
        assert done.returncode == 2
        if override.startswith("model"):
            assert "framework 'gone' of flawed-things 1.0 (entry point" in done.stderr
            assert done.stderr.count("flawed_nowhere:Thing in") == 1
        else:
            assert "flawed" not in done.stderr


@pytest.fixture
def on_path(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages of `site` are installed in this process."""
    monkeypatch.syspath_prepend(str(site))
    for cached in (plugins.installed, plugins._load):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for name in ("working", *(module for module in sys.modules if module.startswith("flawed_"))):
        sys.modules.pop(name, None)
    for cached in (plugins.installed, plugins._load):
        cached.cache_clear()


@pytest.mark.usefixtures("on_path")
def test_ours_win_over_others() -> None:
    assert plugins.adapter("dataset", "csv").__module__ == "trainwright.datasets.csv"
    assert plugins.dataset_of("rings").__module__ == "working"


@pytest.mark.usefixtures("on_path")
def test_an_unknown_strategy_is_offered_none_that_cannot_be_used() -> None:
    config = {"data": "iris", "model": "mlp"}
    with pytest.raises(ConfigError) as caught:
        load(config, ["distributed.strategy=dddp"], Catalog())
    (problem,) = caught.value.problems
    assert problem.message == "unknown strategy 'dddp'; known: auto, ddp, fsdp, hsdp; did you mean 'ddp'?"
    with pytest.raises(ConfigError, match="no license found; repair or uninstall"):
        load(config, ["distributed.strategy=boom"], Catalog())


class Plain(BaseModel):
    """Options."""


TRACKER = {
    "Params": Plain,
    "wants_histograms": False,
    **dict.fromkeys(("open", "log", "log_histograms", "log_artifact", "close"), lambda self: None),
}


@pytest.mark.parametrize(
    ("kind", "cls", "said"),
    [
        ("tracker", type("Whole", (), TRACKER), None),
        ("tracker", type("Part", (), {**TRACKER, "Params": None}), "its options are not pydantic models"),
        ("tracker", type("Part", (), {"Params": Plain, "open": print}), "it lacks close, log, "),
        (
            "dataset",
            type("Set", (), {"Params": Plain, "names": "moons", "load": print}),
            "names must be a sequence",
        ),
        ("dataset", type("Set", (), {"Params": Plain}), "it lacks load, names"),
        ("framework", type("Frame", (), {}), "it is not a subclass of trainwright.frameworks.base.Framework"),
        ("framework", type("Frame", (Framework,), {}), "it lacks library, models"),
        (
            "framework",
            type("Frame", (Framework,), {"models": {}, "library": Library(("x",))}),
            "it lacks determinism, learner, load, ",
        ),
        ("store", type("Shop", (), {}), "it lacks delete, download, get, "),
        ("store", LocalStore(Path()), "it is of type LocalStore, not a class"),
    ],
)
def test_what_a_class_lacks(kind: plugins.Kind, cls: Any, said: str | None) -> None:
    found = plugins._lacks(kind, cls)
    assert found is None if said is None else str(found).startswith(said)


@pytest.mark.parametrize("name", plugins.BUILT_IN["framework"])
def test_a_framework_is_called_like_its_library(name: str) -> None:
    """`runs.process` finds by its name whether the library is imported."""
    assert plugins.adapter("framework", name).library.modules == (name,)
