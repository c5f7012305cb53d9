"""Explanations: right where the truth is known, equal to those of other libraries, bounded, and the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn import inspection
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeRegressor

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.tables.encoders.categories import CategoryColumn
from trainwright.datasets.tables.encoders.numbers import NumberColumn
from trainwright.datasets.tables.preparation import TabularPreparation, fit
from trainwright.datasets.tables.table import Table
from trainwright.datasets.tables.target import Target
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.errors import InputError, MissingExtraError
from trainwright.evaluation import explanation, shapley
from trainwright.evaluation.explained import Column, ExplainedModel, data_columns
from trainwright.evaluation.explanation import Model, explain
from trainwright.evaluation.permutation import permutation_importance
from trainwright.require import install_hint
from trainwright.types import DataInfo, Predictions, features_spec

Function = Callable[[np.ndarray], np.ndarray]
ROWS = 300


def predictor(function: Function, task: str = "regression") -> Callable[[Split], Iterator[Predictions]]:
    """What `Framework.predict` does, of a function of features, in batches of 256 rows."""

    def predict(split: Split) -> Iterator[Predictions]:
        for start in range(0, len(split), 256):
            ids = np.arange(start, min(start + 256, len(split)))
            batch = split.take(ids)
            outputs = np.asarray(function(batch["features"]), np.float32)
            if task == "regression":
                loss = float(((outputs - batch["target"]) ** 2).sum())
            else:
                loss = float(-np.log(np.clip(outputs[np.arange(len(ids)), batch["target"]], 1e-7, 1)).sum())
            yield Predictions(ids, outputs, batch["target"], loss)

    return predict


def numbers(rows: int = ROWS, columns: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def regression(features: np.ndarray, targets: np.ndarray, names: tuple[str, ...] = ()) -> DataBundle:
    outputs = targets.shape[1] if targets.ndim > 1 else 1
    info = DataInfo(
        "regression", features_spec(features.shape[1:]), outputs, feature_names=names, target="price"
    )
    return DataBundle(info, {"test": Arrays({"features": features, "target": targets.astype(np.float32)})})


def classification(features: np.ndarray, targets: np.ndarray) -> DataBundle:
    classes = [f"class {i}" for i in range(int(targets.max()) + 1)]
    info = DataInfo("classification", features_spec(features.shape[1:]), len(classes), classes)
    return DataBundle(info, {"test": Arrays({"features": features, "target": targets.astype(np.int64)})})


def explained_model(predict: Any, bundle: DataBundle, seed: int = 0) -> ExplainedModel:
    split = bundle.splits["test"]
    batch = split.take(np.arange(len(split)))
    return ExplainedModel(
        predict,
        bundle.info,
        data_columns(bundle.info, bundle.preparation),
        batch["features"],
        batch["target"],
        seed,
    )


def by_name(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return {row["name"]: row[key] for row in rows}


@pytest.fixture
def no_shap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the shap library, which takes seconds to import, were not installed."""

    def require(module: str, extra: str) -> Any:
        raise MissingExtraError(f"{module} is not installed: {install_hint(extra)}")

    monkeypatch.setattr(explanation, "require", require)


