"""From categories with many values to features."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rows import config
from sklearn.model_selection import PredefinedSplit
from sklearn.preprocessing import TargetEncoder

from trainwright.datasets.tables.encoders.base import TrainingRows
from trainwright.datasets.tables.encoders.many_categories import SMOOTHING, _folds
from trainwright.datasets.tables.preparation import MAX_ONEHOT, TabularPreparation, fit, from_json
from trainwright.datasets.tables.table import Table, as_table
from trainwright.datasets.tables.tabular import build
from trainwright.datasets.tables.target import Target
from trainwright.types import FEATURES, FeatureForm

ROWS = 400
TARGETS = {
    "regression": (Target("y", "regression"), lambda rng: rng.normal(7, 3, ROWS)),
    "two classes": (
        Target("y", "classification", ["no", "yes"]),
        lambda rng: rng.choice(["no", "yes"], ROWS, p=[0.7, 0.3]).astype(object),
    ),
    "three classes": (
        Target("y", "classification", ["a", "b", "c"]),
        lambda rng: rng.choice(["a", "b", "c"], ROWS).astype(object),
    ),
}


def table(kind: str) -> tuple[Table, Target]:
    rng = np.random.default_rng(0)
    target, draw = TARGETS[kind]
    zips = np.array([f"z{i}" for i in rng.integers(0, 60, ROWS) ** 2 // 60], dtype=object)
    return Table({"zip": zips, "y": draw(rng)}), target


def fitted(rows: Table, target: Target, **settings: Any) -> TabularPreparation:
    return fit(rows, ["zip"], target, config(target="y", standardize=False, **settings))


@pytest.mark.parametrize("kind", TARGETS)
def test_mean_targets_are_those_of_scikit_learn(kind: str) -> None:
    rows, target = table(kind)
    settings = config(target="y", standardize=False, encode="target")
    preparation = fit(rows, ["zip"], target, settings)
    folds = _folds(TrainingRows(rows, target, settings), seed=settings.split.seed)
    encoder = TargetEncoder(smooth=SMOOTHING, cv=PredefinedSplit(folds))
    y = target.encode(rows)
    trained = encoder.fit_transform(rows.columns["zip"][:, None], y)
    np.testing.assert_allclose(preparation.training_features(rows, settings), trained, rtol=1e-6)
    others = Table({"zip": np.array(["z0", "z7", "nowhere"], dtype=object)})
    expected = encoder.transform(others.columns["zip"][:, None])
    np.testing.assert_allclose(preparation.features(others), expected, rtol=1e-6)
    assert len(preparation.feature_names) == trained.shape[1]
    assert not np.array_equal(preparation.features(rows), preparation.training_features(rows, settings))


def test_the_folds_are_stratified_and_of_equal_size() -> None:
    rows, target = table("two classes")
    folds = _folds(TrainingRows(rows, target, config(target="y")), seed=0)
    counts = np.array(
        [[np.sum((folds == f) & (rows.columns["y"] == y)) for f in range(5)] for y in ("no", "yes")]
    )
    assert np.ptp(counts, axis=1).max() <= 1
    assert (folds != _folds(TrainingRows(rows, target, config(target="y")), seed=1)).any()


def test_a_training_row_does_not_see_its_own_target() -> None:
    rows, target = table("regression")
    settings = config(target="y", standardize=False, encode="target")
    before = fit(rows, ["zip"], target, settings).training_features(rows, settings)
    changed = rows.columns["y"].copy()
    changed[3] += 1000
    others = Table({**rows.columns, "y": changed})
    after = fit(others, ["zip"], target, settings).training_features(others, settings)
    assert after[3] == before[3]
    assert (after != before).any()


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_rows_count_by_their_weight(scale: float) -> None:
    rows, target = table("two classes")
    weights = np.random.default_rng(1).integers(0, 4, ROWS) * scale
    rows = Table({**rows.columns, "w": weights})
    settings = config(target="y", standardize=False, encode="target", weight="w")
    preparation = fit(rows, ["zip"], target, settings)
    y, w, zips = rows.columns["y"] == "yes", weights / weights.mean(), rows.columns["zip"]

    def mean_of(name: str, used: Any) -> float:
        one = used & (zips == name)
        return float((w[one] @ y[one] + 10 * np.average(y[used], weights=w[used])) / (w[one].sum() + 10))

    every = np.ones(ROWS, dtype=bool)
    others = preparation.features([{"zip": "z3"}, {"zip": "nowhere"}])[:, 0]
    np.testing.assert_allclose(others, [mean_of("z3", every), np.average(y, weights=w)], rtol=1e-6)
    folds = _folds(TrainingRows(rows, target, settings), seed=settings.split.seed)
    expected = [mean_of(zips[i], folds != folds[i]) for i in range(ROWS)]
    trained = preparation.training_features(rows, settings)[:, 0]
    np.testing.assert_allclose(trained, expected, rtol=1e-6)


@pytest.mark.parametrize("groups", [40, 3])
def test_a_training_row_does_not_see_the_targets_of_its_group(groups: int) -> None:
    rows, target = table("regression")
    who = np.random.default_rng(1).integers(0, groups, ROWS)
    rows = Table({**rows.columns, "who": who})
    settings = config(target="y", standardize=False, encode="target", split={"group": "who"})
    before = fit(rows, ["zip"], target, settings).training_features(rows, settings)
    changed = Table({**rows.columns, "y": rows.columns["y"] + 1000.0 * (who == 2)})
    after = fit(changed, ["zip"], target, settings).training_features(changed, settings)
    np.testing.assert_array_equal(after[who == 2], before[who == 2])
    folds = _folds(TrainingRows(rows, target, settings), seed=0)
    assert (after != before)[:, 0].tolist() == (folds != folds[who == 2][0]).tolist()
    assert len({*zip(who.tolist(), folds.tolist(), strict=True)}) == groups
    assert len(set(folds.tolist())) == min(groups, 5)


def test_names_of_mean_targets() -> None:
    assert fitted(*table("regression"), encode="target").feature_names == ["zip.target"]
    assert fitted(*table("two classes"), encode="target").feature_names == ["zip.target"]
    assert fitted(*table("three classes"), encode="target").feature_names == [
        "zip.target=a",
        "zip.target=b",
        "zip.target=c",
    ]


def test_frequencies() -> None:
    rows = Table({"zip": np.array(["a", "b", "a", "c", "a"], dtype=object), "y": np.arange(5.0)})
    preparation = fitted(rows, Target("y", "regression"), encode="frequency")
    others = as_table([{"zip": value} for value in ("a", "c", "nowhere")])
    np.testing.assert_array_equal(preparation.features(others)[:, 0], np.float32([0.6, 0.2, 0]))
    assert preparation.feature_names == ["zip.frequency"]


@pytest.mark.parametrize("encode", ["target", "frequency"])
def test_they_are_standardized_on_the_training_rows(encode: str) -> None:
    rows, target = table("three classes")
    settings = config(target="y", encode=encode)
    features = fit(rows, ["zip"], target, settings).training_features(rows, settings).astype(np.float64)
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(features.std(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize("encode", ["target", "frequency"])
def test_missing_values_are_filled_or_kept(encode: str) -> None:
    zips = np.array(["a", "b", "a", None, "a", "b"], dtype=object)
    rows, target = Table({"zip": zips, "y": np.arange(6.0)}), Target("y", "regression")
    filled = fitted(rows, target, encode=encode, impute="mean").features([{"zip": None}, {"zip": "a"}])
    assert filled[0] == filled[1]
    kept = fitted(rows, target, encode=encode, impute="keep").features([{"zip": None}, {"zip": "a"}])
    assert np.isnan(kept[:, 0]).tolist() == [True, False]


@pytest.mark.parametrize("encode", ["target", "frequency"])
@pytest.mark.parametrize("kind", TARGETS)
def test_json_round_trip_is_exact(encode: str, kind: str) -> None:
    rows, target = table(kind)
    preparation = fitted(rows, target, encode=encode)
    again = from_json(json.loads(json.dumps(preparation.to_json())))
    assert again.to_json() == preparation.to_json()
    np.testing.assert_array_equal(again.features(rows), preparation.features(rows))


def test_auto_is_one_hot_until_there_are_too_many() -> None:
    for count, features in ((MAX_ONEHOT, MAX_ONEHOT), (MAX_ONEHOT + 1, 1)):
        zips = np.array([f"z{i}" for i in range(count)] + [None], dtype=object)
        rows = Table({"zip": zips, "y": np.arange(count + 1.0)})
        preparation = fitted(rows, Target("y", "regression"), impute="median")
        assert len(preparation.feature_names) == features


def test_a_run_trains_on_other_folds_and_validates_on_the_full_fit() -> None:
    rows, _ = table("two classes")
    frame = pd.DataFrame(dict(rows.columns))
    settings = config(target="y", encode="target", columns=dict.fromkeys(frame.columns[:1], "category"))
    bundle = build({"train": as_table(frame)}, settings, FeatureForm())
    assert bundle.preparation is not None
    raw = bundle.preparation.features(frame)
    for name in ("val", "test"):
        np.testing.assert_array_equal(
            bundle.splits[name].take(np.arange(9))[FEATURES], raw[bundle.rows[name][:9]]
        )
    trained = bundle.splits["train"].take(np.arange(len(bundle.rows["train"])))[FEATURES]
    assert (trained != raw[bundle.rows["train"]]).any()
    again = build({"train": as_table(frame)}, settings, FeatureForm())
    assert again.splits["train"].fingerprint() == bundle.splits["train"].fingerprint()


def test_rows_that_are_in_two_splits_are_still_found() -> None:
    rows, _ = table("two classes")
    twice = pd.concat([pd.DataFrame(dict(rows.columns))] * 2, ignore_index=True).assign(x=[*range(ROWS)] * 2)
    settings = config(target="y", encode="target", split={"seed": 3})
    warnings = build({"train": as_table(twice)}, settings, FeatureForm()).warnings
    assert sum("rows are also train rows" in line for line in warnings) == 2


def test_each_column_may_have_its_own_encoding() -> None:
    rows, _ = table("two classes")
    frame = pd.DataFrame({**rows.columns, "city": rows.columns["zip"], "area": np.arange(ROWS) % 7})
    columns = {"zip": {"type": "category", "encode": "target"}, "area": "category"}
    bundle = build(
        {"train": as_table(frame)}, config(target="y", encode="frequency", columns=columns), FeatureForm()
    )
    assert bundle.preparation is not None
    assert bundle.info.feature_names == ["zip.target", "city.frequency", "area.frequency"]
    with pytest.raises(ValueError, match="encode is for columns of type category, not text"):
        config(columns={"zip": {"type": "text", "encode": "target"}})
