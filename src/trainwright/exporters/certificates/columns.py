"""Turn raw columns into features, and a model's outputs into predictions, with NumPy alone.

An export puts this module into the reader of an artifact whose model takes features; `columns.json` beside it
says what was fitted. So it imports nothing of Trainwright.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.exporters.certificates.reader import Arrays, Model

About = Mapping[str, Any]  # the content of columns.json, or of one of its columns
_COLUMNS_FORMAT = 1
_DAY = 86_400_000_000  # microseconds
_CYCLES = {"month": 12, "day": 31, "weekday": 7, "hour": 24, "minute": 60}
_FIRST = {"month": 1, "day": 1}
_MISSING_TIME = np.datetime64("NaT", "us")
_WORD = re.compile(r"\w\w+")


def open_prepared(folder: Path, open_model: Callable[[Path, About], Callable[[Arrays], Any]]) -> Model:
    """Return a function from raw columns, (rows, 1) by name, or arrays, to predictions.

    Args:
        folder: The artifact.
        open_model: Opens the model in it, a function from `features` (rows, features) or from arrays by name
            to outputs (rows, ...).
    """
    about = read_columns(folder)
    model = open_model(folder, about)

    def predict(feeds: Arrays) -> dict[str, Any]:
        given: Arrays
        if about["image"] is not None:
            given = {"features": scaled(about["image"], feeds[about["image"]["name"]])}
        elif about["columns"] is None:
            given = {name: feeds[name] for name in about["arrays"]} or feeds
        else:
            given = {"features": features_of(about, feeds)}
        return predictions_of(about, np.asarray(model(given)))

    return predict


def read_columns(folder: Path) -> About:
    """Return the content of `columns.json`.

    Raises:
        ValueError: It has a format that this reader does not know.
    """
    about: About = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    if about["format_version"] != _COLUMNS_FORMAT:
        raise ValueError(
            f"{folder / 'columns.json'} has format {about['format_version']}, and this reader reads "
            f"{_COLUMNS_FORMAT}: use that of the artifact"
        )
    return about


def scaled(image: About, pixels: Any) -> Any:
    """Return images (rows, height, width, channels) uint8 as (rows, channels, height, width) float32."""
    floats = pixels.astype(np.float32).transpose(0, 3, 1, 2) / np.float32(255)
    if image["mean"] is None:
        return floats
    mean, std = (np.array(image[name], np.float32)[:, None, None] for name in ("mean", "std"))
    return (floats - mean) / std


def features_of(about: About, feeds: Arrays) -> Any:
    """Return the features of raw columns, (rows, features).

    Raises:
        ValueError: A value is missing where training had none.
    """
    blocks = [encoded_column(column, feeds[column["name"]]) for column in about["columns"]]
    return np.concatenate(blocks, axis=1).astype(about["dtype"])


def encoded_column(column: About, cells: Any) -> Any:
    """Return the features of one raw column, (rows, 1), as (rows, features) float64; see `features_of`."""
    encoders: Mapping[str, Callable[[Any, About], Any]] = {
        "number": _number,
        "category": _category,
        "frequency": _frequency,
        "target": _target_mean,
        "time": _time,
        "text": _words,
    }
    return encoders[column["kind"]](np.asarray(cells)[:, 0], column)


def _number(values: Any, column: About) -> Any:
    """Return (value - mean) / scale."""
    numbers = _filled(values.astype(np.float64), np.isnan, column, column["fill"])
    return ((numbers - column["mean"]) / column["scale"])[:, None]


def _filled(values: Any, is_missing: Callable[[Any], Any], column: About, fill: Any) -> Any:
    """Return values with missing ones replaced."""
    absent = is_missing(values)
    if not absent.any() or (fill is None and column["keep"]):
        return values
    if fill is None:
        row = int(np.flatnonzero(absent)[0])
        raise ValueError(
            f"column {column['name']!r} has no value in row {row}; the model was trained without missing "
            "values: fill them"
        )
    return np.where(absent, fill, values)


def _positions(values: Any, column: About) -> Any:
    """Return the index of the category of each cell, (rows,): -1 of an unseen one, -2 of a missing one."""
    index = {category: i for i, category in enumerate(column["categories"])}
    if "" not in index:
        values = _filled(values, lambda cells: np.asarray(cells == ""), column, column["fill"])
        index[""] = -2
    return np.array([index.get(str(value), -1) for value in values], dtype=np.int64)


def _category(values: Any, column: About) -> Any:
    """Return one feature for each category, or their codes."""
    codes = np.maximum(_positions(values, column), -1)
    if column["onehot"]:
        return (codes[:, None] == np.arange(len(column["categories"]))).astype(np.float64)
    return np.where((codes < 0) & column["native"], np.nan, codes.astype(np.float64))[:, None]


def _frequency(values: Any, column: About) -> Any:
    """Return the share of the training rows that have the category."""
    shares = np.array([*column["shares"], np.nan, 0.0])
    return ((shares[_positions(values, column)] - column["mean"]) / column["scale"])[:, None]


def _target_mean(values: Any, column: About) -> Any:
    """Return the mean targets of the category."""
    missing = [math.nan] * len(column["priors"])
    means = np.array([*column["means"], missing, column["priors"]])
    return (means[_positions(values, column)] - column["centers"]) / column["scales"]


def _time(values: Any, column: About) -> Any:
    """Return days since 1970, and the parts of times in microseconds since 1970."""
    times = values.astype(np.int64).astype("datetime64[us]")
    fill = None if column["fill"] is None else np.datetime64(column["fill"], "us")
    times = _filled(times, np.isnat, column, fill)
    absent = np.isnat(times)
    times = np.where(absent, np.datetime64(0, "us"), times)
    parts = np.stack([_part(times, name) for name in column["parts"]], axis=1)
    return np.where(absent[:, None], np.nan, (parts - column["means"]) / column["scales"])


def _part(times: Any, name: str) -> Any:
    """Return a part of times, (rows,) float64."""
    part, _, wave = name.partition("_")
    if wave:
        # The last digits of a sine differ between machines.
        angles = [2 * math.pi * i / _CYCLES[part] for i in range(_CYCLES[part])]
        waves = np.array([round(getattr(math, wave)(angle), 12) for angle in angles])
        return waves[_part(times, part).astype(np.int64) - _FIRST.get(part, 0)]
    if name == "days":
        return times.astype(np.int64) / _DAY
    months, days = times.astype("datetime64[M]"), times.astype("datetime64[D]")
    whole: Mapping[str, Callable[[], Any]] = {
        "year": lambda: months.astype("datetime64[Y]").astype(np.int64) + 1970,
        "month": lambda: months.astype(np.int64) % 12 + 1,
        "day": lambda: (days - months.astype("datetime64[D]")).astype(np.int64) + 1,
        "weekday": lambda: (days.astype(np.int64) + 3) % 7,  # 1970-01-01 was a Thursday
        "hour": lambda: times.astype("datetime64[h]").astype(np.int64) % 24,
        "minute": lambda: times.astype("datetime64[m]").astype(np.int64) % 60,
    }
    return whole[name]().astype(np.float64)


def _words(values: Any, column: About) -> Any:
    """Return the TF-IDF weights of the words, of length 1."""
    if not column["fills"]:
        _filled(values, lambda cells: np.asarray(cells == ""), {**column, "keep": False}, None)
    index = {word: i for i, word in enumerate(column["words"])}
    out = np.zeros((len(values), len(index)))
    for row, value in enumerate(values):
        found = (index[word] for word in _WORD.findall(str(value).lower()) if word in index)
        for word, count in Counter(found).items():
            out[row, word] = count * column["idf"][word]
    lengths = np.sqrt((out**2).sum(axis=1, keepdims=True))
    return np.divide(out, lengths, out=np.zeros_like(out), where=lengths > 0)


def predictions_of(about: About, outputs: Any) -> dict[str, Any]:
    """Return predictions for a model's outputs, (rows,) or (rows, outputs, ...).

    They are `label` (rows,) and `probabilities` (rows, classes), of tokens (rows, length) and (rows, length,
    classes); `mask` (rows, height, width) and `probabilities` (rows, classes, height, width); `probabilities`
    (rows, labels); `prediction` (rows, targets) in the target's unit; or the `logits` of tokens.
    """
    if about["gives"] == "logits":
        return {"logits": outputs.astype(np.float32)}
    values = _linked(outputs, about["link"])
    if about["gives"] == "values":
        wide = values.reshape(len(values), -1).astype(np.float64) + np.asarray(about["offset"] or 0.0)
        return {"prediction": _restored(wide, about["transform"])}
    if about["gives"] == "classes" and (values.ndim == 1 or values.shape[1] == 1):
        values = np.column_stack([1 - values, values])  # of the second of two classes
    probabilities = values.astype(np.float32)
    if about["gives"] == "probabilities":
        return {"probabilities": probabilities}
    chosen = probabilities.argmax(axis=about["axis"])
    if about["gives"] == "masks":
        numbers = [one if isinstance(one, int) else i for i, one in enumerate(about["classes"])]
        return {"mask": np.array(numbers, np.int64)[chosen], "probabilities": probabilities}
    labels = np.array(about["classes"])
    labels = labels.astype(object) if labels.dtype.kind == "U" else labels
    return {"label": labels[chosen], "probabilities": probabilities}


def _linked(values: Any, link: str) -> Any:
    """Return outputs after the last step of a model, where its library leaves that to its caller."""
    with np.errstate(over="ignore"):
        if link == "softmax":
            raised = np.exp(values - values.max(axis=1, keepdims=True))
            return raised / raised.sum(axis=1, keepdims=True)
        if link == "sigmoid":
            return 1 / (1 + np.exp(-values))
        return np.exp(values) if link == "exp" else values


def _restored(values: Any, transform: About | None) -> Any:
    """Return values, (rows, targets) float64, in the target's original units."""
    if transform is None:
        return values
    formulas: Mapping[str, Callable[[Any], Any]] = {
        "log1p": np.expm1,
        "log": np.exp,
        "sqrt": lambda roots: np.square(np.maximum(roots, 0)),
    }
    if transform["kind"] in formulas:
        with np.errstate(over="ignore"):
            return formulas[transform["kind"]](values)
    columns: Sequence[Any] = [
        column * fitted["scale"] + fitted["mean"]
        if "scale" in fitted
        else np.interp(column, fitted["scores"], fitted["values"])
        for column, fitted in zip(values.T, transform["columns"], strict=True)
    ]
    return np.stack(columns, axis=1)
