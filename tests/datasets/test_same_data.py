"""The same rows give the same features, however they come in."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from rows import people
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN
from trainwright.datasets.csv import CsvDataset, CsvParams
from trainwright.datasets.parquet import ParquetDataset
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.sklearn import SklearnDataset
from trainwright.errors import DataError, InputError

RNG = np.random.default_rng(0)
X = RNG.normal([5, -300, 0.02, 1e4], [1, 40, 0.01, 900], size=(200, 4))
Y = (X[:, 0] - X[:, 1] / 40 + RNG.normal(size=200) > 12.5).astype(int)
FRAME = pd.DataFrame(X, columns=[f"x{i}" for i in range(4)])
BOTH = FRAME.assign(target=Y)


def config(**settings: Any) -> DataConfig:
    return DataConfig.model_validate(settings)


def prints(bundle: Any) -> dict[str, str]:
    return {name: split.fingerprint() for name, split in bundle.splits.items()}


def test_files_frames_arrays_and_tensors_are_prepared_alike(tmp_path: Path) -> None:
    BOTH.to_csv(tmp_path / "rows.csv", index=False)
    BOTH.to_parquet(tmp_path / "rows.parquet", index=False)
    csv = CsvDataset(config(type="csv", path=str(tmp_path / "rows.csv")), CsvParams()).load(PLAIN)
    parquet = ParquetDataset(
        config(type="parquet", path=str(tmp_path / "rows.parquet")), ParquetDataset.Params()
    ).load(PLAIN)
    tensors = torch.from_numpy(X), torch.from_numpy(Y)
    given = [
        BOTH,
        (X, Y),
        (FRAME, BOTH["target"]),
        (X, Y.reshape(-1, 1)),
        tensors,
        {"train": torch.utils.data.TensorDataset(*tensors)},
    ]
    expected = prints(csv)
    assert prints(parquet) == expected
    for data in given:
        assert prints(from_objects(data)) == expected


@pytest.mark.parametrize("as_frame", [False, True])
def test_a_bunch_of_scikit_learn_is_the_data_set_of_its_name(as_frame: bool) -> None:
    built_in = SklearnDataset(config(type="wine"), SklearnDataset.Params()).load(PLAIN)
    given = from_objects(load_wine(as_frame=as_frame), config())
    assert prints(given) == prints(built_in)
    assert list(given.info.feature_names) == list(load_wine().feature_names)


def test_columns_of_arrays_are_standardized_by_the_training_rows() -> None:
    bundle = from_objects(((X[:150], Y[:150]), (X[150:], Y[150:])))
    scaler = StandardScaler().fit(X[:150])
    for name, rows in (("train", X[:150]), ("val", X[150:])):
        np.testing.assert_allclose(
            bundle.splits[name].take(np.arange(len(rows)))["features"], scaler.transform(rows), rtol=1e-4,
            atol=1e-5,
        )  # fmt: skip


def test_missing_values_and_categories_in_a_pair() -> None:
    frame = pd.DataFrame(people())
    bought, features = frame["bought"], frame.drop(columns="bought")
    features.loc[[3, 50], "height"] = np.nan
    settings = config(target="bought", impute="median")
    assert prints(from_objects((features, bought), settings)) == prints(
        from_objects(features.assign(bought=bought), settings)
    )
    mixed = from_objects((features.to_numpy(), bought.to_numpy()), settings)  # an array of objects
    assert mixed.info.feature_names[-2:] == ["x2=Rome", "x3"]


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (RNG.integers(0, 9, (200, 4)), "are whole numbers in an array, such as tokens"),
        (RNG.normal(size=(200, 2, 2)).astype(np.float32), r"have the shape \(2, 2\) a row"),
    ],
)
def test_tokens_and_images_stay_as_they_are(
    features: np.ndarray, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bundle = from_objects({"train": (features, Y), "val": (features[:20] + 1, Y[:20])})
    np.testing.assert_array_equal(bundle.splits["train"].take(np.arange(200))["features"], features)
    (line,) = [record.message for record in caplog.records if "taken as they are" in record.message]
    assert re.search(says, line)


def test_the_target_among_the_features_is_refused() -> None:
    with pytest.raises(DataError, match="X has a column 'target', which is also the name of y"):
        from_objects((BOTH, BOTH["target"]))


def test_other_columns_in_another_split_are_refused() -> None:
    with pytest.raises(DataError, match="the val features have 3 columns, but the train features 4"):
        from_objects(((X, Y), (X[:, :3], Y)))


SETTINGS: dict[str, Any] = {
    "experiment": {"seed": 1},
    "model": {"type": "mlp", "params": {"hidden": [8]}},
    "training": {"max_steps": 60, "batch_size": 32, "learning_rate": 0.02, "threads": 1},
}


def test_a_run_has_one_digest_however_its_rows_came(tmp_path: Path) -> None:
    BOTH.to_csv(tmp_path / "rows.csv", index=False)
    of_file = trainwright.train(
        {**SETTINGS, "data": {"path": str(tmp_path / "rows.csv"), "target": "target"}}, runs_dir=tmp_path
    )
    of_arrays = trainwright.train(SETTINGS, data=(X, Y), runs_dir=tmp_path)
    of_frames = trainwright.train(SETTINGS, data=(FRAME, BOTH["target"]), runs_dir=tmp_path)
    assert of_file.digest == of_arrays.digest == of_frames.digest
    assert of_file.metrics == of_arrays.metrics == of_frames.metrics
    assert of_arrays.metrics["test_accuracy"] > 0.8

    model = trainwright.load(of_arrays)
    expected = model.predict(FRAME)
    other_names = FRAME.rename(columns={"x0": "height", "x2": "age"})
    for rows in (X, X.tolist(), torch.from_numpy(X), other_names, BOTH, FRAME[["x3", "x1", "x0", "x2"]]):
        pd.testing.assert_frame_equal(model.predict(rows).reset_index(drop=True), expected)
    with pytest.raises(InputError, match=r"shape \(200, 3\) given; expected the columns x0, x1, x2, x3"):
        model.predict(X[:, :3])
    pd.testing.assert_frame_equal(model.predict(str(tmp_path / "rows.csv")), expected)
    with pytest.raises(DataError, match=r"missing\.csv: there is no such file"):
        model.predict("missing.csv")


def test_weights_beside_a_pair() -> None:
    weights = np.linspace(0, 2, 200)
    by_column = from_objects(BOTH.assign(weight=weights), config(weight="weight"))
    triple = from_objects((X, Y, weights))
    assert prints(triple) == prints(by_column) == prints(from_objects((FRAME, BOTH["target"], weights)))
    assert triple.info.feature_names == ["x0", "x1", "x2", "x3"]
    images = from_objects((X.reshape(200, 2, 2).astype(np.float32), Y, weights))
    np.testing.assert_array_equal(
        images.splits["train"].take(np.arange(3))["weight"], weights[images.rows["train"][:3]]
    )
    with pytest.raises(DataError, match="the val split has no weights, but others are"):
        from_objects(((X, Y, weights), (X + 1, Y)))


def test_a_triple_is_learned_with_its_weights(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    weights = np.where(Y == 1, 5.0, 1.0)
    settings: dict[str, Any] = {
        "model": "logistic_regression",
        "data": {"standardize": False, "split": {"val": 0}},
    }
    parts = {"train": (X[:150], Y[:150], weights[:150]), "test": (X[150:], Y[150:], weights[150:])}
    run = trainwright.train(settings, data=parts, runs_dir=tmp_path)
    hand = LogisticRegression().fit(X[:150], Y[:150], sample_weight=weights[:150])
    found = trainwright.load(run).predict(X[150:])["probability_1"]
    np.testing.assert_allclose(found, hand.predict_proba(X[150:])[:, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("rows.csv", r"name a file in the config: .*\{\"path\": 'rows.csv'\}"),
        ((X[:150], X[150:], Y[:150], Y[150:]), r"give \(\(X_train, y_train\), \(X_test, y_test\)\)"),
        (iter([(X, Y)]), "an iterator can be read only once"),
        ((scipy.sparse.csr_matrix(X), Y), "holds a sparse matrix, which is not taken"),
    ],
)
def test_data_in_forms_that_are_not_taken(data: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_objects(data)