@pytest.mark.usefixtures("no_shap")
class TestWithoutShap:
    def test_what_the_model_does_not_read_has_no_importance(self):
        x = numbers()
        bundle = regression(x, 3 * x[:, 0] + x[:, 1], ("a", "b", "c", "d"))
        made = explain(Model(predictor(lambda x: 3 * x[:, 0] + x[:, 1])), bundle, "val_rmse", 1)
        found = by_name(made["permutation"]["features"], "mean")
        assert list(found)[:2] == ["a", "b"]
        assert found["a"] > 2.5 * found["b"] > 0
        assert found["c"] == found["d"] == 0
        assert made["permutation"]["baseline"] == 0
        assert made["permutation"] | {"features": 0} == {
            "metric": "rmse",
            "mode": "min",
            "baseline": 0.0,
            "rows": ROWS,
            "repeats": 5,
            "features": 0,
        }
        assert [note for note in made["notes"] if "pip install 'shap" in note] == made["notes"]
        assert made["shap"] is None

    def test_of_a_metric_where_more_is_better_the_drop_counts(self):
        x = numbers()
        made = explain(
            Model(predictor(lambda x: np.stack([x[:, 0] < 0, x[:, 0] >= 0], axis=1), "classification")),
            classification(x, x[:, 0] >= 0),
            "accuracy",
            1,
        )
        found = by_name(made["permutation"]["features"], "mean")
        assert found["feature 0"] == pytest.approx(0.5, abs=0.1)
        assert made["permutation"]["mode"] == "max"

    def test_it_is_the_same_each_time_and_draws_from_the_seed(self):
        x = numbers(1500)
        bundle = regression(x, x[:, 0])
        made = [
            explain(Model(predictor(lambda x: x[:, 0] * x[:, 1])), bundle, "loss", seed) for seed in (1, 1, 2)
        ]
        assert made[0] == made[1] != made[2]
        assert made[0]["rows"] == 1000

    def test_json_holds_it(self):
        x = numbers()
        measures = {"gain": np.array([1.0, np.nan, np.inf, 0.0])}
        made = explain(Model(predictor(lambda x: x[:, 0]), None, measures), regression(x, x[:, 0]), "loss", 1)
        assert json.loads(json.dumps(made, allow_nan=False)) == made

    def test_the_librarys_own_measures(self):
        x = numbers()
        measures = {"gain": np.array([1.0, 4.0, -9.0, 0.0]), "broken": np.zeros(3)}
        made = explain(Model(predictor(lambda x: x[:, 0]), None, measures), regression(x, x[:, 0]), "loss", 1)
        (gain,) = made["importance"]
        assert gain["kind"] == "gain"
        assert by_name(gain["features"], "value") == {
            "feature 2": -9.0,
            "feature 1": 4.0,
            "feature 0": 1.0,
            "feature 3": 0.0,
        }
        assert "broken: the library gave shape (3,) for 4 features" in made["notes"]

    def test_images_and_sequences_have_a_note(self):
        pixels = np.zeros((10, 1, 4, 4), np.float32)
        made = explain(Model(predictor(lambda x: x[:, 0, 0, 0])), regression(pixels, np.zeros(10)), "loss", 1)
        assert made["permutation"] is None
        assert "shape (1, 4, 4)" in made["notes"][0]

    def test_the_split_is_the_test_else_the_validation_else_the_training(self):
        x, model = numbers(), Model(predictor(lambda x: x[:, 0]))
        rows = Arrays({"features": x, "target": x[:, 0]})
        info = regression(x, x[:, 0]).info
        assert explain(model, DataBundle(info, {"train": rows, "val": rows}), "loss", 1)["split"] == "val"
        made = explain(
            model,
            DataBundle(info, {"train": rows, "val": Arrays({"features": x[:0], "target": x[:0, 0]})}),
            "loss",
            1,
        )
        assert made["split"] == "train"
        assert "training rows" in made["notes"][0]

    def test_a_metric_that_is_not_defined_here_gives_way_to_the_loss(self):
        x = numbers()
        bundle = classification(np.vstack([x, x]), np.zeros(2 * ROWS))
        bundle = DataBundle(DataInfo("classification", features_spec((4,)), 2, ["a", "b"]), bundle.splits)
        made = explain(
            Model(predictor(lambda x: np.full((len(x), 2), 0.5), "classification")), bundle, "val_roc_auc", 1
        )
        assert made["permutation"]["metric"] == "loss"
        assert any("roc_auc is not defined" in note for note in made["notes"])

    def test_a_metric_of_another_task_is_refused(self):
        x = numbers()
        with pytest.raises(InputError, match="f1"):
            explain(Model(predictor(lambda x: x[:, 0])), regression(x, x[:, 0]), "val_f1", 1)

    def test_outputs_that_are_not_finite_are_not_explained(self):
        x = numbers()
        made = explain(Model(predictor(lambda x: np.full(len(x), np.nan))), regression(x, x[:, 0]), "loss", 1)
        assert made["permutation"] is None
        assert "not finite" in made["notes"][0]

    def test_what_the_model_raises_passes_through(self):
        def stop(features: np.ndarray) -> np.ndarray:
            raise KeyboardInterrupt

        x = numbers()
        with pytest.raises(KeyboardInterrupt):
            explain(Model(predictor(stop)), regression(x, x[:, 0]), "loss", 1)

    def test_the_model_predicts_no_more_rows_than_promised(self):
        seen = []

        def model(features: np.ndarray) -> np.ndarray:
            seen.append(len(features))
            return features[:, 0]

        x = numbers(1200, 30)
        explain(Model(predictor(model)), regression(x, x[:, 0]), "loss", 1)
        assert sum(seen) <= 1000 * (2 + 5 * 30) + 60_000

    def test_of_very_many_columns_the_most_important_are_shuffled(self):
        x = numbers(120, 1100)
        gain = np.zeros(1100)
        gain[1007] = 1.0
        model = Model(predictor(lambda x: x[:, 1007]), None, {"gain": gain})
        made = explain(model, regression(x, x[:, 1007]), "loss", 1)
        assert len(made["permutation"]["features"]) == 100
        assert made["permutation"]["features"][0]["name"] == "feature 1007"
        assert any("only 100 of the" in note for note in made["notes"])
        nothing = explain(Model(predictor(lambda x: x[:, 1007])), regression(x, x[:, 1007]), "loss", 1)
        assert nothing["permutation"] is None
        assert nothing["dependence"] == []

    def test_several_values_and_many_classes(self):
        x = numbers()
        made = explain(Model(predictor(lambda x: x[:, :3])), regression(x, x[:, :3]), "loss", 1)
        assert [line["name"] for line in made["dependence"][0]["outputs"]] == [
            "price 0",
            "price 1",
            "price 2",
        ]
        shares = np.random.default_rng(0).dirichlet(np.ones(30), ROWS)
        bundle = classification(x, np.arange(ROWS) % 30)
        made = explain(Model(predictor(lambda x: shares[: len(x)], "classification")), bundle, "accuracy", 1)
        assert made["permutation"]["rows"] == ROWS


