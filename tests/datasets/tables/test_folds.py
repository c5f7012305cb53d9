"""Cross-validation's folds: who is tested when, and by whom."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from rows import config as data_config
from rows import csv_text, load, people

from trainwright.config.splits import SplitConfig
from trainwright.datasets.csv import CsvDataset
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.sklearn import SklearnDataset
from trainwright.datasets.tables.splitting import Rows, split_rows
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError

QUICK = settings(max_examples=60, deadline=None)


def table(count: int, **columns: object) -> Table:
    return Table(
        {"n": np.arange(count)} | {name: np.asarray(values) for name, values in columns.items()}, "rows"
    )


def all_folds(
    rows: Table, folds: int, labels: np.ndarray | None = None, val: float = 0.2, **options: object
) -> list[Rows]:
    chosen = [SplitConfig.model_validate({"folds": folds, "fold": fold, **options}) for fold in range(folds)]
    return [split_rows(rows, one, val, 0.0, labels) for one in chosen]


def assert_apart(found: list[Rows], count: int) -> None:
    """That each row is tested once, and that within a fold every row is in one split."""
    assert sorted(np.concatenate([rows["test"] for rows in found]).tolist()) == list(range(count))
    for rows in found:
        assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(count))
        assert all((np.diff(ids) > 0).all() for ids in rows.values())


PLAIN = [[2, 4], [0, 3], [5, 6], [1, 8], [7, 9]]
PLAIN_VAL = [[5, 6], [1, 4], [0, 2], [4, 5], [0, 8]]
CLASSES = [[0, 2, 3, 11], [1, 5, 6, 8], [4, 7, 9, 10]]
GROUPS = [[4, 5, 8, 9], [0, 1, 6, 7], [2, 3, 10, 11]]


def test_the_same_for_ever() -> None:
    plain = all_folds(table(10), 5, seed=7)
    assert [rows["test"].tolist() for rows in plain] == PLAIN
    assert [rows["val"].tolist() for rows in plain] == PLAIN_VAL
    classes = all_folds(table(12), 3, np.arange(12) % 2, seed=7)
    assert [rows["test"].tolist() for rows in classes] == CLASSES
    groups = all_folds(table(12, who=np.repeat(list("abcdef"), 2).astype(object)), 3, group="who", seed=7)
    assert [rows["test"].tolist() for rows in groups] == GROUPS


@QUICK
@given(st.integers(20, 200), st.integers(2, 7), st.integers(0, 2**63 - 1))
def test_every_row_is_tested_once(count: int, folds: int, seed: int) -> None:
    found = all_folds(table(count), folds, seed=seed)
    assert_apart(found, count)
    for rows in found:
        assert abs(len(rows["test"]) - count / folds) < 1
        assert len(rows["val"]) == int((count - len(rows["test"])) * 0.2 + 0.5)


@QUICK
@given(st.lists(st.integers(0, 4), min_size=30, max_size=150), st.integers(2, 5), st.integers(0, 1000))
def test_folds_keep_the_shares_of_the_classes(classes: list[int], folds: int, seed: int) -> None:
    labels = np.unique([*classes, *range(5), *range(5)], return_inverse=True)[1]
    found = all_folds(table(len(labels)), folds, labels, seed=seed)
    assert_apart(found, len(labels))
    sizes = np.bincount(labels)
    for rows in found:
        assert (np.abs(np.bincount(labels[rows["test"]], minlength=5) - sizes / folds) < 1).all()
        assert abs(len(rows["test"]) - len(labels) / folds) < 1
        assert (np.bincount(labels[rows["train"]], minlength=5) > 0).all()


@QUICK
@given(st.integers(30, 150), st.integers(2, 5), st.sampled_from(["random", "class", "group", "time"]))
def test_folds_of_validation_cut_the_rows_that_do_not_test(count: int, folds: int, kind: str) -> None:
    """Each of these rows validates once; the rows of the ordinary test split are in no split."""
    values = np.arange(count) % 15
    rows, own = table(count, key=values), {kind: "key"} if kind in ("group", "time") else {}
    labels = values % 3 if kind == "class" else None
    plain = split_rows(rows, SplitConfig.model_validate(own), 0.2, 0.2, labels)
    parts = [
        split_rows(
            rows,
            SplitConfig.model_validate({"val_folds": folds, "val_fold": fold, **own}),
            0.2,
            0.2,
            labels,
        )
        for fold in range(folds)
    ]
    rest = sorted([*plain["train"], *plain["val"]])
    validated = np.concatenate([one["val"] for one in parts]).tolist()
    assert len(set(validated)) == len(validated)
    for one in parts:
        assert set(one) == {"train", "val"}
        if kind == "time":
            assert values[one["train"]].max() < values[one["val"]].min()
        else:
            assert sorted([*one["train"], *one["val"]]) == rest
        if kind == "group":
            assert not set(values[one["train"]]) & set(values[one["val"]])
    if kind == "time":
        assert set(validated) < set(rest)
    else:
        assert sorted(validated) == rest


def test_folds_of_validation_need_each_other_and_no_other_folds() -> None:
    for wrong in ({"val_folds": 3}, {"val_fold": 0}, {"val_folds": 3, "val_fold": 3}):
        with pytest.raises(ValidationError, match="val_fold"):
            SplitConfig.model_validate(wrong)
    with pytest.raises(ValidationError, match="keep one"):
        SplitConfig.model_validate({"val_folds": 3, "val_fold": 0, "folds": 3, "fold": 0})
    with pytest.raises(DataError, match="5 folds of 4 rows; allowed: 2 to 4"):
        split_rows(table(5), SplitConfig(val_folds=5, val_fold=0), 0.2, 0.2, None)


def test_stratify_can_be_left_out() -> None:
    labels = np.repeat([0, 1], 50)
    plain = all_folds(table(100), 5, labels, stratify=False)
    assert [rows["test"].tolist() for rows in plain] == [
        rows["test"].tolist() for rows in all_folds(table(100), 5)
    ]


@QUICK
@given(st.lists(st.integers(0, 12), min_size=40, max_size=150), st.integers(2, 4), st.integers(0, 1000))
def test_groups_stay_together_and_folds_are_balanced(groups: list[int], folds: int, seed: int) -> None:
    values = np.array([*groups, *range(13)])
    if np.bincount(values).max() > len(values) / folds:
        return  # a fold of its own, beside which others may have too few groups left
    found = all_folds(table(len(values), who=values), folds, group="who", seed=seed)
    assert_apart(found, len(values))
    for rows in found:
        where = [set(values[rows[name]].tolist()) for name in ("train", "val", "test")]
        assert sum(map(len, where)) == len(set(values.tolist()))
    sizes = [len(rows["test"]) for rows in found]
    assert max(sizes) - min(sizes) <= np.bincount(values).max()


@QUICK
@given(st.permutations(list(range(60))), st.integers(2, 6))
def test_time_goes_forward_in_a_window_that_grows(times: list[int], folds: int) -> None:
    values = np.array(times)
    found = all_folds(table(60, day=values), folds, time="day")
    size = 60 // (folds + 1)
    assert values[np.concatenate([rows["test"] for rows in found])].min() == 60 - folds * size
    before: set[int] = set()
    for rows in found:
        assert values[rows["train"]].max() < values[rows["val"]].min()
        assert values[rows["val"]].max() < values[rows["test"]].min()
        assert len(rows["test"]) == size
        learned = set(rows["train"].tolist()) | set(rows["val"].tolist())
        assert before <= learned
        before = learned | set(rows["test"].tolist())


def test_rows_of_one_time_are_in_one_block() -> None:
    days = np.repeat(np.arange(20), 3)
    for rows in all_folds(table(60, day=days), 3, time="day"):
        split_of_day = [{days[i] for i in rows[name]} for name in ("train", "val", "test")]
        assert sum(map(len, split_of_day)) == len(set.union(*split_of_day))


def test_validation_rows_are_drawn_anew_for_each_fold() -> None:
    found = all_folds(table(100), 5)
    assert len({tuple(rows["val"].tolist()) for rows in found}) == 5
    assert "val" not in all_folds(table(100), 5, val=0.0)[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fold": 1}, "fold also needs folds"),
        ({"folds": 3}, "folds also needs fold, 0 to 2"),
        ({"folds": 3, "fold": 3}, "numbered 0 to 2"),
        ({"folds": 3, "fold": 0, "test": 0.2}, "a fold is the test split"),
        ({"folds": 1, "fold": 0}, "greater than or equal to 2"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SplitConfig.model_validate(settings)


def test_what_cannot_be_cut_into_folds() -> None:
    with pytest.raises(DataError, match="has 2 groups, too few for 3 folds"):
        all_folds(table(10, who=np.array(list("ab") * 5, dtype=object)), 3, group="who")
    with pytest.raises(DataError, match=r"the class of row 3 has no other row"):
        all_folds(table(30), 3, np.array([0, 0, 2, *[0, 1] * 13, 1]))
    with pytest.raises(DataError, match=r"5 folds of 3 rows; allowed: 2 to 3"):
        all_folds(table(3), 5)
    with pytest.raises(DataError, match=r"3 folds of 3 rows; allowed: 2 to 2"):
        all_folds(table(3, day=np.arange(3)), 3, time="day")
    with pytest.raises(
        DataError,
        match=r"test split would be empty: of 30 rows, in fold 0 of 2, and .* fewer data.split.folds$",
    ):
        all_folds(table(30, day=np.zeros(30)), 2, val=0.0, time="day")
    with pytest.raises(DataError, match="stratify cannot be combined with group"):
        all_folds(table(30, who=np.arange(30)), 3, group="who", stratify=True)


# -- through the datasets


def split(fold: int, **more: Any) -> dict[str, Any]:
    return {"split": {"folds": 3, "fold": fold, **more}}


def positions_tested(bundles: list[Any]) -> list[int]:
    return sorted(np.concatenate([bundle.rows["test"] for bundle in bundles]).tolist())


def test_of_a_file(tmp_path: Any) -> None:
    path = tmp_path / "people.csv"
    path.write_text(csv_text(people(90)), encoding="utf-8")
    bundles = [load(CsvDataset, data_config(type="csv", path=str(path), **split(fold))) for fold in range(3)]
    assert positions_tested(bundles) == list(range(90))
    assert {name: len(rows) for name, rows in bundles[0].splits.items()} == {
        "train": 54,
        "val": 6,
        "test": 30,
    }
    train_means = [bundle.splits["train"].arrays["features"][:, 0].mean() for bundle in bundles]
    # Prepared by what it learns from, not by all rows
    assert train_means == pytest.approx([0, 0, 0], abs=1e-6)


def test_of_a_known_set_of_arrays_and_of_a_frame() -> None:
    iris = [
        load(SklearnDataset, data_config(type="iris", target="target", **split(fold))) for fold in range(3)
    ]
    assert positions_tested(iris) == list(range(150))
    pair = (np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0) ** 2)
    assert positions_tested([from_objects(pair, data_config(**split(fold))) for fold in range(3)]) == list(
        range(30)
    )
    frame = pd.DataFrame(people(60))
    assert positions_tested([from_objects(frame, data_config(**split(fold))) for fold in range(3)]) == list(
        range(60)
    )


def test_of_rows_that_bring_their_own_splits() -> None:
    pair = (np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0) ** 2)
    with pytest.raises(DataError, match=r"data\.split\.folds divides the rows of one source"):
        from_objects((pair, pair), data_config(**split(0)))
    with pytest.raises(DataError, match=r"data\.split\.folds divides the rows of one source"):
        from_objects({"train": pair, "test": pair}, data_config(**split(0)))
