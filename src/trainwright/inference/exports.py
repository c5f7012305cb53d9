"""Exports of a model with the preparation of its rows: for MLflow, and beside a library's own file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.errors import InputError
from trainwright.inference.predictor import Predictor
from trainwright.inference.whole_files import write_whole
from trainwright.plugins import name_of_framework, task_for
from trainwright.storage.portable import write_portable
from trainwright.trackers.support.mlflow_model import write_model
from trainwright.types import FEATURES

_FORMAT = 1  # of the file of columns


def export_mlflow(predictor: Predictor, path: Path) -> Path:
    """Write a folder that MLflow loads and serves, with the preparation in it.

    Raises:
        InputError: The run was given its model as an object, or predictions need targets.
    """

    def write(made: Path) -> None:
        made.mkdir()
        write_portable(predictor.run, predictor.stored.folder, made / "run")
        write_model(made)

    write_whole(path, write)
    return path


def export_native(predictor: Predictor, path: Path) -> Path:
    """Write a model in its library's own format, and beside it `PATH.columns.json`.

    That file says how raw rows become features, and outputs become classes or values:
    `examples/predict_native.py` predicts from both, without Trainwright.

    Raises:
        InputError: The framework's models are not exported so, or the data set brought features instead of
            columns.
    """
    library, preparation = name_of_framework(predictor.framework), predictor.preparation
    exports = predictor.model.exports
    if not exports.has_columns:
        raise InputError(
            f"--format native is for models of CatBoost, LightGBM and XGBoost; export one of {library} "
            "together with its preparation with --format mlflow (of scikit-learn also sklearn)"
        )
    if not isinstance(preparation, TabularPreparation):
        raise InputError(
            f"run {predictor.run.id} was trained on arrays, which need no preparation: leave --format out"
        )
    if "prediction" not in task_for(predictor.info).columns(np.zeros((1, predictor.info.outputs))):
        raise InputError("--format native is for models of one target; use --format mlflow")
    ending = path.suffix.removeprefix(".")
    form = ending if ending in exports.formats else exports.formats[0]
    about = _about(predictor, preparation) | {"library": library, "format": form}
    write_whole(path, lambda made: predictor.model.export(made, form))
    text = json.dumps(about, indent=1, ensure_ascii=False)
    write_whole(columns_file(path), lambda made: made.write_bytes(text.encode()))
    return path


def columns_file(path: Path) -> Path:
    """Return the file beside an exported model that holds its preparation."""
    return path.with_name(f"{path.name}.columns.json")


def _about(predictor: Predictor, preparation: TabularPreparation) -> dict[str, Any]:
    info = predictor.info
    kinds = {column.name: preparation.kinds.get(column.name) for column in preparation.columns}
    return {
        "format_version": _FORMAT,
        "run_id": predictor.run.id,
        "target": info.target,
        "classes": None if info.classes is None else info.to_json()["classes"],
        "transform": info.target_transform,
        "offset": list(info.target_offset),
        "link": predictor.model.link,
        "features": list(preparation.feature_names),
        "categorical": [i for i, count in enumerate(info.categories) if count],
        "dtype": info.inputs[FEATURES].dtype,
        "missing_values": {name: list(kind.missing) for name, kind in kinds.items() if kind and kind.missing},
        "text_columns": [name for name in preparation.text_columns if name in kinds],
        "columns": [column.to_json() for column in preparation.columns],
        "lacks": lacks(kinds),
    }


def lacks(kinds: Mapping[str, ColumnKind | None]) -> list[str]:
    """Return a line for each column whose cells Trainwright reads in a way that the file does not hold."""
    advice: Mapping[str, Callable[[ColumnKind], str]] = {
        "number": lambda kind: f"numbers in text, with the decimal mark {kind.decimal!r}: give numbers",
        "boolean": lambda _: "yes and no in text: give True and False",
        "time": lambda kind: (
            f"numbers, read as times in {kind.unit}: give dates"
            if kind.unit
            else f"dates in text, read {kind.format or kind.order}: give dates, or text like 2026-01-31"
        ),
    }
    return [
        f"{name}: {advice[kind.kind](kind)}"
        for name, kind in kinds.items()
        if kind is not None and kind.kind in advice and (kind.given == "text" or kind.unit is not None)
    ]