class TestPartialDependence:
    pytestmark = pytest.mark.usefixtures("no_shap")

    def test_it_equals_scikit_learns(self):
        x = np.random.default_rng(0).integers(0, 9, (ROWS, 3)).astype(np.float32)
        y = x[:, 0] * x[:, 1] + x[:, 2]
        model = RandomForestRegressor(20, random_state=0).fit(x, y)
        made = explain(Model(predictor(model.predict)), regression(x, y), "loss", 1)
        assert len(made["dependence"]) == 3
        for curve in made["dependence"]:
            column = int(curve["name"].removeprefix("feature "))
            own = inspection.partial_dependence(model, x, [column], kind="both", method="brute")
            (line,) = curve["outputs"]
            assert curve["grid"] == own["grid_values"][0].tolist()
            np.testing.assert_allclose(line["mean"], own["average"][0], rtol=1e-5)
            each = own["individual"][0]
            moved = each - each.mean(axis=1, keepdims=True) + each.mean()
            np.testing.assert_allclose(line["low"], np.quantile(moved, 0.1, axis=0), rtol=1e-4)
            np.testing.assert_allclose(line["high"], np.quantile(moved, 0.9, axis=0), rtol=1e-4)

    def test_probabilities_stay_within_0_and_1(self):
        """The rows' curves are moved to one mean, which takes them beyond these."""
        x = numbers()

        def positive(x: np.ndarray) -> np.ndarray:
            share = 1 / (1 + np.exp(-8 * (x[:, 0] + 2 * x[:, 1])))
            return np.stack([1 - share, share], axis=1)

        bundle = classification(x, (positive(x)[:, 1] > 0.5).astype(np.int64))
        made = explain(Model(predictor(positive, "classification")), bundle, "accuracy", 1)
        drawn = [
            line[end] for one in made["dependence"] for line in one["outputs"] for end in ("low", "high")
        ]
        assert min(map(min, drawn)) == 0
        assert max(map(max, drawn)) == 1

    def test_a_number_is_in_its_original_units(self):
        own = np.random.default_rng(0).uniform(1000, 2000, ROWS)
        preparation = TabularPreparation(
            [NumberColumn("income", 1500.0, 250.0)], Target("price", "regression")
        )
        x = preparation.features([{"income": value} for value in own])
        bundle = regression(x, own, ("income",))
        bundle = DataBundle(bundle.info, bundle.splits, preparation)
        (curve,) = explain(Model(predictor(lambda x: x[:, 0] * 250 + 1500)), bundle, "loss", 1)["dependence"]
        assert len(curve["grid"]) == 20
        assert min(own) <= curve["grid"][0] < 1050 < 1950 < curve["grid"][-1] <= max(own)
        np.testing.assert_allclose(curve["outputs"][0]["mean"], curve["grid"], rtol=1e-4)

    @pytest.mark.parametrize("standardize", [True, False])
    def test_a_time_is_shown_as_its_year(self, standardize):
        days = np.datetime64("2020-01-01") + np.arange(ROWS) * np.timedelta64(365 * 4 + 1, "D") // ROWS
        table = Table({"signup": days})
        config = DataConfig(standardize=standardize)
        preparation = fit(table, ["signup"], Target("price", "regression"), config)
        x = preparation.features(table)
        bundle = regression(x, x[:, 0].astype(np.float64))
        bundle = DataBundle(bundle.info, bundle.splits, preparation)
        made = explain(Model(predictor(lambda x: x[:, 0])), bundle, "loss", 1)
        assert [row["name"] for row in made["permutation"]["features"]] == ["signup"]
        (curve,) = made["dependence"]
        assert 2020 <= curve["grid"][0] < 2020.2 < 2023.8 < curve["grid"][-1] <= 2024

    def test_free_text_counts_as_one_column_without_a_curve(self):
        notes = np.array([["late parcel", "parcel ok", "late"][i % 3] for i in range(ROWS)], dtype=object)
        table = Table({"note": notes})
        preparation = fit(
            table, ["note"], Target("price", "regression"), DataConfig(), kinds={"note": ColumnKind("text")}
        )
        x = preparation.features(table)
        bundle = regression(x, x[:, 0].astype(np.float64))
        bundle = DataBundle(bundle.info, bundle.splits, preparation)
        made = explain(Model(predictor(lambda x: x[:, 0])), bundle, "loss", 1)
        assert [row["name"] for row in made["permutation"]["features"]] == ["note"]
        assert made["dependence"] == []

    @pytest.mark.parametrize(("onehot", "native"), [(True, False), (False, False), (False, True)])
    def test_a_category_has_names_and_its_columns_belong_together(self, onehot, native):
        kinds = np.random.default_rng(0).choice(["ape", "bee", "cat"], ROWS)
        column = CategoryColumn("kind", ["ape", "bee", "cat"], onehot=onehot, native=native)
        preparation = TabularPreparation([NumberColumn("size"), column], Target("price", "regression"))
        x = preparation.features([{"size": 1.0 + i % 7, "kind": kind} for i, kind in enumerate(kinds)])
        worth = {"ape": 1.0, "bee": 2.0, "cat": 5.0}

        def model(features: np.ndarray) -> np.ndarray:
            if onehot:
                assert (features[:, 1:].sum(axis=1) == 1).all(), "no row may be two animals, or none"
                return features[:, 1:] @ np.array([1.0, 2.0, 5.0])
            return np.array([1.0, 2.0, 5.0])[features[:, 1].astype(int)]

        bundle = regression(x, np.array([worth[kind] for kind in kinds]))
        gain = {"gain": np.array([1.0, 0.5, 1.0, 1.5])} if onehot else {}
        made = explain(
            Model(predictor(model), None, gain), DataBundle(bundle.info, bundle.splits, preparation), "r2", 1
        )
        curve = next(curve for curve in made["dependence"] if curve["name"] == "kind")
        assert (curve["kind"], curve["grid"]) == ("category", ["ape", "bee", "cat"])
        assert curve["outputs"][0]["mean"] == [1.0, 2.0, 5.0]
        assert [row["name"] for row in made["permutation"]["features"]] == ["kind", "size"]
        assert not onehot or by_name(made["importance"][0]["features"], "value") == {"kind": 3.0, "size": 1.0}

    def test_missing_values_and_columns_that_hold_one_value(self):
        x = numbers()
        x[::3, 0] = np.nan
        x[:, 1] = 7.0
        x[10:, 2] = 0.0
        made = explain(
            Model(predictor(lambda x: np.nan_to_num(x).sum(axis=1))), regression(x, x[:, 3]), "loss", 1
        )
        curves = by_name(made["dependence"], "grid")
        assert "feature 1" not in curves
        assert all(np.isfinite(np.array(grid)).all() for grid in curves.values())
        assert len(curves["feature 2"]) == 11


