"""Models in their libraries' own files predict what their runs predict, with the preparation beside them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import trainwright
from trainwright.errors import DifferentArtifactError, InputError, TrainingError
from trainwright.exporters.native import (
    KerasExporter,
    LibraryExporter,
    NativeExporter,
    SavedmodelExporter,
    SklearnExporter,
    SkopsExporter,
)
from trainwright.records.artifact import read_certificate
from trainwright.runs.run import Run
from trainwright.testing.exporter_suite import ExporterSuite

MEDIAN = {"data.impute": "median"}
KERAS = {"model": "keras_mlp", "training.batch_size": 32, **MEDIAN}


def change_columns(path: Path) -> None:
    """Change what the artifact does with a column: numbers are less by 10."""
    file = path / "columns.json"
    known = json.loads(file.read_text())
    for column in known["columns"]:
        if column["kind"] == "number":
            column["mean"] += 10 * column["scale"]
    file.write_text(json.dumps(known))


@pytest.mark.slow
class TestNative(ExporterSuite):
    exporter = NativeExporter
    form = "native"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "xgboost": {"data.encode": "category"},
        "lightgbm": {"data.encode": "target"},
        "catboost": {"data.encode": "category"},
        "cost": {"model": "lightgbm", "data.target": "income", "data.target_transform": "log1p"},
        "city": {"model": "xgboost", "data.target": "city", "data.missing_target": "drop"},
    }

    def damage(self, path: Path) -> None:
        change_columns(path)

    def test_the_certificate_has_the_version_of_the_library(
        self, artifact_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        for name in ("xgboost", "lightgbm", "catboost"):
            versions = read_certificate(artifact_of(name, tmp_path / name)).versions
            assert versions[name] == import_module(name).__version__
            assert set(versions) == {"trainwright", "numpy", name}

    def test_others_are_refused_with_the_formats_that_they_have(
        self, run_of: Callable[[str], Run], tmp_path: Path
    ) -> None:
        with pytest.raises(
            InputError, match="sklearn takes models of sklearn; one of xgboost can be exported"
        ):
            trainwright.export(run_of("xgboost"), tmp_path / "x", "sklearn")
        with pytest.raises(InputError, match=r"--format native writes a folder: name it without \.ubj"):
            trainwright.export(run_of("xgboost"), tmp_path / "x.ubj", "native")
        assert list(tmp_path.iterdir()) == []

    def test_the_librarys_own_file_alone(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        """It is the file of the folder that was compared, and what the library opens."""
        import xgboost

        run = run_of("xgboost")
        path = trainwright.export(run, tmp_path / "model.ubj")
        booster = xgboost.Booster(model_file=path)
        predictor = trainwright.load(run)
        assert booster.feature_names == list(predictor.info.feature_names)
        assert booster.num_boosted_rounds() == predictor.native.num_boosted_rounds()
        assert "1 file is equal" in trainwright.verify_certificate(path)
        with pytest.raises(InputError, match="does not say how rows become predictions"):
            trainwright.verify_certificate(path, "rows.csv")
        with pytest.raises(InputError, match=r"files of xgboost end in \.ubj or \.json"):
            trainwright.export(run, tmp_path / "model.txt")
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        with pytest.raises(DifferentArtifactError, match="its SHA-256 is not the certified one"):
            trainwright.verify_certificate(path)

    def test_a_library_that_cannot_write_its_model_ends_with_a_message(
        self, run_of: Callable[[str], Run], tmp_path: Path
    ) -> None:
        with pytest.raises(TrainingError, match="the export failed: "):
            NativeExporter().write_model(trainwright.load(run_of("lightgbm")), tmp_path / "nosuch")


class TestLibrary(ExporterSuite):
    exporter = LibraryExporter
    form = "library"
    takes_rows = False
    finds_damage = False
    models: ClassVar[dict[str, dict[str, Any]]] = {"xgboost": {}}

    def damage(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    @pytest.mark.parametrize("name", ["model.txt", "model.cbm", "model.json"])
    def test_the_suffix_says_the_format(
        self, name: str, tmp_path: Path, folder: Path, run_of: Callable[[str], Run]
    ) -> None:
        libraries = {"model.txt": "lightgbm", "model.cbm": "catboost", "model.json": "xgboost"}
        config = {"data": {"type": "csv", "path": "rows.csv", "target": "churn"}, "model": libraries[name]}
        overrides = ["training.max_steps=3", "training.threads=1", "data.encode=frequency"]
        run = trainwright.train(config, overrides, runs_dir=folder / "runs", quiet=True)
        path = trainwright.export(run, tmp_path / name)
        predictor = trainwright.load(run)
        features = predictor.preparation.features(predictor.files.read("rows.csv"))
        booster: Any
        if name == "model.txt":
            import lightgbm

            found = lightgbm.Booster(model_file=path).predict(features)
        elif name == "model.cbm":
            import catboost

            found = (
                catboost.CatBoost().load_model(path).predict(features, prediction_type="Probability")[:, 1]
            )
        else:
            import xgboost

            booster = xgboost.Booster(model_file=path)
            found = booster.predict(xgboost.DMatrix(features, feature_names=booster.feature_names))
        np.testing.assert_allclose(found, predictor.outputs("rows.csv")[:, 1], rtol=1e-5)

    def test_what_is_compared_is_what_is_kept(
        self, run_of: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = NativeExporter.write

        def wrong(exporter: Any, predictor: Any, path: Path, metadata: Any) -> None:
            write(exporter, predictor, path, metadata)
            change_columns(path)

        monkeypatch.setattr(LibraryExporter, "write", wrong)
        with pytest.raises(DifferentArtifactError, match=r"run .*; nothing was written"):
            trainwright.export(run_of("xgboost"), tmp_path / "model.ubj")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
class TestSklearn(ExporterSuite):
    exporter = SklearnExporter
    form = "sklearn"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "random_forest": MEDIAN,
        "hist_gradient_boosting": {},
        "ridge": {"model": "ridge", "data.target": "income", "data.target_transform": "log1p", **MEDIAN},
        "perceptron": {"model": "sklearn.linear_model:Perceptron", **MEDIAN},
    }

    def damage(self, path: Path) -> None:
        change_columns(path)

    def test_a_pipeline_takes_data_frames(
        self, run_of: Callable[[str], Run], tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        import pandas as pd

        for name in ("random_forest", "ridge"):
            with subtests.test(model=name):
                run = run_of(name)
                path = trainwright.export(run, tmp_path / name, "sklearn")
                pipeline = runpy.run_path(str(path / "reader.py"))["open_pipeline"](path)
                rows = pd.read_csv("rows.csv", parse_dates=["joined"])
                expected = trainwright.load(run).predict(rows)
                if name == "ridge":
                    np.testing.assert_allclose(pipeline.predict(rows), expected["prediction"], rtol=1e-6)
                    continue
                assert pipeline.predict(rows).tolist() == expected["prediction"].tolist()
                assert pipeline.classes_.tolist() == ["no", "yes"]
                chances = pipeline.predict_proba(rows)
                np.testing.assert_allclose(chances[:, 1], expected["probability_yes"], rtol=1e-6)
                with pytest.raises(TypeError, match="fitted already"):
                    pipeline.fit(rows, expected["prediction"])

    def test_other_types_are_not_opened(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        """`verify` opens files of others, too, whose types may do harm when they are made."""
        import skops.io

        from trainwright.exporters.native.estimators import open_estimator

        path = trainwright.export(run_of("random_forest"), tmp_path / "m", "sklearn")
        skops.io.dump(Path, path / "model.skops")
        with pytest.raises(SystemExit, match="types that are not scikit-learn's"):
            open_estimator(path)


class TestSkops(ExporterSuite):
    exporter = SkopsExporter
    form = "skops"
    takes_rows = False
    finds_damage = False
    models: ClassVar[dict[str, dict[str, Any]]] = {"random_forest": MEDIAN}

    def damage(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.services
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
class TestKeras(ExporterSuite):
    exporter = KerasExporter
    form = "keras"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "keras": KERAS,
        "cost": {**KERAS, "data.target": "income", "data.target_transform": "log1p"},
        "city": {**KERAS, "data.target": "city", "data.missing_target": "drop"},
    }

    def damage(self, path: Path) -> None:
        change_columns(path)


@pytest.mark.services
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
class TestSavedmodel(ExporterSuite):
    exporter = SavedmodelExporter
    form = "savedmodel"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "keras": KERAS,
        "cost": {**KERAS, "data.target": "income", "data.target_transform": "log1p"},
    }

    def damage(self, path: Path) -> None:
        change_columns(path)
