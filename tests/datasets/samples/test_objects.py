"""Data as Python objects: arrays, data frames, map-style datasets."""

import logging
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rows import config as frame_config
from rows import people

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import LoadRequest
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError
from trainwright.types import FeatureForm


def config(**settings: Any) -> DataConfig:
    return DataConfig.model_validate(settings)


class Rows:
    """A map-style dataset; counts what is read of it."""

    def __init__(
        self, count: int, make: Any = lambda i: (np.array([i, 1.0]), i % 3), **attributes: Any
    ) -> None:
        self.count, self.make, self.read = count, make, 0
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        self.read += 1
        return self.make(i)


def test_a_hundred_million_items_are_not_touched() -> None:
    rows = Rows(10**8, num_classes=3)
    began = time.process_time()
    bundle = from_objects((rows, Rows(10, num_classes=3)), config())
    assert len(bundle.splits["train"].fingerprint()) == 64
    assert rows.read < 1000
    assert time.process_time() - began < 1
    assert bundle.splits["train"].take(np.array([10**8 - 1]))["target"].tolist() == [(10**8 - 1) % 3]
    assert not bundle.content_hashed


def test_classes_are_read_off_small_datasets() -> None:
    bundle = from_objects(
        (Rows(30, lambda i: (np.ones(2), "abc"[i % 3])), Rows(3, lambda i: (np.ones(2), "a"))), config()
    )
    assert bundle.info.classes == ["a", "b", "c"]
    assert bundle.splits["train"].take(np.array([2, 0]))["target"].tolist() == [2, 0]


def test_classes_that_the_dataset_says() -> None:
    bundle = from_objects((Rows(30, classes=["low", "mid", "high"]), Rows(3)), config())
    assert bundle.info.classes == ["low", "mid", "high"]
    assert bundle.splits["train"].take(np.array([2]))["target"].tolist() == [2]
    with pytest.raises(DataError, match=r"the train dataset: the target of item 5 is 5|the target of item 5"):
        from_objects((Rows(30, lambda i: (np.ones(2), i), num_classes=5), Rows(3)), config()).splits[
            "train"
        ].take(np.arange(5, 7))


def test_values() -> None:
    bundle = from_objects((Rows(30, lambda i: (np.ones((1, 4, 4)), [i / 2, 1.0])), None, None), config())
    assert (bundle.info.task, bundle.info.outputs, bundle.info.input_shape) == ("regression", 2, (1, 4, 4))
    assert bundle.splits["train"].take(np.array([3]))["target"].dtype == np.float64
    assert "no validation dataset" in bundle.warnings[0]
    assert "random_split(dataset, " in bundle.warnings[0]


def test_its_own_fingerprint_counts() -> None:
    one, other = Rows(30, fingerprint="v1"), Rows(30, fingerprint=lambda: "v2")
    prints = [from_objects((rows, Rows(3)), config()).splits["train"].fingerprint() for rows in (one, other)]
    assert prints[0] != prints[1]
    assert from_objects((one, other), config()).content_hashed


def test_items_that_change_are_warned_of() -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    rows = Rows(30, lambda i: (draw.normal(size=2), i % 3))
    bundle = from_objects((rows, Rows(3)), config())
    assert "the train dataset returns different items when it is read again" in bundle.warnings[0]
    assert (
        bundle.splits["train"].fingerprint()
        == from_objects((rows, Rows(3)), config()).splits["train"].fingerprint()
    )


def test_getitems_is_used() -> None:
    rows = Rows(30)
    rows.__getitems__ = lambda ids: [(np.array([i, 2.0]), i % 3) for i in ids]  # type: ignore[attr-defined]
    assert from_objects((rows, Rows(3)), config()).splits["train"].take(np.array([4]))[
        "features"
    ].tolist() == [[4, 2]]


def with_cell(value: float) -> Any:
    column = np.arange(30.0).reshape(30, 1)
    column[1] = value
    return column


def fails(i: int) -> Any:
    if i == 0:
        return np.ones(2), 0
    raise OSError("disk gone")


