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

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.exporters.base import Exporter, Input, inputs_of, names_classes
from trainwright.exporters.certificates import columns
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.types import Array


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

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the raw columns, or the arrays where the data set brought features."""
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
    gives = "classes" if names_classes(info) else "values"
    if gives == "values" and task_for(info).gives_probabilities:
        gives = "probabilities"
    return {
        "format_version": 1,
        "columns": None if table is None else [column.to_json() for column in table.columns],
        "dtype": None if table is None else table.dtype,
        "arrays": list(predictor.model.input_names or info.inputs),
        "features": list(info.feature_names),
        "categories": list(info.categories),
        "gives": gives,
        "classes": info.to_json()["classes"] or list(range(info.outputs)),
        "link": predictor.model.link,
        "offset": list(info.target_offset),
        "transform": info.target_transform,
    }
