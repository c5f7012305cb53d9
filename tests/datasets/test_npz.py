"""npz files."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import config, load, people

from trainwright.datasets.base import DataBundle, Dataset
from trainwright.datasets.npz import NpzDataset, inputs_in
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite
from trainwright.types import SplitName


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


def hashes(bundle: DataBundle) -> dict[SplitName, str]:
    return {name: split.fingerprint() for name, split in bundle.splits.items()}


USUAL = [
    ("X", "target"), ("x", "Y"), ("data", "target"), ("images", "labels"), ("Features", "Label"), ("inputs", "targets"), ("inputs", "outputs")
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "target"), USUAL)
@pytest.mark.parametrize("ndim", [1, 2, 4])
def test_usual_names_are_those_that_the_config_would_give(
    inputs: str, target: str, ndim: int, tmp_path: Path
) -> None:
    x, y = rings()
    x = {1: x[:, 0], 2: x, 4: x.reshape(100, 1, 3, 1)}[ndim]
    np.savez(tmp_path / "a.npz", **{inputs: x, target: y})
    is_x = inputs in "xX" and ndim > 1
    np.savez(tmp_path / "b.npz", **({"X": x, "y": y} if is_x else {inputs: x, "target": y}))
    usual, plain = (
        load(NpzDataset, config(path=str(tmp_path / name), target="target")) for name in ("a.npz", "b.npz")
    )
    assert usual.info == plain.info
    assert hashes(usual) == hashes(plain)
    if ndim > 1:
        assert [*inputs_in(str(tmp_path / "a.npz"), "target")] == ["features" if is_x else inputs, "target"]


@pytest.mark.parametrize("names", ["{}X {}Y", "{}_images {}_labels", "data-{} target-{}"])
def test_usual_names_of_splits(names: str, tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = rings(100), rings(40, 1)
    train, test = (names.format(split, split).split() for split in ("train", "test"))
    np.savez(tmp_path / "a.npz", **dict(zip([*train, *test], (x, y, x_test, y_test), strict=True)))
    np.savez(tmp_path / "b.npz", X_train=x, y_train=y, X_test=x_test, y_test=y_test)
    usual, plain = (load(NpzDataset, config(path=str(tmp_path / name))) for name in ("a.npz", "b.npz"))
    assert hashes(usual) == hashes(plain)
    assert {name: len(split) for name, split in usual.splits.items()} == {"train": 90, "val": 10, "test": 40}


def test_a_bunch_that_was_saved_has_named_columns(tmp_path: Path) -> None:
    x, y = rings()
    np.savez(tmp_path / "a.npz", data=x, target=y, feature_names=np.array(["a", "b", "c"]))
    assert load(NpzDataset, config(path=str(tmp_path / "a.npz"))).info.feature_names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("names", "target", "says"),
    [
        (("images", "labels", "masks"), "target", "there are: images, labels, masks"),
        (("images", "data"), "target", "no array 'target'"),
        (("arr_0", "arr_1"), "target", "give one as data.target, or call the arrays X and y"),
        (("train_images", "train_labels", "test_images"), "target", "no array 'target'"),
    ],
)
def test_names_that_are_not_plain_are_not_guessed(
    names: tuple[str, ...], target: str, says: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **dict.fromkeys(names, rings()[0]))
    with pytest.raises(DataError, match=says):
        load(NpzDataset, config(path=str(tmp_path / "a.npz"), target=target))


def test_the_target_of_the_config_is_the_target(tmp_path: Path) -> None:
    x, y = rings()
    np.savez(tmp_path / "a.npz", labels=x, data=y)
    bundle = load(NpzDataset, config(path=str(tmp_path / "a.npz"), target="data"))
    assert bundle.info.input_shape == (3,)
