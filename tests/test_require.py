"""What a config may name by its import path, and what it may not."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy
import pytest

from trainwright import plugins, require
from trainwright.errors import InputError
from trainwright.require import import_path, install_command, install_hint, installed_version

MODULE = """
import functools, os
from builtins import eval as evaluate
from os import system
from pathlib import Path as Place

shell = functools.partial(system)
names = ["a"]
SIZE = 3

class Net:
    class Inner: ...
    def method(self): ...

@functools.cache
def rows(): ...
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "things_of_mine.py").write_text(MODULE)
    (tmp_path / "things_of_mine_too.py").write_text("import things_of_mi")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "things_of_mine", raising=False)


@pytest.mark.parametrize("name", ["Net", "Net.Inner", "Net.method", "rows", "SIZE"])
def test_what_is_the_users_is_found(name: str) -> None:
    assert import_path(f"things_of_mine:{name}") is not None


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("system", "(posix|nt)"),
        ("os.system", "(posix|nt)"),
        ("evaluate", "builtins"),
        ("Place", "pathlib.*"),
        ("shell", "posix"),
        ("names.clear", "builtins"),
        ("Net.method.__globals__.clear", "builtins"),
    ],
)
def test_the_standard_library_is_refused_by_whatever_way(name: str, home: str) -> None:
    with pytest.raises(
        InputError, match=f"'things_of_mine:{name}' is refused: '{home}' belongs to Python's standard library"
    ):
        import_path(f"things_of_mine:{name}")


def test_messages_name_the_part_that_is_wrong() -> None:
    with pytest.raises(InputError, match=r"things_of_mine has no 'Nett'; did you mean 'Net'\?"):
        import_path("things_of_mine:Nett")
    with pytest.raises(InputError, match=r"has no 'SIZE\.x'; it has .*real"):
        import_path("things_of_mine:SIZE.x")
    with pytest.raises(
        InputError, match="there is no module 'things_of_yours'; it must be installed, or be in the folder"
    ):
        import_path("things_of_yours:Net")
    with pytest.raises(InputError, match="things_of_mine_too needs 'things_of_mi', which is not installed"):
        import_path("things_of_mine_too:Net")


def test_the_version_of_a_distribution() -> None:
    assert installed_version("numpy") == numpy.__version__
    assert installed_version("no-such-distribution") is None


SOURCES = Path(require.__file__).parent


def test_a_hint_names_what_the_project_declares_and_never_trainwright() -> None:
    project = tomllib.loads((SOURCES.parents[1] / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]["torch"]
    command = install_command("torch")
    assert command is not None
    parts = [re.split("(?=[<>])|,", one) for one in shlex.split(command)[2:]]
    assert sorted(map(sorted, parts)) == sorted(sorted(re.split("(?=[<>])|,", one)) for one in declared)
    for extra in project["optional-dependencies"]:
        assert "trainwright" not in (install_command(extra) or "trainwright")
    assert install_hint("torch") == f"run `{command}`, which installs the extra 'torch'"


@pytest.mark.parametrize("path", ["timm:create_model", "torchvision.models:resnet50"])
def test_a_library_of_models_that_is_missing_has_a_command(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = path.partition(":")[0].partition(".")[0]
    for name in [library, path.partition(":")[0]]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    hidden = [one for one in sys.path if not (Path(one) / library).exists()]
    monkeypatch.setattr(sys, "path", hidden)
    with pytest.raises(InputError) as caught:
        import_path(path)
    command = shlex.split(re.findall("`(.+)`", str(caught.value))[0])
    assert command[:2] == ["pip", "install"]
    assert command[-1] == library
    assert any(one.startswith("torch<") for one in command), "another torch would be installed with it"


def test_a_marker_stays_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a<2; (python_version < '3.13') and extra == 'one'", 'b[c]>=1; extra == "one"', "d"]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)
    command = install_command("one")
    assert command is not None
    assert shlex.split(command) == ["pip", "install", "a<2; python_version < '3.13'", "b[c]>=1"]
    assert install_command("two") is None


def test_without_metadata_the_hint_names_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert install_hint("torch") == "run `pip install -e '.[torch]'` in the sources of Trainwright"


def test_every_extra_that_the_sources_name_can_be_installed() -> None:
    named = {entry.extra for kind in plugins.BUILT_IN.values() for entry in kind.values()} - {None}
    for path in SOURCES.rglob("*.py"):
        if "require(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
            if is_call and isinstance(extra := node.args[1], ast.Constant):  # type: ignore[attr-defined]
                named.add(extra.value)
    assert len(named) > 15
    assert [extra for extra in named if install_command(extra) is None] == []


@pytest.mark.parametrize("module", ["torchao.quantization", "peft"])
def test_what_torchao_reports_of_its_parts_for_gpus_is_not_shown(module: str) -> None:
    """Its loggers warn when it is imported, which peft does, too."""
    code = f"import torch; from trainwright.require import require; require({module!r}, 'compress')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
