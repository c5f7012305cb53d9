"""Predict with a model that Trainwright exported to ONNX. It needs onnxruntime and NumPy, no Trainwright.

python model.onnx.reader.py predict rows.csv      # the predictions, as CSV
python model.onnx.reader.py verify [rows.csv]     # compares the model with its certificate
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from inputs to outputs, both arrays (rows, ...) by name."""
    # The bytes of the certified file: nothing beside it is read.
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]

    def predict(feeds: Arrays) -> dict[str, Any]:
        found = session.run(None, {name: np.asarray(one) for name, one in feeds.items()})
        return dict(zip(names, found, strict=True))

    return predict


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
