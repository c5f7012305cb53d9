"""Predict with a SavedModel of TensorFlow. It needs TensorFlow and NumPy, no Trainwright.

python reader.py predict rows.csv          # the predictions, as CSV
python reader.py verify [rows.csv]         # compares the model with its certificate
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_artifact(path: Path) -> Model:
    """Return a function from inputs to outputs, both arrays (rows, ...) by name."""
    return open_prepared(path, open_model)


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Return a function from features, (rows, features), to the model's outputs."""
    served: Any = tf.saved_model.load(str(folder / "model"))
    return lambda feeds: served.serve(feeds["features"]).numpy()


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
