"""The exporters of formats that hold a model alone: its preparation is beside it, in a folder.

The folder has the model's files, `columns.json` (what was fitted to the raw columns, and what the outputs
mean), and `reader.py`, which applies that with NumPy and has the format's runtime call the model.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.exporters.base import Exporter, Input, class_axis, names_classes
from trainwright.exporters.certificates import columns
from trainwright.exporters.certificates.inputs import inputs_of, tokenizer_json
from trainwright.exporters.certificates.reader import TOKENIZER, beside
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.types import Array, DataInfo


class PreparedExporter(Exporter):
    """An exporter of folders; its runtime has an `open_model` for `columns.open_prepared`."""

    @abstractmethod
    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write the files of a model into a folder.

        Its outputs are probabilities, or values before the target's offset and transform are undone; where
        the library leaves a last step to its caller, `predictor.model.link` names that, and the reader does
        it.

        Raises:
            InputError: The format cannot hold this model; the message names the nearest one that can.
        """

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:  # noqa: ARG002
        """Write the folder; see `Exporter.write`."""
        path.mkdir()
        self.write_model(predictor, path)
        text = json.dumps(about(predictor) | {"needs": self.needs()}, indent=1, ensure_ascii=False)
        (path / "columns.json").write_text(text, encoding="utf-8")
        if (tokenizer := tokenizer_json(predictor)) is not None:
            beside(path, TOKENIZER).write_text(tokenizer, encoding="utf-8")

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the raw columns; images, tokens or arrays."""
        return inputs_of(predictor)

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the features of each column, and all features."""
        known = json.loads((path / "columns.json").read_text(encoding="utf-8"))
        if known["columns"] is None:
            return {}
        found = {
            f"column {column['name']}": columns.encoded_column(column, feeds[column["name"]])
            for column in known["columns"]
        }
        return {**found, "features": columns.features_of(known, feeds)}


def about(predictor: Predictor) -> dict[str, Any]:
    """Return the content of `columns.json`."""
    info, preparation = predictor.info, predictor.preparation
    table = preparation if isinstance(preparation, TabularPreparation) else None
    takes_frames = isinstance(preparation, RawPreparation)  # whose columns are the inputs
    return {
        "format_version": 1,
        "columns": None if table is None else [column.to_json() for column in table.columns],
        "dtype": None if table is None else table.dtype,
        "arrays": [] if takes_frames else list(predictor.model.input_names or info.inputs),
        "features": list(info.feature_names),
        "categories": list(info.categories),
        "image": _image(predictor),
        "gives": _gives(info),
        "axis": class_axis(info),
        "classes": info.to_json()["classes"] or list(range(info.outputs)),
        "link": predictor.model.link,
        "offset": list(info.target_offset),
        "transform": info.target_transform,
    }


def _image(predictor: Predictor) -> dict[str, Any] | None:
    """Return the name of the input of images, and how their colors are scaled; None: it takes none."""
    preparation = predictor.preparation
    if not isinstance(preparation, ImagePreparation):
        return None
    mean, std = preparation.scaling
    return {
        "name": preparation.column,
        "mean": None if mean is None else list(mean),
        "std": None if std is None else list(std),
    }


def _gives(info: DataInfo) -> str:
    """Return what outputs are: logits, masks, classes, probabilities or values."""
    task = task_for(info)
    if task.generates_text:
        return "logits"
    if names_classes(info):
        return "masks" if task.gives_masks else "classes"
    return "probabilities" if task.gives_probabilities else "values"
