"""Predict with an archive for TorchServe that Trainwright exported, by its own handler, in JSON as served.

python ARCHIVE.reader.py predict rows.csv      # the predictions, as CSV
python ARCHIVE.reader.py verify [rows.csv]     # compares the archive with its certificate
"""

import atexit
import importlib.util
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from raw columns or arrays to predictions.

    Raises:
        ValueError: The archive has no handler.
    """
    folder = tempfile.mkdtemp(prefix="mar-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    spec = importlib.util.spec_from_file_location("handler", Path(folder, "handler.py"))
    if spec is None or spec.loader is None:
        raise ValueError("the archive has no handler")
    handler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(handler)
    context = SimpleNamespace(system_properties={"model_dir": folder})
    handler.handle(None, context)
    inputs = json.loads(Path(folder, "inputs.json").read_text(encoding="utf-8"))

    def predict(feeds: Arrays) -> dict[str, Any]:
        columns = {one["name"]: sent(one, feeds[one["name"]]) for one in inputs}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (found,) = handler.handle([{"body": json.dumps({"rows": rows}).encode()}], context)
        return {name: np.array([row[name] for row in found]) for name in found[0]}

    return predict


def sent(about: Any, values: Any) -> list[Any]:
    """Return an input as JSON has it."""
    if list(about["shape"]) != [1] or about["dtype"] not in ("float64", "int64", "string"):
        return list(np.asarray(values).tolist())
    flat = np.asarray(values)[:, 0]
    if about["dtype"] == "int64":
        times = flat.astype(np.int64).astype("datetime64[us]")
        return [None if np.isnat(time) else str(time) for time in times]
    if about["dtype"] == "float64":
        return [None if np.isnan(value) else value for value in flat.astype(np.float64).tolist()]
    return [None if value == "" else str(value) for value in flat.tolist()]


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
