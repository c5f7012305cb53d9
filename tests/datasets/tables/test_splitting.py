"""Who trains, who validates, who tests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.config.splits import SplitConfig
from trainwright.datasets.tables.splitting import Rows, split_rows
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.types import SPLITS

SHARES = st.tuples(st.sampled_from([0.0, 0.1, 0.25]), st.sampled_from([0.0, 0.1, 0.3]))
QUICK = settings(max_examples=60, deadline=None)


def table(count: int, **columns: object) -> Table:
    return Table(
        {"n": np.arange(count)} | {name: np.asarray(values) for name, values in columns.items()}, "rows"
    )


def split(
    rows: Table, labels: np.ndarray | None = None, val: float = 0.1, test: float = 0.1, **options: object
) -> Rows:
    return split_rows(rows, SplitConfig.model_validate(options), val, test, labels)


def test_the_same_for_ever() -> None:
    rows = split(table(20), seed=7)
    assert (rows["val"].tolist(), rows["test"].tolist()) == ([0, 5], [14, 16])


@QUICK
@given(st.integers(20, 300), SHARES, st.integers(0, 2**63 - 1))
def test_every_row_is_in_one_split(count: int, shares: tuple[float, float], seed: int) -> None:
    rows = split(table(count), None, *shares, seed=seed)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(count))
    assert all((np.diff(ids) > 0).all() for ids in rows.values())
    for name, share in zip(SPLITS[1:], shares, strict=True):
        assert len(rows.get(name, np.empty(0))) == int(count * share + 0.5)


@QUICK
@given(st.lists(st.integers(0, 5), min_size=30, max_size=200), SHARES)
def test_classes_keep_their_shares(classes: list[int], shares: tuple[float, float]) -> None:
    labels = np.unique(classes, return_inverse=True)[1]
    rows = split(table(len(classes)), labels, *shares)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(classes)))
    counts = np.bincount(labels)
    assert (np.bincount(labels[rows["train"]], minlength=len(counts)) >= 1).all()
    for name, share in zip(SPLITS[1:], shares, strict=True):
        found = (
            np.bincount(labels[rows[name]], minlength=len(counts)) if name in rows else np.zeros(len(counts))
        )
        assert (np.abs(found - counts * share) < 2).all()


def test_small_classes_always_train() -> None:
    labels = np.array([0] * 50 + [1, 2, 2, 3, 3, 3])
    rows = split(table(len(labels)), labels, 0.2, 0.2)
    assert set(labels[rows["train"]]) == {0, 1, 2, 3}


def test_large_shares_are_reached_exactly() -> None:
    labels = np.repeat(np.arange(10), 7)
    rows = split(table(70), labels, 0.2, 0.3)
    assert (len(rows["val"]), len(rows["test"])) == (14, 21)


@QUICK
@given(st.lists(st.sampled_from("abcdefghij"), min_size=40, max_size=120), st.integers(0, 1000))
def test_groups_stay_together(groups: list[str], seed: int) -> None:
    if len(set(groups)) < 3:
        return
    rows = split(table(len(groups), who=np.array(groups, dtype=object)), group="who", seed=seed)
    where = {name: {groups[i] for i in ids} for name, ids in rows.items()}
    assert sum(map(len, where.values())) == len(set(groups))
    assert set(where) == {"train", "val", "test"}


def test_groups_do_not_depend_on_what_they_are_called() -> None:
    groups = np.array(list("abcde") * 20, dtype=object)
    one = split(table(100, who=groups), group="who", val=0.2, test=0.2)
    other = split(table(100, who=np.array([ord(name) for name in groups])), group="who", val=0.2, test=0.2)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_too_few_groups() -> None:
    with pytest.raises(
        DataError,
        match=r"the test split would be empty: it gets 0.1 of 10 rows, and rows of one 'who' stay together",
    ):
        split(table(10, who=np.array(list("ab") * 5, dtype=object)), group="who")


@QUICK
@given(st.lists(st.integers(0, 50), min_size=40, max_size=150))
def test_time_only_goes_forward(times: list[int]) -> None:
    values = np.array(times)
    try:
        rows = split(table(len(times), day=values), time="day", val=0.2, test=0.2)
    except DataError:
        assert len(set(times)) < 20  # so many rows of one time that a split has none left
        return
    assert values[rows["train"]].max() < values[rows["val"]].min()
    assert values[rows["val"]].max() < values[rows["test"]].min()


def test_times_as_text_with_zones() -> None:
    days = np.array([f"2024-01-{day:02}T00:30:00+02:00" for day in range(1, 21)], dtype=object)
    rows = split(table(20, day=days), time="day")
    assert (rows["val"].tolist(), rows["test"].tolist()) == ([16, 17], [18, 19])


def test_missing_groups_and_times_are_named() -> None:
    for option in ("group", "time"):
        with pytest.raises(DataError, match=rf"'x' \(data\.split\.{option}\) has no value in row 2"):
            split(table(3, x=np.array([1.0, np.nan, 2.0])), **{option: "x"})  # type: ignore[arg-type]