def leaves(i: int) -> Any:
    if i == 0:
        return np.ones(2), 0
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (Rows(0), "the train dataset is empty"),
        (Rows(30, lambda i: np.ones(2)), r"item 0 is ndarray; it must be a pair \(features, target\)"),
        (Rows(30, lambda i: ({"a": {"b": 1}}, 0)), "item 0: a is dict; give an array"),
        (Rows(30, lambda i: (np.array([np.nan]), 0)), "item 0: features hold NaN"),
        (Rows(30, leaves), r"the train dataset: item \d+ cannot be read: SystemExit: 3"),
        (Rows(30, fails), r"the train dataset: item \d+ cannot be read: OSError: disk gone"),
        (Rows(10**6), "too many to read all for their classes"),
        (np.ones((3, 2)), r"the train split is a single array; give a pair \(X, y\)"),
        (7, "the train split is int; give a pair of arrays"),
        ((np.ones((3, 2)), np.ones(4)), "3 rows of features, but 4 targets"),
        ((np.array([[[1.0]], [[np.inf]]]), np.ones(2)), "hold NaN or infinite values in row 2"),
        ((with_cell(np.inf), np.arange(30) % 2), "column 'x0' is infinite in row 2"),
        ((with_cell(np.nan), np.arange(30) % 2), "column 'x0' has no value in row 2"),
        (
            (np.ones((30, 2)), np.array([[np.nan, 1]] * 30)),
            "have several columns, which must hold finite numbers",
        ),
        ((np.ones((30, 2)), np.ones(30)), r"the target 'target' has only one value"),
    ],
)
def test_refused(train: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_objects({"train": train}, config())


def test_shapes_that_differ_are_named() -> None:
    rows = Rows(30, lambda i: (np.ones(2 + (i == 7)), i % 3), num_classes=3, fingerprint="x")
    split = from_objects((rows, Rows(3)), config(task="classification")).splits["train"]
    with pytest.raises(DataError, match=r"item 6 has features of shape \(2,\), and item 7 of another"):
        split.take(np.arange(6, 9))


def test_a_class_that_only_validation_has() -> None:
    with pytest.raises(DataError, match="the val dataset has class 7, which no training item has"):
        from_objects((Rows(30), Rows(3, lambda i: (np.ones(2), 7))), config())


def test_forms_are_not_mixed() -> None:
    with pytest.raises(DataError, match="must be of one form, but are train: items, val: arrays"):
        from_objects((Rows(30), (np.ones((4, 2)), np.arange(4))), config())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("impute", "mean"),
        ("encode", "ordinal"),
        ("features", ["a"]),
        ("exclude", ["a"]),
    ],
)
def test_settings_that_need_columns_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(
        DataError, match=rf"data\.{setting} needs .*named column.*; these arrays are preprocessed already"
    ):
        from_objects((np.ones((30, 2), int), np.arange(30) % 2), config(**{setting: value}))


def test_the_defaults_of_models_that_take_categories_are_no_problem_for_arrays() -> None:
    given = config(encode="category", impute="keep", standardize=False)
    bundle = from_objects((np.ones((30, 2, 2)), np.arange(30) % 2), given)
    assert (bundle.info.input_shape, bundle.info.categories) == ((2, 2), ())


