"""Predict with a model in its library's own file. It needs that library and NumPy, no Trainwright.

python reader.py predict rows.csv          # the predictions, as CSV
python reader.py verify [rows.csv]         # compares the model with its certificate
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from inputs to outputs, both arrays (rows, ...) by name."""
    return open_prepared(path, open_model)


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:
    """Return a function from features, (rows, features), to the model's outputs."""
    (file,) = folder.glob("model.*")
    by_suffix: dict[str, Callable[[Path, About], Callable[[Arrays], Any]]] = {
        ".json": of_json,
        ".ubj": of_xgboost,
        ".txt": of_lightgbm,
        ".cbm": of_catboost,
        ".keras": of_keras,
    }
    return by_suffix[file.suffix](file, about)


def of_json(file: Path, about: About) -> Callable[[Arrays], Any]:
    """Open a model in JSON, of XGBoost or CatBoost."""
    is_xgboost = "learner" in json.loads(file.read_text(encoding="utf-8"))
    return of_xgboost(file, about) if is_xgboost else of_catboost(file, about)


def of_xgboost(file: Path, about: About) -> Callable[[Arrays], Any]:
    """Open a model of XGBoost."""
    import xgboost

    booster = xgboost.Booster(model_file=str(file))
    types = ["c" if count else "float" for count in about["categories"]] or None

    def predict(feeds: Arrays) -> Any:
        features = feeds["features"].reshape(len(feeds["features"]), -1)
        matrix = xgboost.DMatrix(
            features, feature_names=booster.feature_names, feature_types=types, enable_categorical=True
        )
        return booster.predict(matrix)

    return predict


def of_lightgbm(file: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Open a model of LightGBM."""
    import lightgbm

    booster = lightgbm.Booster(model_file=str(file))
    return lambda feeds: booster.predict(feeds["features"].reshape(len(feeds["features"]), -1))


def of_catboost(file: Path, about: About) -> Callable[[Arrays], Any]:
    """Open a model of CatBoost, whose categories are whole numbers."""
    import catboost
    import pandas as pd

    model = catboost.CatBoost().load_model(str(file), format=file.suffix[1:])
    coded = [i for i, count in enumerate(about["categories"]) if count]

    def predict(feeds: Arrays) -> Any:
        features = feeds["features"].reshape(len(feeds["features"]), -1)
        if coded:
            frame = pd.DataFrame(features, columns=model.feature_names_)
            for i in coded:
                codes = np.nan_to_num(features[:, i], nan=-1).astype(np.int64)
                frame[frame.columns[i]] = codes
            features = frame
        return model.predict(features, prediction_type="RawFormulaVal")

    return predict


def of_keras(file: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Open a model of Keras, whose outputs are predictions."""
    import keras

    model = keras.models.load_model(file, compile=False, safe_mode=True)
    return lambda feeds: keras.ops.convert_to_numpy(model(feeds["features"], training=False))


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
