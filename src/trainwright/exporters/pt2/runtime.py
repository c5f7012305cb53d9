"""Predict with a model that Trainwright exported with torch.export. It needs torch and NumPy, no Trainwright.

python FOLDER/reader.py predict rows.csv      # the predictions, as CSV
python FOLDER/reader.py verify [rows.csv]     # compares the model with its certificate
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Return a function from arrays (rows, ...) by name to outputs (rows, ...)."""
    module = torch.export.load(str(folder / "model.pt2")).module()

    def predict(feeds: Arrays) -> Any:
        given = [torch.from_numpy(np.ascontiguousarray(one)) for one in feeds.values()]
        with torch.no_grad():
            return module(*given).numpy()

    return predict


def open_artifact(path: Path) -> Model:
    """Return a function from raw columns or arrays to predictions."""
    return open_prepared(path, open_model)


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