class TestPermutation:
    def test_it_agrees_with_scikit_learns(self):
        x = numbers(400, 3)
        y = x[:, 0] + 0.5 * x[:, 1] * x[:, 2]
        model = DecisionTreeRegressor(max_depth=6, random_state=0).fit(x[:200], y[:200])
        part = explained_model(predictor(model.predict), regression(x[200:], y[200:]))
        made = permutation_importance(part, "r2", part.columns, repeats=100)
        own = inspection.permutation_importance(
            model, x[200:], y[200:], scoring="r2", n_repeats=100, random_state=0
        )
        assert made is not None
        for row in made["features"]:
            column = int(row["name"].removeprefix("feature "))
            error = np.hypot(own.importances_std[column], row["std"]) / np.sqrt(100)
            assert abs(row["mean"] - own.importances_mean[column]) < 4 * error
            assert row["std"] == pytest.approx(own.importances_std[column], rel=0.3)

    def test_columns_of_many_features_get_fewer_rows(self, monkeypatch):
        monkeypatch.setattr("trainwright.evaluation.permutation.MAX_ROWS", 3000)
        x = numbers(400, 4)
        part = explained_model(predictor(lambda x: x[:, 0]), regression(x, x[:, 0]))
        made = permutation_importance(part, "loss", part.columns)
        assert made is not None
        assert made["rows"] == 150


