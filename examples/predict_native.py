"""Predict on raw rows with an exported booster, without Trainwright: copy this file and change what you like.

    trainwright export last model.ubj --format native      # also writes model.ubj.columns.json
    python predict_native.py model.ubj new_rows.csv

It needs pandas and the model's own library (xgboost, lightgbm or catboost). `model.ubj.columns.json` says how
each column becomes features, and how the model's outputs become classes or values.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

CYCLES = {"month": (12, 1), "day": (31, 1), "weekday": (7, 0), "hour": (24, 0), "minute": (60, 0)}


def features(rows: pd.DataFrame, about: dict[str, Any]) -> Any:
    """Return the features of rows, (rows, features)."""
    blocks = [BLOCKS[column["kind"]](cells(rows, column, about), column) for column in about["columns"]]
    return np.concatenate(blocks, axis=1).astype(about["dtype"])


def cells(rows: pd.DataFrame, column: dict[str, Any], about: dict[str, Any]) -> Any:
    """Return a column without the values that mean a missing one."""
    values = rows[column["name"]].astype(object)
    return values.mask(values.isna() | values.isin(about["missing_values"].get(column["name"], [])), None)


def number(values: Any, column: dict[str, Any]) -> Any:
    """Return (value - mean) / scale, (rows, 1)."""
    numbers = pd.to_numeric(values).astype(float)
    numbers = numbers if column["fill"] is None else numbers.fillna(column["fill"])
    return ((numbers.to_numpy() - column["mean"]) / column["scale"])[:, None]


def positions(values: Any, column: dict[str, Any]) -> Any:
    """Return the position of each category, (rows,): -1 for one that training did not have, -2 for none."""
    texts = [text(value) if value is not None else column["fill"] for value in values]
    index = {category: i for i, category in enumerate(column["categories"])}
    return np.array([-2 if one is None else index.get(one, -1) for one in texts], dtype=int)


def text(value: Any) -> str:
    """Return a category as text; whole numbers have no decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def category(values: Any, column: dict[str, Any]) -> Any:
    """Return one feature for each category, or their codes."""
    codes = np.maximum(positions(values, column), -1)
    if column["onehot"]:
        return (codes[:, None] == np.arange(len(column["categories"]))).astype(float)
    return np.where((codes < 0) & column["native"], np.nan, codes)[:, None]


def frequency(values: Any, column: dict[str, Any]) -> Any:
    """Return the share of the training rows that have the category."""
    shares = np.array([*column["shares"], np.nan, 0.0])  # a missing one, and one that training did not have
    return ((shares[positions(values, column)] - column["mean"]) / column["scale"])[:, None]


def target(values: Any, column: dict[str, Any]) -> Any:
    """Return the mean targets of the category."""
    empty = np.full(len(column["priors"]), np.nan)
    means = np.array([*column["means"], empty, column["priors"]])
    return (means[positions(values, column)] - column["centers"]) / column["scales"]


def time(values: Any, column: dict[str, Any]) -> Any:
    """Return days since 1970, and the parts of the times."""
    times = pd.to_datetime(values.fillna(column["fill"]) if column["fill"] else values, utc=True)
    parts: dict[str, Any] = {
        "days": (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1),
        **{part: getattr(times.dt, part) for part in ("year", "month", "day", "weekday", "hour", "minute")},
    }
    for part, (period, first) in CYCLES.items():
        angles = 2 * math.pi * (parts[part] - first) / period
        parts |= {f"{part}_sin": np.sin(angles).round(12), f"{part}_cos": np.cos(angles).round(12)}
    own = np.column_stack([np.asarray(parts[part], dtype=float) for part in column["parts"]])
    return (own - column["means"]) / column["scales"]


def words(values: Any, column: dict[str, Any]) -> Any:
    """Return the TF-IDF weights of the words."""
    out = np.zeros((len(values), len(column["words"])))
    index = {word: i for i, word in enumerate(column["words"])}
    for row, value in enumerate(values):
        for word, count in Counter(re.findall(r"\w\w+", (value or "").lower())).items():
            if word in index:
                out[row, index[word]] = count * column["idf"][index[word]]
    return out / np.maximum(np.sqrt((out**2).sum(axis=1, keepdims=True)), 1e-300)


