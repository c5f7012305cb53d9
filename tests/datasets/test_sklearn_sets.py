"""The data sets inside scikit-learn."""

from pathlib import Path
from typing import Any

import pytest
from rows import config, load

from trainwright.datasets.base import Dataset
from trainwright.datasets.sklearn import SklearnDataset
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

pytest.importorskip("sklearn")


class TestWine(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        return SklearnDataset(config(type="wine", target="target"), SklearnDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        from sklearn.datasets import load_wine

        return load_wine(as_frame=True).frame


class TestDiabetes(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        return SklearnDataset(config(type="diabetes", target="target"), SklearnDataset.Params())


@pytest.mark.parametrize(
    ("name", "features", "outputs"),
    [("digits", 64, 10), ("iris", 4, 3), ("wine", 13, 3), ("breast_cancer", 30, 2), ("diabetes", 10, 1)],
)
def test_each_set(name: str, features: int, outputs: int) -> None:
    bundle = load(SklearnDataset, config(type=name, target="target"))
    assert bundle.info.input_shape == (features,)
    assert bundle.info.outputs == outputs
    assert bundle.info.task == ("regression" if name == "diabetes" else "classification")


def test_digits_are_split_the_same_for_ever() -> None:
    bundle = load(SklearnDataset, config(type="digits", target="target"))
    assert {name: len(split) for name, split in bundle.splits.items()} == {
        "train": 1437,
        "val": 180,
        "test": 180,
    }
    assert bundle.rows["test"][:8].tolist() == [14, 27, 34, 38, 55, 73, 88, 89]
    assert bundle.warnings == []


def test_a_path_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.path: 'digits' reads no file"):
        load(SklearnDataset, config(type="digits", path="a.csv"))
