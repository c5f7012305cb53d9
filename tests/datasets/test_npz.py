"""npz files."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import config, load, people

from trainyard.datasets.base import Dataset
from trainyard.datasets.npz import NpzDataset
from trainyard.errors import DataError
from trainyard.testing.dataset_suite import DatasetSuite


def rings(count: int = 100, seed: int = 0) -> tuple[Any, Any]:
    draw = np.random.Generator(np.random.PCG64(seed))
    x = draw.normal(size=(count, 3))
    return x, ((x**2).sum(axis=1) > 2.5).astype(np.int64)


class TestNpz(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        x, y = rings()
        np.savez(folder / "a.npz", X=x, y=y)
        return NpzDataset(config(type="npz", path=str(folder / "a.npz")), NpzDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        x, y = rings()
        return [
            {"x0": a, "x1": b, "x2": c, "bought": target}
            for (a, b, c), target in zip(x.tolist(), y.tolist(), strict=True)
        ]


def test_splits_of_its_own(tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = rings(100), rings(40, 1)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    bundle = load(NpzDataset, config(path=str(tmp_path / "a.npz")))
    assert {name: len(split) for name, split in bundle.splits.items()} == {"train": 90, "val": 10, "test": 40}


def test_named_columns(tmp_path: Path) -> None:
    rows = people()
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    np.savez(tmp_path / "a.npz", **columns)
    bundle = load(NpzDataset, config(path=str(tmp_path / "a.npz")))
    assert bundle.info.classes == ["no", "yes"]
    assert "city=Oslo" in bundle.info.feature_names


def test_images_keep_their_shape(tmp_path: Path) -> None:
    x, y = rings()
    np.savez(tmp_path / "a.npz", X=x.reshape(100, 1, 3, 1), y=y)
    bundle = load(NpzDataset, config(path=str(tmp_path / "a.npz"), target="target"))
    assert bundle.info.input_shape == (1, 3, 1)
    assert bundle.preparation is None


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"X": np.array([{"a": 1}, None], dtype=object), "y": np.arange(2)}, "pickles are never read"),
        ({"X": np.zeros((4, 2)), "y": np.arange(3)}, r"differ in length: x0 4, x1 4, bought 3"),
        ({"X_train": np.zeros((4, 2))}, "only one of X_train and y_train"),
        (
            {"X": np.zeros((4, 2)), "y": np.arange(4), "feature_names": np.array(["a"])},
            "1 names, but X 2 columns",
        ),
        (
            {"X": np.zeros((4, 2)), "y": np.arange(4), "z": np.arange(4)},
            "there is z in addition to X, y and feature_names",
        ),
        ({"X": np.zeros((4, 2))}, "no column 'bought'"),
    ],
)
def test_unfit_arrays(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=says):
        load(NpzDataset, config(path=str(tmp_path / "a.npz")))


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def test_a_pickle_by_the_name_of_npz_is_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="pickle"):
        load(NpzDataset, config(path=str(tmp_path / "a.npz")))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    x, y = rings()
    np.savez(tmp_path / "a.npz", X=x, y=y)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read as npz"):
        load(NpzDataset, config(path=str(tmp_path / "a.npz")))


def test_a_file_that_says_that_it_holds_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    """A few bytes that claim to be 8 TB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**11, 10)}
    )
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("X.npy", header.getvalue() + bytes(100))
    with pytest.raises(DataError, match=r"rows\.npz (claims to hold more than the memory|cannot be read)"):
        load(NpzDataset, config(path=str(tmp_path / "rows.npz")))