@pytest.mark.parametrize(
    ("dtype", "largest", "settings", "warns"),
    [
        ("float64", 4300, {}, True),
        ("float64", -4300, {}, True),
        ("float32", 4300, {"standardize": False}, False),  # so do boosters and trees
        ("float32", 16, {}, False),
        ("uint8", 255, {}, False),
        ("int64", 30_000, {}, False),
    ],
)
def test_arrays_far_from_standardized_are_warned_of(
    dtype: str, largest: int, settings: dict[str, Any], warns: bool
) -> None:
    x = np.arange(60).reshape(30, 2).astype(dtype) / (10 if dtype.startswith("float") else 1)
    x = x.astype(dtype)
    x[3, 1] = largest
    bundle = from_objects((x[:, :, None], np.arange(30) % 2), config(split={"val": 0.2}, **settings))
    assert [warning for warning in bundle.warnings if "taken as they are" in warning] == (
        [
            "the features are taken as they are, with values up to 4300: scale them, or give a data "
            "frame, which data.standardize scales"
        ]
        if warns
        else []
    )


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ({"group": "city"}, r"data\.split\.group needs a named column; these items"),
        ({"time": "day"}, r"data\.split\.time needs a named column; these items"),
        ({"val": 0.2}, r"data\.split\.val: map-style datasets are not split"),
        ({"test": 0.1}, r"data\.split\.test: map-style datasets are not split"),
        ({"stratify": True}, r"data\.split\.stratify: map-style datasets are not split"),
    ],
)
def test_a_division_of_items_is_refused(split: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_objects((Rows(30), Rows(3)), config(split=split))


def test_what_asks_for_no_division_of_items_is_not_refused() -> None:
    split = {"val": 0, "test": 0, "stratify": False}
    assert list(from_objects({"train": Rows(30)}, config(split=split)).splits) == ["train"]


@pytest.mark.parametrize("name", ["group", "time"])
def test_arrays_have_no_column_to_divide_by(name: str) -> None:
    with pytest.raises(DataError, match=rf"data\.split\.{name} needs a named column; these arrays"):
        from_objects((np.ones((30, 2, 2)), np.arange(30) % 2), config(split={name: "bought"}))


def test_arrays_without_columns_are_served_as_they_are() -> None:
    x = np.arange(60, dtype=np.float64).reshape(30, 2, 1)
    bundle = from_objects(((x, np.arange(30) % 2), (x + 100, np.arange(30) % 2)))
    np.testing.assert_array_equal(
        bundle.splits["train"].take(np.arange(30))["features"], x.astype(np.float32)
    )
    tokens = from_objects(
        ((x.astype(np.int64), np.arange(30) % 2), (x.astype(np.int64) + 1, np.arange(30) % 2))
    )
    assert tokens.splits["train"].take(np.arange(1))["features"].dtype == np.int64


def test_several_values() -> None:
    x = np.arange(60.0).reshape(30, 2)
    bundle = from_objects((x, x * 2))
    assert (bundle.info.task, bundle.info.outputs) == ("regression", 2)
    assert {name: len(split) for name, split in bundle.splits.items()} == {"train": 24, "val": 3, "test": 3}


def test_data_frames_are_prepared() -> None:
    pandas = pytest.importorskip("pandas")
    bundle = from_objects(pandas.DataFrame(people()), frame_config())
    assert bundle.preparation is not None
    assert bundle.info.classes == ["no", "yes"]


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(60.0).reshape(30, 2), torch.arange(30) % 2)
    bundle = from_objects((data, torch.utils.data.TensorDataset(torch.ones(4, 2), torch.arange(4) % 2)))
    assert bundle.preparation is not None  # tensors have columns, as arrays do
    subset = torch.utils.data.Subset(data, list(range(20)))
    other = torch.utils.data.Subset(data, list(range(20, 30)))
    assert from_objects((subset, other)).splits["train"].take(np.array([1]))["target"].tolist() == [1]


def test_who_named_no_target_is_told_how() -> None:
    with pytest.raises(
        DataError, match=r"no column 'target'; set data\.target to the column to predict, one of: age, bought"
    ):
        from_objects(pd.DataFrame({"age": range(30), "bought": [0, 1] * 15}))


def test_lists_hold_what_arrays_and_frames_hold() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.5, 4.0] * 10, "b": [3.0, 1.0, 0.5, 2.0] * 10})
    target = [0, 1, 0, 1] * 10
    expected = from_objects((frame.to_numpy(), np.array(target)), config())
    given = from_objects((frame.to_numpy().tolist(), target), config())
    records = frame.assign(target=target)
    for other in (records.to_dict("records"), records.to_dict("list")):
        bundle = from_objects(other, config())
        np.testing.assert_array_equal(
            bundle.splits["train"].arrays["features"], expected.splits["train"].arrays["features"]
        )
    np.testing.assert_array_equal(
        given.splits["train"].arrays["features"], expected.splits["train"].arrays["features"]
    )
    with pytest.raises(DataError, match="not of one length"):
        from_objects(([[1.0], [1.0, 2.0]], [0, 1]), config())


def test_a_list_of_two_datasets_is_train_and_validation() -> None:
    bundle = from_objects([Rows(20), Rows(5, lambda i: (np.array([9.0, i]), i % 3))], config())
    assert {name: len(split) for name, split in bundle.splits.items()} == {"train": 20, "val": 5}
    same = from_objects((Rows(20), Rows(20)), config())
    assert any("the val dataset holds the same items as the train dataset" in line for line in same.warnings)


X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2


