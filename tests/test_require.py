"""What a config may name by its import path, and what it may not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest

from trainwright.errors import InputError
from trainwright.require import import_path, installed_version

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
