"""Answer requests of TorchServe with a model that Trainwright exported. It needs torch and NumPy.

The body of a request is a row, {"age": 31, "city": null}, or {"rows": [...]} with several.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, column

_ISO = re.compile(r"\d{4}-\d\d-\d\d(T|$)")
_opened: dict[str, Any] = {}


def handle(data: Any, context: Any) -> list[Any]:
    """Return the predictions for each request of a batch; open the model first.

    Args:
        data: The requests; empty in the first call, which opens the model.
        context: TorchServe's, whose `system_properties` say where the archive's files are.
    """
    folder = str(context.system_properties["model_dir"])
    if folder not in _opened:
        inputs = json.loads(Path(folder, "inputs.json").read_text(encoding="utf-8"))
        _opened[folder] = open_prepared(Path(folder), open_model), inputs
    model, inputs = _opened[folder]
    answers: list[Any] = []
    for request in data or ():
        body = request.get("body") or request.get("data")
        given = json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body
        rows = given.get("rows", [given])
        outputs = model({one["name"]: cells(one, [row[one["name"]] for row in rows]) for one in inputs})
        found = [
            {name: np.asarray(values[i]).tolist() for name, values in outputs.items()}
            for i in range(len(rows))
        ]
        answers.append(found if "rows" in given else found[0])
    return answers


def cells(about: Mapping[str, Any], values: Sequence[Any]) -> Any:
    """Return values of JSON as an input, (rows, ...).

    Null is a missing value. A text is read as a cell of a table, or as a time in ISO 8601.
    """
    if about["dtype"] not in ("float64", "int64", "string") or list(about["shape"]) != [1]:
        return np.array(values, dtype=about["dtype"])
    return np.concatenate([cell(about, value) for value in values])


def cell(about: Mapping[str, Any], value: Any) -> Any:
    """Return a value as an input, (1, 1)."""
    if value is None:
        return column({**about, "reads": {}}, [""])
    if about["dtype"] == "float64" and not isinstance(value, str):
        return np.array([[float(value)]])
    if about["dtype"] == "int64" and _ISO.match(value):
        return column({**about, "reads": {}}, [value])
    return column(about, [str(value)])


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Return a function from arrays (rows, ...) by name to outputs (rows, ...)."""
    module = torch.jit.load(str(folder / "model.pt"))

    def predict(feeds: Arrays) -> Any:
        given = [torch.from_numpy(np.ascontiguousarray(one)) for one in feeds.values()]
        with torch.no_grad():
            return module(*given).numpy()

    return predict
