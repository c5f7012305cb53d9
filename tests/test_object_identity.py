"""Objects and code without a file: equal values have one identity, and others another."""

import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainwright.object_identity import Identity, NoValueError


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
        np.float32,
        lambda n: torch.ones(2, 3).t() * n,
        lambda n: torch.nn.Parameter(torch.ones(2) * n),
        lambda n: torch.Generator().manual_seed(n),
        np.random.default_rng,
        random.Random,
        scaled,
        lambda n: partial(pow, n),
        lambda n: Part(n).__init__,  # type: ignore[misc]
        lambda n: module(n / 10),
        cyclic,
    ],
)
def test_equal_values_have_one_identity(make: Callable[[int], Any]) -> None:
    assert Identity().of(make(1)) == Identity().of(make(1))
    assert Identity().of(make(1)) != Identity().of(make(2))


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    """Where texts have other hashes, so that a set has another order."""
    code = (
        "from trainwright.object_identity import Identity\n"
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
        ("y + 1", "y + 2", "notebook:Net.forward"),
        ("math.pi", "math.tau", "notebook:Net.forward"),
        ("import math", "# A comment.\nimport math", None),
    ],
)
def test_code_that_no_file_holds_is_compared_as_it_was_compiled(
    old: str, new: str, named: str | None
) -> None:
    def code(text: str) -> dict[str, str]:
        cell: dict[str, Any] = {"__name__": "notebook"}
        exec(text, cell)
        identity = Identity(with_arrays=False)
        identity.of(cell["Net"]())
        return identity.code

    before, after = code(NOTEBOOK), code(NOTEBOOK.replace(old, new))
    assert before.keys() == {"notebook:Net.forward", "notebook:helper", "notebook:SCALE"}
    assert {name for name in before if before[name] != after[name]} == ({named} if named else set())
