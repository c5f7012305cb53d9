"""Bring your own data."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rows import load

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import Dataset
from trainwright.datasets.function import FunctionDataset
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

MODULE = '''
import os
from os import system
from subprocess import run
import numpy as np

class Squares:
    """Features (i, i*i), target i % 3."""
    def __init__(self, start, count):
        self.start, self.count = start, count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        i = self.start + i
        return np.array([i, i * i], dtype=np.float64), i % 3

def squares(count=60):
    return Squares(0, count), Squares(1000, 20)

def arrays(scale=1.0):
    x = np.arange(120, dtype=np.float64).reshape(60, 2) * scale
    return {"train": (x, np.arange(60) % 2), "test": (x + 1000, np.arange(60) % 2)}

def divided():
    return np.arange(120, dtype=np.float64).reshape(60, 2), np.arange(60) % 2

def fails():
    raise KeyError("sea")

def nothing():
    return None

def misnamed():
    return {"train": divided(), "holdout": divided()}

class Plain:
    pass

not_a_function = 3
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_data", raising=False)


def of(name: str, **params: Any) -> Any:
    return load(FunctionDataset, DataConfig(type=name), **params)


class TestMapStyle(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        return FunctionDataset(DataConfig(type="my_data:squares"), FunctionDataset.Params())


class TestArrays(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        return FunctionDataset(DataConfig(type="my_data:arrays"), FunctionDataset.Params())


def test_the_suite_notices_a_row_in_two_splits() -> None:
    train = of("my_data:arrays").splits["train"]
    leaking = replace(of("my_data:arrays"), splits={"train": train, "test": train}, rows={})
    with pytest.raises(AssertionError, match="54 samples are in both train and test"):
        DatasetSuite().test_no_row_is_in_two_splits(leaking)


def test_params_are_the_functions_arguments() -> None:
    means = [of("my_data:arrays", scale=scale).preparation.columns[0].mean for scale in (1.0, 2.0)]
    assert means[1] == pytest.approx(2 * means[0])
    assert len(of("my_data:Squares", start=0, count=30).splits["train"]) == 30
    with pytest.raises(
        DataError,
        match=r"my_data:arrays\(scale=1.0\) was given size: got an unexpected keyword argument 'size'",
    ):
        of("my_data:arrays", size=2)


def test_one_pair_is_divided() -> None:
    assert {name: len(split) for name, split in of("my_data:divided").splits.items()} == {
        "train": 48,
        "val": 6,
        "test": 6,
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("os:system", r"data\.type: .* 'os' belongs to Python's standard library"),
        ("subprocess:run", r"'subprocess' belongs to Python's standard library"),
        ("my_data:system", r"'(posix|nt)' belongs to Python's standard library"),
        ("my_data:run", r"'subprocess' belongs to Python's standard library"),
        ("my_data:Plain", "is a class without __len__ and __getitem__; name a class of map-style data sets"),
        (
            "my_data:Squares",
            r"my_data:Squares\(start, count\) was given nothing: missing a required argument",
        ),
        ("my_data:not_a_function", "is an object of int; name a function"),
        ("my_data:squars", r"my_data has no 'squars'; did you mean 'squares'"),
        ("my_dada:squares", "there is no module 'my_dada'; it must be installed, or be in the folder"),
        ("my_data:", r"data\.type: .* is not an import path: write package\.module:name"),
        ("my_data:fails", "my_data:fails failed: KeyError: 'sea'"),
        (
            "my_data:nothing",
            r"what my_data:nothing returned is NoneType; it must be \(X, y\), \(train, val\)",
        ),
        (
            "my_data:misnamed",
            "has a split 'holdout'; the splits are called train, val, test; for named inputs",
        ),
    ],
)
def test_refused(name: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        of(name)


def test_a_module_that_fails(tmp_path: Path) -> None:
    (tmp_path / "broken_data.py").write_text("1 / 0")
    with pytest.raises(
        DataError, match="'broken_data:f' cannot be imported: ZeroDivisionError: division by zero"
    ):
        of("broken_data:f")
    (tmp_path / "needy_data.py").write_text("import no_such_library")
    with pytest.raises(DataError, match="needy_data needs 'no_such_library', which is not installed"):
        of("needy_data:f")


def test_a_path_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.path: 'my_data:arrays' reads no file"):
        load(FunctionDataset, DataConfig(type="my_data:arrays", path="a.csv"))
