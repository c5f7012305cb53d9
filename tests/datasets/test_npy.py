"""Samples that stay on the disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import PLAIN
from trainwright.datasets.npy import MappedRows, NpyDataset
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(90, 3, 2))
Y = (X[:, 0, 0] > 0).astype(np.int64)


def write(folder: Path, **arrays: Any) -> Path:
    for name, array in (arrays or {"X": X, "y": Y}).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def dataset(folder: Path, **settings: Any) -> NpyDataset:
    return NpyDataset(DataConfig(type="npy", path=str(folder), **settings), NpyDataset.Params())


class TestNpy(DatasetSuite):
    def make(self, folder: Path) -> NpyDataset:
        return dataset(write(folder))


def test_serves_what_the_same_arrays_in_memory_give(tmp_path: Path) -> None:
    mapped, held = dataset(write(tmp_path)).load(PLAIN), from_objects((X, Y))
    assert mapped.info == held.info
    for name, split in mapped.splits.items():
        assert isinstance(split, MappedRows)
        ids = np.array([3, 0, 0, 5])
        mine, other = split.take(ids), held.splits[name].take(ids)
        assert mine.keys() == other.keys()
        for key, array in mine.items():
            np.testing.assert_array_equal(array, np.asarray(other[key], dtype=array.dtype))


def test_brings_its_splits(tmp_path: Path) -> None:
    found = dataset(write(tmp_path, X_train=X[:60], y_train=Y[:60], X_test=X[60:], y_test=Y[60:])).load(PLAIN)
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 54, "val": 6, "test": 30}


def test_a_changed_value_changes_the_fingerprint_of_its_split(tmp_path: Path) -> None:
    before = dataset(write(tmp_path)).load(PLAIN)
    fingerprints = {name: split.fingerprint() for name, split in before.splits.items()}
    changed = X.copy()
    changed[before.rows["val"][0], 2, 1] += 1
    now = dataset(write(tmp_path, X=changed, y=Y)).load(PLAIN)
    assert [fingerprints[name] == now.splits[name].fingerprint() for name in ("train", "val", "test")] == [
        True,
        False,
        True,
    ]


def test_features_are_not_read_into_memory(tmp_path: Path) -> None:
    split = dataset(write(tmp_path)).load(PLAIN).splits["train"]
    assert not isinstance(split, Arrays)
    assert not hasattr(split, "features")


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [
        ({"X": X}, {}, "y.npy is missing"),
        ({"X": X, "y": Y[:5]}, {}, "90 rows, y.npy 5"),
        ({"X": np.full((90, 2), np.nan), "y": Y}, {}, "the first in row 0"),
        (
            {"X": np.where(X[7, 2, 1] == X, -1e300, X), "y": Y},
            {},
            r"hold -1e\+300 in row 7 \(from 0\): too large for float32",
        ),
        (
            {"X": np.where(X[7, 2, 1] == X, 1e39, X), "y": Y},
            {"impute": "keep"},
            r"1e\+39 in row 7 .* too large for float32",
        ),
        ({"X": Y, "y": Y}, {}, "numbers"),
        ({"X": X, "y": np.array(5)}, {}, "y.npy holds a single value"),
        ({"X": np.array(5.0), "y": Y}, {}, "X.npy holds a single value"),
        ({"X": X, "y": Y}, {"features": ["a"]}, "data.features needs named columns"),
        ({"X": X, "y": Y}, {"encode": "ordinal"}, "data.encode needs named columns; arrays in npy files are"),
        ({"X": X, "y": Y}, {"split": SplitConfig(group="g")}, "data.split.group"),
        ({"X_train": X, "y_train": Y, "X_val": X[:, :2], "y_val": Y}, {}, "a row"),
    ],
)
def test_what_is_wrong_is_said(
    arrays: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words):
        dataset(write(tmp_path, **arrays), **settings).load(PLAIN)


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    write(tmp_path)
    np.savez(tmp_path / "X.npz", X=X)
    (tmp_path / "X.npz").replace(tmp_path / "X.npy")
    with pytest.raises(DataError, match=r"X.npy is an archive of arrays \(npz\)"):
        dataset(tmp_path).load(PLAIN)
    (tmp_path / "X.npy").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="cannot be read as npy"):
        dataset(tmp_path).load(PLAIN)


def test_values_are_looked_at_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.datasets.npy._BLOCK_BYTES", 10 * X[:1].nbytes)
    changed = X.copy()
    changed[34, 1, 0] = 1e300
    with pytest.raises(DataError, match=r"in row 34 \(from 0\)"):
        dataset(write(tmp_path, X=changed, y=Y)).load(PLAIN)


def test_other_byte_orders_are_served_in_that_of_the_machine(tmp_path: Path) -> None:
    train = dataset(write(tmp_path, X=(X * 9).astype(">i4"), y=Y)).load(PLAIN).splits["train"]
    assert train.take(np.arange(5))["features"].dtype.isnative


def test_trains(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", X=X.reshape(90, 6), y=Y)
    config = {
        "data": {"type": "npy", "path": str(tmp_path / "data")},
        "model": {"type": "mlp", "hidden": [8]},
        "training": {"epochs": 2},
    }
    run = trainwright.train(config, runs_dir=tmp_path / "runs")
    assert trainwright.evaluate(run, split="val")["val_loss"] == run.metrics["val_loss"]


@pytest.mark.parametrize("names", ["x y", "data target", "images labels", "X target"])
def test_usual_names_are_taken(names: str, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    usual = dataset(write(tmp_path / "usual", **dict(zip(names.split(), (X, Y), strict=True))))
    held = dataset(write(tmp_path)).load(PLAIN)
    assert usual.load(PLAIN).info == held.info
    assert usual.sources() == [f"{tmp_path}/usual/{name}.npy" for name in names.split()]


def test_usual_names_of_splits_are_taken(tmp_path: Path) -> None:
    arrays = {"trainX": X[:60], "trainY": Y[:60], "testX": X[60:], "testY": Y[60:]}
    found = dataset(write(tmp_path, **arrays)).load(PLAIN)
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 54, "val": 6, "test": 30}


def test_what_is_called_x_and_y_goes_before_other_names(tmp_path: Path) -> None:
    found = dataset(write(tmp_path, X=X, y=Y, data=X[:9], target=Y[:9], test_images=X, test_labels=Y)).load(
        PLAIN
    )
    assert sum(len(split) for split in found.splits.values()) == 90