@pytest.mark.parametrize(
    ("named", "pairs"),
    [
        ({"X": X, "y": Y}, (X, Y)),
        ({"x": X, "labels": Y}, (X, Y)),
        (
            {"X_train": X[:40], "y_train": Y[:40], "X_val": X[40:], "y_val": Y[40:]},
            ((X[:40], Y[:40]), (X[40:], Y[40:])),
        ),
        (({"X": X[:40], "y": Y[:40]}, {"X": X[40:], "y": Y[40:]}), ((X[:40], Y[:40]), (X[40:], Y[40:]))),
        ({"images": X, "label": Y}, {"images": X, "target": Y}),
    ],
)
def test_arrays_by_their_usual_names_are_the_same_as_pairs(named: Any, pairs: Any) -> None:
    ours, same = from_objects(named, config()), from_objects(pairs, config())
    assert {name: split.fingerprint() for name, split in ours.splits.items()} == {
        name: split.fingerprint() for name, split in same.splits.items()
    }


IDS = np.random.default_rng(0).integers(0, 50, (60, 8))
TEXTS = {"input_ids": IDS, "attention_mask": np.ones((60, 8), np.int64)}
PART = {name: array[40:] + 1 for name, array in TEXTS.items()}


def row(arrays: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: array[i] for name, array in arrays.items()}


@pytest.mark.parametrize("name", ["labels", "label", "y"])
def test_named_arrays_with_their_target_beside_them_or_under_its_usual_name(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    known = from_objects({**TEXTS, "target": Y}, config())
    beside = from_objects((TEXTS, Y), config())
    usual = from_objects({**TEXTS, name: Y}, config())
    assert len({bundle.splits["train"].fingerprint() for bundle in (known, beside, usual)}) == 1
    assert f"the array '{name}' is the target" in caplog.text
    parts = from_objects(((TEXTS, Y), (PART, Y[40:])), config())
    assert {split: len(rows) for split, rows in parts.splits.items()} == {"train": 60, "val": 20}
    items = Rows(60, lambda i: row({**TEXTS, name: Y}, i))
    assert set(from_objects({"train": items}, config()).info.inputs) == set(TEXTS)
    assert caplog.text.count(f"'{name}' is the target of the train dataset") == 1
    with pytest.raises(DataError, match="has no array 'target'"):
        from_objects({**TEXTS, name: Y, "targets": Y}, config())
    with pytest.raises(DataError, match="has no array 'price'"):
        from_objects({**TEXTS, name: Y}, config(target="price"))


@pytest.mark.parametrize(
    "tokens",
    [
        np.arange(1000, dtype=np.uint16),
        IDS,
        torch.from_numpy(IDS),
        (IDS, IDS[:9] + 1),
        {**TEXTS, "labels": IDS},
        Rows(60, lambda i: row({**TEXTS, "labels": IDS}, i)),
    ],
    ids=["memmap", "blocks", "tensor", "splits", "labels", "items"],
)
def test_tokens_for_a_language_model_are_refused_with_the_remedy(tokens: Any) -> None:
    with pytest.raises(DataError, match=r"language models take text, .*type: text"):
        from_objects(tokens, config())


def test_a_target_that_the_config_names_is_taken_by_its_name() -> None:
    bundle = from_objects({"X": X, "y": Y, "target": Y}, config(target="target"))
    assert set(bundle.info.inputs) == {"X", "y"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("frame", {"exclude": ["z"]}),
        ("frame", {"exclude": ["z"], "encode": "target"}),
        ("frame", {"target": ["y", "z"]}),
        ("images", {}),
    ],
    ids=["one", "encoded", "several", "images"],
)
def test_targets_may_be_as_large_as_the_form_asked_for_holds(kind: str, settings: dict[str, Any]) -> None:
    y = np.arange(60) * 1e39
    frame = pd.DataFrame({"zip": [f"z{row % 7}" for row in range(60)], "y": y, "z": y[::-1]})
    data = frame if kind == "frame" else (np.arange(240.0).reshape(60, 2, 2), y)
    given = config(**{"target": "y", **settings})
    with pytest.raises(DataError, match="is infinite, or too large for float32, in"):
        from_objects(data, given)
    bundle = from_objects(data, given, request=LoadRequest(FeatureForm("float64")))
    assert bundle.splits["train"].take(np.arange(9))["target"].max() > 1e39
