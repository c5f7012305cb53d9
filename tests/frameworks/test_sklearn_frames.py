"""scikit-learn models get float64, and pipelines the frame itself: what they predict is scikit-learn's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows_of_people import PEOPLE
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import StackingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import trainwright
from trainwright.errors import DataError

SPLITS = {"train": PEOPLE[:240], "val": PEOPLE[240:270], "test": PEOPLE[270:]}
DATA = {"target": "bought"}


def columns_pipeline(C: float = 1.0) -> Pipeline:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    categories = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    columns = ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector(dtype_include="number")),
            ("categories", categories, ["city"]),
            ("text", TfidfVectorizer(), "about"),
        ]
    )
    return Pipeline([("columns", columns), ("model", LogisticRegression(C=C, random_state=0))])


def by_hand(pipeline: Any, target: str = "bought") -> np.ndarray:
    rows = {name: rows.drop(columns=target) for name, rows in SPLITS.items()}
    fitted = pipeline.fit(rows["train"], SPLITS["train"][target])
    predict = getattr(fitted, "predict_proba", fitted.predict)
    return np.asarray(predict(rows["test"]))


def test_a_pipeline_predicts_as_by_hand(tmp_path: Path) -> None:
    run = trainwright.train({"data": DATA}, model=columns_pipeline(), data=SPLITS, runs_dir=tmp_path)
    model = trainwright.load(run, model=columns_pipeline())
    expected = by_hand(columns_pipeline())
    for rows in (SPLITS["test"], SPLITS["test"].drop(columns="bought")[::1]):
        found = model.predict(rows)[["probability_no", "probability_yes"]].to_numpy()
        np.testing.assert_array_equal(found, expected)
    mappings = SPLITS["test"].astype(object).where(SPLITS["test"].notna(), None).to_dict("records")
    np.testing.assert_array_equal(model.predict(mappings)["probability_yes"], expected[:, 1])
    assert list(model.native.feature_names_in_) == ["age", "children", "city", "about", "member"]

    truth = SPLITS["test"]["bought"] == "yes"
    assert run.metrics["test_accuracy"] == pytest.approx(((expected[:, 1] > 0.5) == truth).mean())
    evaluated = trainwright.evaluate(run, model=columns_pipeline(), data=SPLITS)
    assert evaluated["test_accuracy"] == run.metrics["test_accuracy"]
    assert trainwright.reproduce(run, model=columns_pipeline(), data=SPLITS).verdict == "identical"

    explained = trainwright.explain(run, model=columns_pipeline(), data=SPLITS)
    assert {one["name"] for one in explained["permutation"]["features"]} == set(PEOPLE.columns) - {"bought"}
    most = explained["permutation"]["features"][0]["name"]
    assert most in ("age", "city", "about")


def test_a_pipeline_of_a_booster_predicts_as_by_hand(tmp_path: Path) -> None:
    import lightgbm

    def pipeline() -> Pipeline:
        model = lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1, random_state=0)
        return columns_pipeline().set_params(model=model)

    run = trainwright.train({"data": DATA}, model=pipeline(), data=SPLITS, runs_dir=tmp_path)
    found = trainwright.load(run, model=pipeline()).predict(SPLITS["test"])["probability_yes"]
    np.testing.assert_array_equal(found, by_hand(pipeline())[:, 1])


def test_a_pipeline_by_its_path_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipelines.py").write_text(
        "from sklearn.compose import ColumnTransformer\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import Pipeline\n"
        "from sklearn.preprocessing import OneHotEncoder\n"
        "def make(C=1.0):\n"
        "    columns = ColumnTransformer([('c', OneHotEncoder(handle_unknown='ignore'), ['city'])],\n"
        "                                remainder='drop')\n"
        "    return Pipeline([('columns', columns), ('model', LogisticRegression(C=C))])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, rows in SPLITS.items():
        rows.to_csv(f"{name}.csv", index=False)
    paths = {f"{name}_path": f"{name}.csv" for name in SPLITS}
    model = {"type": "pipelines:make", "framework": "sklearn", "params": {"C": 3.0}}
    run = trainwright.train({"data": {**DATA, **paths}, "model": model}, runs_dir=tmp_path / "runs")

    import pipelines  # type: ignore[import-not-found]

    expected = by_hand(pipelines.make(C=3.0))
    rows = SPLITS["test"].assign(city="Nowhere").reset_index(drop=True)
    rows.loc[1:, "city"] = SPLITS["test"]["city"].to_numpy()[1:]
    found = trainwright.load(run).predict(rows)["probability_yes"].to_numpy()
    np.testing.assert_array_equal(found[1:], expected[1:, 1])
    of_file = trainwright.predict(run, "test.csv")
    np.testing.assert_array_equal(of_file["probability_yes"], expected[:, 1])
    export = trainwright.export(run, tmp_path / "model.skops")
    assert Path(export).stat().st_size > 0


def test_values_and_pipelines_inside_another_estimator(tmp_path: Path) -> None:
    rows = {name: part[["age", "children", "member"]].dropna() for name, part in SPLITS.items()}

    def stack() -> StackingRegressor:
        return StackingRegressor([("ridge", make_pipeline(StandardScaler(), Ridge()))], Ridge(), cv=3)

    run = trainwright.train(
        {"data": {"target": "age", "task": "regression"}}, model=stack(), data=rows, runs_dir=tmp_path
    )
    hand = stack().fit(rows["train"].drop(columns="age"), rows["train"]["age"])
    np.testing.assert_array_equal(
        trainwright.load(run, model=stack()).predict(rows["test"])["prediction"],
        hand.predict(rows["test"].drop(columns="age")),
    )


def test_settings_that_the_pipeline_replaces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.impute: the model is a pipeline, which gets the columns"):
        trainwright.train(
            {"data": {**DATA, "impute": "mean"}}, model=columns_pipeline(), data=SPLITS, runs_dir=tmp_path
        )


def test_other_estimators_see_float64(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = 1e6 + rng.normal(size=(300, 3))  # float32 keeps one digit of these
    y = 1e6 + X @ [1.0, 2.0, -1.0]
    config = {"model": "linear_regression", "data": {"standardize": False, "task": "regression"}}
    parts = ((X[:200], y[:200]), (X[200:250], y[200:250]), (X[250:], y[250:]))
    from sklearn.linear_model import LinearRegression

    run = trainwright.train(config, data=parts, runs_dir=tmp_path)
    hand = LinearRegression().fit(X[:200], y[:200])
    np.testing.assert_allclose(
        trainwright.load(run).predict(X[250:])["prediction"], hand.predict(X[250:]), rtol=1e-14
    )
    assert run.metrics["test_rmse"] < 1e-3
    assert run.manifest["semantics"]["sklearn"] == 2