@pytest.mark.slow
class TestShap:
    """Needs the shap library."""

    def explained(
        self, model: Model, bundle: DataBundle, **options: Any
    ) -> tuple[dict[str, Any], shapley.Shapley]:
        made = explain(model, bundle, "loss", 1)
        part = explained_model(model.predict, bundle)
        import shap

        found = shapley.shap_values(shap, part, model.native)
        assert made["shap"] is not None, made["notes"]
        assert found is not None
        json.dumps(made, allow_nan=False)
        return made["shap"], found

    def test_of_a_linear_model_they_are_known(self):
        x = numbers()
        model = LinearRegression().fit(x, x @ np.array([3.0, -1.0, 0.5, 0.0]))
        described, found = self.explained(Model(predictor(model.predict), model), regression(x, x[:, 0]))
        expected = (x[:200] - x[-100:].mean(axis=0)) * model.coef_
        np.testing.assert_allclose(found.values[:, :, 0], expected, atol=1e-5)
        assert (found.explainer, found.unit, found.background) == ("permutation", "value", 100)
        assert [row["name"] for row in described["features"]][:3] == ["feature 0", "feature 1", "feature 2"]
        assert [row["correlation"] for row in described["swarms"][0]["features"]][:3] == [1.0, -1.0, 1.0]
        assert described["features"][3]["mean"] == pytest.approx(0, abs=1e-5)

    def test_the_global_generator_of_numpy_is_left_alone(self):
        x = numbers(50)
        np.random.seed(7)
        before = np.random.get_state()[1].copy()
        self.explained(Model(predictor(lambda x: x[:, 0])), regression(x, x[:, 0]))
        assert (np.random.get_state()[1] == before).all()

    def test_sampled_ones_are_the_same_each_time(self):
        x = numbers(150)
        model = Model(predictor(lambda x: x[:, 0] * x[:, 1] * x[:, 2] + x[:, 3]))
        made = [explain(model, regression(x, x[:, 0]), "loss", seed)["shap"] for seed in (1, 1, 2)]
        assert made[0] == made[1] != made[2]

    @pytest.mark.parametrize("task", ["binary", "classes", "values"])
    @pytest.mark.parametrize("categories", [False, True])
    def test_of_xgboost_they_are_its_own(self, task, categories):
        xgboost = pytest.importorskip("xgboost")
        x = numbers(columns=3)
        x[:, 2] = np.random.default_rng(1).integers(0, 6, ROWS)
        x[::7, 0] = np.nan
        score = np.nan_to_num(x[:, 0]) + np.isin(x[:, 2], [1, 4])
        y = {"binary": score > 0.5, "classes": np.digitize(score, [0, 1]), "values": score}[task]
        objective = {"binary": "binary:logistic", "classes": "multi:softprob", "values": "reg:squarederror"}[
            task
        ]
        kinds = ["q", "q", "c" if categories else "q"]

        def matrix(features: np.ndarray, labels: Any = None) -> Any:
            return xgboost.DMatrix(features, labels, feature_types=kinds, enable_categorical=True)

        options = {"objective": objective, "seed": 1} | ({"num_class": 3} if task == "classes" else {})
        booster = xgboost.train(options, matrix(x, y), 10)

        def outputs(features: np.ndarray) -> np.ndarray:
            found = booster.predict(matrix(features))
            return np.stack([1 - found, found], axis=1) if task == "binary" else found

        bundle = regression(x, y) if task == "values" else classification(x, np.asarray(y, int))
        predict = predictor(outputs, "regression" if task == "values" else "classification")
        _, found = self.explained(Model(predict, booster), bundle)
        own = booster.predict(matrix(x[:200]), pred_contribs=True)
        own = own[:, :, :-1].transpose(0, 2, 1) if task == "classes" else own[:, :-1, None]
        np.testing.assert_allclose(found.values, own, atol=1e-5)
        assert found.explainer == "tree"
        assert found.unit == {"binary": "log-odds", "classes": "score", "values": "value"}[task]
        assert found.gap < 1e-5

    @pytest.mark.parametrize("classes", [2, 3])
    def test_of_lightgbm_they_are_its_own(self, classes):
        lightgbm = pytest.importorskip("lightgbm")
        x = numbers()
        y = np.digitize(x[:, 0], [0.0, 1.0][: classes - 1])
        options = {"objective": "binary"} if classes == 2 else {"objective": "multiclass", "num_class": 3}
        booster = lightgbm.train(options | {"verbose": -1, "num_threads": 1}, lightgbm.Dataset(x, y), 10)

        def outputs(features: np.ndarray) -> np.ndarray:
            found = booster.predict(features)
            return np.stack([1 - found, found], axis=1) if classes == 2 else found

        described, found = self.explained(
            Model(predictor(outputs, "classification"), booster), classification(x, y)
        )
        own = booster.predict(x[:200], pred_contrib=True)
        own = own.reshape(200, -1, 5)[:, :, :4].transpose(0, 2, 1)
        np.testing.assert_allclose(found.values, own, atol=1e-9)
        assert described["outputs"] == ["class 1"] if classes == 2 else ["class 0", "class 1", "class 2"]
        assert (
            len(described["features"][0]["by_output"])
            == len(described["swarms"])
            == (1 if classes == 2 else 3)
        )

    @pytest.mark.parametrize(
        ("kind", "size"),
        [(RandomForestClassifier, {"n_estimators": 10}), (HistGradientBoostingClassifier, {"max_iter": 10})],
    )
    def test_of_scikit_learns_trees(self, kind, size):
        x = numbers()
        y = (x[:, 0] + x[:, 1] > 0).astype(int)
        x[::5, 1] = np.nan
        model = kind(**size, random_state=0).fit(x, y)
        described, found = self.explained(
            Model(predictor(model.predict_proba, "classification"), model), classification(x, y)
        )
        assert found.explainer == "tree"
        assert found.unit == ("probability" if kind is RandomForestClassifier else "log-odds")
        assert found.gap < 1e-5
        assert {row["name"] for row in described["features"][:2]} == {"feature 0", "feature 1"}

    def test_trees_that_are_not_what_predicts_are_not_believed(self):
        x = numbers(24)
        y = x[:, 0]
        model = RandomForestRegressor(5, random_state=0).fit(x, y)
        _, found = self.explained(Model(predictor(lambda x: model.predict(x) * 2), model), regression(x, y))
        assert found.explainer == "permutation"
        assert found.gap < 1e-5

    def test_trees_beyond_the_bound_are_sampled(self, monkeypatch):
        monkeypatch.setattr(shapley, "MAX_TREE_WORK", 1000)
        x = numbers(24)
        model = RandomForestRegressor(5, random_state=0).fit(x, x[:, 0])
        _, found = self.explained(Model(predictor(model.predict), model), regression(x, x[:, 0]))
        assert found.explainer == "permutation"

    def test_the_features_of_one_column_are_switched_together(self):
        kinds = np.random.default_rng(0).choice(["ape", "bee", "cat"], ROWS)
        columns = [NumberColumn("size"), CategoryColumn("kind", ["ape", "bee", "cat"])]
        preparation = TabularPreparation(columns, Target("price", "regression"))
        x = preparation.features([{"size": i / ROWS, "kind": kind} for i, kind in enumerate(kinds)])

        def model(features: np.ndarray) -> np.ndarray:
            assert (features[:, 1:].sum(axis=1) == 1).all()
            return features[:, 0] + 10 * features[:, 3]

        bundle = regression(x, model(x))
        described, found = self.explained(
            Model(predictor(model)), DataBundle(bundle.info, bundle.splits, preparation)
        )
        assert found.values.shape == (200, 2, 1)
        assert [row["name"] for row in described["features"]] == ["kind", "size"]
        assert described["swarms"][0]["features"][0]["rank"] is None

    def test_many_columns_stay_within_the_bounds(self, monkeypatch):
        monkeypatch.setattr(shapley, "MAX_CELLS", 100_000)
        monkeypatch.setattr(shapley, "MAX_PREDICTED", 20_000)
        seen = []

        def model(features: np.ndarray) -> np.ndarray:
            seen.append(features.size)
            return features[:, 0]

        x = numbers(300, 60)
        part = explained_model(predictor(model), regression(x, x[:, 0]))
        import shap

        found = shapley.shap_values(shap, part, None)
        assert found is not None
        assert found.background == 100_000 // (121 * 60)
        assert len(found.values) == 20_000 // (121 * found.background)
        assert max(seen) <= 100_000
        assert (
            shapley.shap_values(
                shap, explained_model(predictor(model), regression(numbers(30, 1001), x[:30, 0])), None
            )
            is None
        )

    def test_of_many_classes_those_with_the_most_rows_are_explained(self):
        x = numbers(120)
        y = np.concatenate([np.arange(30), np.repeat(np.arange(5, 15), 9)])
        model = LogisticRegression().fit(x, y)
        described, found = self.explained(
            Model(predictor(model.predict_proba, "classification"), model), classification(x, y)
        )
        assert found.values.shape[2] == 20
        assert set(described["outputs"]) >= {f"class {i}" for i in range(5, 15)}
        assert len(described["swarms"]) == 4

    def test_values_that_are_equal_have_one_code(self):
        x = np.array([[1.0, np.nan], [1.0, np.nan], [2.0, 0.0]], np.float32)
        part = explained_model(predictor(lambda x: x[:, 0]), regression(x, x[:, 0]))
        coded = shapley._CodedSample(part)
        assert coded.codes[0, 0] == coded.codes[1, 0] != coded.codes[2, 0]
        assert coded.codes[0, 1] == coded.codes[1, 1] != coded.codes[2, 1]
        np.testing.assert_array_equal(coded.outputs(coded.codes)[:, 0], x[:, 0])

    def test_a_torch_run(self, tmp_path):
        config = {
            "experiment": {"name": "iris"},
            "data": {"type": "iris"},
            "model": {"type": "mlp"},
            "training": {"epochs": 30, "threads": 1, "learning_rate": 0.01},
        }
        run = trainwright.train(config, runs_dir=tmp_path)
        predictor = trainwright.load(run)
        split = predictor.load_data().splits["test"]
        bundle = DataBundle(predictor.info, {"test": split}, predictor._preparation)
        model = predictor.model
        made = explain(Model(model.predict, model.native, model.importance()), bundle, "accuracy", 0)
        assert made["shap"]["explainer"] == "permutation"
        assert made["shap"]["gap"] < 1e-5
        assert {row["name"] for row in made["shap"]["features"][:2]} == {
            "petal length (cm)",
            "petal width (cm)",
        }
        assert [line["name"] for line in made["dependence"][0]["outputs"]] == ["0", "1", "2"]
        assert 0.5 < made["dependence"][0]["grid"][-1] < 8


def test_sources_without_a_preparation():
    info = DataInfo("regression", features_spec((2,)), 1, feature_names=("a", "b"), categories=(0, 3))
    assert data_columns(info, None) == [Column("a", (0,)), Column("b", (1,), ("0", "1", "2"))]
    assert [column.name for column in data_columns(DataInfo("regression", features_spec((2,)), 1), None)] == [
        "feature 0",
        "feature 1",
    ]


def test_values_of_sources():
    x = np.array([[0, 1, 2.0], [0, 0, -1.0], [1, 0, np.nan]], np.float32)
    np.testing.assert_array_equal(Column("kind", (0, 1), ("a", "b"), onehot=True).values(x), [1, np.nan, 0])
    np.testing.assert_array_equal(Column("code", (2,), ("a", "b", "c")).values(x), [2, np.nan, np.nan])
    np.testing.assert_array_equal(Column("size", (2,), mean=10.0, scale=2.0).values(x), [14, 8, np.nan])