BLOCKS = {
    "number": number,
    "category": category,
    "frequency": frequency,
    "target": target,
    "time": time,
    "text": words,
}


def outputs(path: str, array: Any, about: dict[str, Any]) -> Any:
    """Return what the model's library predicts for features."""
    library = {"xgboost": of_xgboost, "lightgbm": of_lightgbm, "catboost": of_catboost}[about["library"]]
    values = linked(np.asarray(library(path, array, about), dtype=float), about["link"])
    several = about["classes"] is not None and values.ndim == 2
    return values / values.sum(axis=1, keepdims=True) if several else values


def of_xgboost(path: str, array: Any, about: dict[str, Any]) -> Any:
    """Predict with XGBoost."""
    import xgboost

    booster = xgboost.Booster(model_file=path)
    matrix = xgboost.DMatrix(
        array,
        feature_names=booster.feature_names,
        feature_types=["c" if i in about["categorical"] else "float" for i in range(array.shape[1])],
        enable_categorical=True,
    )
    return booster.predict(matrix)


def of_lightgbm(path: str, array: Any, about: dict[str, Any]) -> Any:  # noqa: ARG001
    """Predict with LightGBM."""
    import lightgbm

    return lightgbm.Booster(model_file=path).predict(array)


def of_catboost(path: str, array: Any, about: dict[str, Any]) -> Any:
    """Predict with CatBoost, whose categories are whole numbers."""
    import catboost

    model = catboost.CatBoost().load_model(path, format=about["format"])
    frame = pd.DataFrame(array, columns=model.feature_names_)
    for i in about["categorical"]:
        frame[frame.columns[i]] = frame.iloc[:, i].fillna(-1).astype(int)
    return model.predict(frame, prediction_type="RawFormulaVal")


def linked(raw: Any, link: str) -> Any:
    """Return the outputs for what the library returns, where that leaves the last step to its caller."""
    if link == "softmax":
        raised = np.exp(raw - raw.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)
    links: dict[str, Any] = {
        "identity": lambda x: x,
        "exp": np.exp,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    }
    return links[link](raw)


def in_original_units(values: Any, transform: dict[str, Any] | None) -> Any:
    """Return values in the target's original units, if the model was trained on transformed ones."""
    if transform is None:
        return values
    formulas: dict[str, Any] = {
        "log1p": np.expm1,
        "log": np.exp,
        "sqrt": lambda x: np.square(np.maximum(x, 0)),
    }
    if transform["kind"] in formulas:
        return formulas[transform["kind"]](values)
    columns = [
        column * fitted["scale"] + fitted["mean"]
        if "scale" in fitted
        else np.interp(column, fitted["scores"], fitted["values"])
        for column, fitted in zip(values.reshape(len(values), -1).T, transform["columns"], strict=True)
    ]
    return np.stack(columns, axis=1).reshape(values.shape)


def predict(path: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions for raw rows, with the probability of each class."""
    with open(f"{path}.columns.json", encoding="utf-8") as file:
        about = json.load(file)
    values = outputs(path, features(rows, about), about)
    if about["classes"] is None:
        values = np.asarray(values, dtype=float) + sum(about["offset"])  # which training subtracted
        return pd.DataFrame({"prediction": in_original_units(values, about["transform"])})
    values = np.column_stack([1 - values, values]) if values.ndim == 1 else values
    probabilities = {f"probability_{label}": values[:, i] for i, label in enumerate(about["classes"])}
    chosen = [about["classes"][i] for i in values.argmax(axis=1)]
    return pd.DataFrame({"prediction": chosen, **probabilities})


if __name__ == "__main__":
    model_file, rows_file = sys.argv[1:]
    with open(f"{model_file}.columns.json", encoding="utf-8") as opened:
        as_text = dict.fromkeys(json.load(opened)["text_columns"], str)
    predict(model_file, pd.read_csv(rows_file, dtype=as_text)).to_csv(sys.stdout, index=False)
