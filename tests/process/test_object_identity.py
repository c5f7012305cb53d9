"""Objects and code without a file: equal values have one identity, and others another."""

import random
import subprocess
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial, partialmethod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trainwright.process.object_identity import Identity, NoValueError


def code_of(value: Any) -> dict[str, str]:
    identity = Identity()
    identity.follow([value])
    return identity.code


class Part:
    """A class with a file, whose objects count by their attributes."""

    def __init__(self, size: int, *, more: Any = None) -> None:
        self.size, self.more = size, more


class Slots:
    """An object without a dictionary of attributes."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def scaled(factor: float) -> Callable[[float], float]:
    def scale(x: float) -> float:
        return factor * x

    return scale


def module(rate: float, width: int = 3) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Dropout(rate))


class Listed(list[int]):
    """A list of the user's own kind."""


@dataclass
class Options:
    """An object with a default that another one makes."""

    values: list[int] = field(default_factory=list)


class Computed:
    """An object with an attribute that is computed."""

    @cached_property
    def doubled(self) -> int:
        return 2


class Mode(Enum):
    """One of two."""

    ONE = 1
    TWO = 2


ALIVE = {number: Part(number) for number in (1, 2)}


def unregistered(value: float) -> Any:
    """Return a module that another one holds as an attribute, so that its weights are nobody's."""
    layer = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(layer.weight, value)
    torch.nn.init.zeros_(layer.bias)
    return [layer]


def cyclic(value: Any) -> Any:
    items: list[Any] = [value]
    items.append(items)
    return items


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        float,
        lambda n: {"a": [n, (2, {n, 3})]},
        lambda n: OrderedDict(a=n),
        lambda n: Part(n, more=[Part(1)]),
        lambda n: Part(0, more=Slots(n)),
        lambda n: np.arange(4) * n,
        lambda n: np.array([n, 3], dtype="datetime64[D]"),
        lambda n: np.zeros(n, dtype=[("id", "i4"), ("size", "f8")]),
        np.float32,
        lambda n: torch.ones(2, 3).t() * n,
        lambda n: torch.nn.Parameter(torch.ones(2) * n),
        lambda n: torch.Generator().manual_seed(n),
        np.random.default_rng,
        random.Random,
        scaled,
        lambda n: partial(pow, n),
        lambda n: Part(n).__init__,  # type: ignore[misc]
        lambda n: [lambda x: x * 1, lambda x: x * 3][n - 1],
        lambda n: partialmethod(Part.__init__, n),
        lambda n: weakref.ref(ALIVE[n]),
        lambda n: Part(n).__dict__.get,
        lambda n: Listed([n]),
        lambda n: Options(values=[n]),
        Mode,
        lambda n: [Part, Slots][n - 1],
        unregistered,
        lambda n: module(n / 10),
        cyclic,
    ],
)
def test_equal_values_have_one_identity(make: Callable[[int], Any]) -> None:
    assert Identity().of(make(1)) == Identity().of(make(1))
    assert Identity().of(make(1)) != Identity().of(make(2))


def test_what_a_cached_property_has_computed_does_not_count_but_what_it_was_set_to() -> None:
    one = Computed()
    before = Identity().of(one)
    assert one.doubled == 2
    assert Identity().of(one) == before
    one.doubled = 5
    assert Identity().of(one) != before


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    """Where texts have other hashes, so that a set has another order."""
    code = (
        "from trainwright.process.object_identity import Identity\n"
        "print(Identity().of([{'a', 'b', 'c', 'd'}, frozenset(map(str, range(9))), {'x': print}]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize("value", [(i for i in range(3)), [Part(1, more=open(__file__))]])  # noqa: SIM115
def test_what_has_no_value_is_said(value: Any) -> None:
    with pytest.raises(NoValueError):
        Identity().of(value)


NOTEBOOK = """
import math
SCALE = 2.0
def helper(x):
    return x * SCALE
class Net:
    def forward(self, x):
        def inner(y):
            return y + 1
        return inner(helper(x)) * math.pi
"""


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("SCALE = 2.0", "SCALE = 3.0", "notebook:SCALE"),
        ("x * SCALE", "x + SCALE", "notebook:helper"),
        ("y + 1", "y + 2", "notebook:Net"),
        ("math.pi", "math.tau", "notebook:Net"),
        ("import math", "# A comment.\nimport math", None),
    ],
)
def test_code_that_no_file_holds_is_compared_as_it_was_compiled(
    old: str, new: str, named: str | None
) -> None:
    def code(text: str) -> dict[str, str]:
        cell: dict[str, Any] = {"__name__": "notebook"}
        exec(text, cell)
        return code_of(cell["Net"]())

    before, after = code(NOTEBOOK), code(NOTEBOOK.replace(old, new))
    assert before.keys() == {"notebook:Net", "notebook:helper", "notebook:SCALE"}
    assert {name for name in before if before[name] != after[name]} == ({named} if named else set())


MEMORY = """
import functools, tools
SCALE, OPTIONS = 2.0, {"k": [1.0]}
class Constant:
    def __init__(self, value): self.value = value
    def __get__(self, holder, owner=None): return self.value
class Base:
    RATE = 0.5
    def helper(self, x, by=1.0): return x * SCALE * by
class Net(Base):
    constant = Constant(1.0)
    @property
    def k(self): return OPTIONS["k"][0]
    @functools.lru_cache
    def cached(self): return tools.inner.FACTOR
    def forward(self, x):
        state = None  # as a variable that is not read is called
        return tools.scaled(self.helper(x)) * self.k
state = "not read"
"""


@pytest.fixture
def made() -> Iterator[dict[str, Any]]:
    """The names that the code above defines, beside two modules of the user's."""
    tools, inner = ModuleType("tools"), ModuleType("tools.inner")
    exec("WIDTH = 1\ndef scaled(x): return x * WIDTH", vars(tools))
    vars(tools)["inner"], vars(inner)["FACTOR"] = inner, 1.0
    sys.modules |= {"tools": tools, "tools.inner": inner}
    cell: dict[str, Any] = {"__name__": "in_memory"}
    exec(MEMORY, cell)
    yield cell
    del sys.modules["tools"], sys.modules["tools.inner"]


@pytest.mark.parametrize(
    "change",
    [
        "Net.RATE = 3.0",
        "Base.RATE = 3.0",
        "Net.constant = 3.0",
        "vars(Net)['constant'].value = 3.0",
        "Net.forward = lambda self, x: x",
        "Base.helper.__defaults__ = (3.0,)",
        "Net.helper = functools.partialmethod(Base.helper, by=3.0)",
        "OPTIONS['k'][0] = 3.0",
        "SCALE = 3.0",
        "tools.inner.FACTOR = 3.0",
        "tools.WIDTH = 3",
        "tools.scaled = abs",
    ],
)
def test_what_became_of_code_in_memory_counts(change: str, made: dict[str, Any]) -> None:
    before = code_of(made["Net"]())
    made["Net"]().forward(1.0), made["Net"]().cached()
    exec("state = 'another'", made)
    assert code_of(made["Net"]()) == before
    exec(change, made)
    assert code_of(made["Net"]()) != before


def test_variables_without_a_value_are_named(made: dict[str, Any]) -> None:
    made["OPTIONS"]["k"].append(open(__file__))  # noqa: SIM115
    identity = Identity()
    identity.follow([made["Net"]()])
    assert identity.without_value == ["in_memory:OPTIONS"]
