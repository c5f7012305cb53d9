"""Predict with a model that Trainwright exported for LiteRT. It needs ai-edge-litert and NumPy.

python FOLDER/reader.py predict rows.csv      # the predictions, as CSV
python FOLDER/reader.py verify [rows.csv]     # compares the model with its certificate
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Return a function from arrays (rows, ...) by name to outputs (rows, ...)."""
    call = Interpreter(str(folder / "model.tflite"), num_threads=1).get_signature_runner()
    # The converter names the inputs `args_0`, `args_1`, ..., in order.
    names = sorted(call.get_input_details(), key=lambda name: int(name.rsplit("_", 1)[1]))

    def predict(feeds: Arrays) -> Any:
        whole = [np.ascontiguousarray(one) for one in feeds.values()]
        rows = [  # it takes one row
            next(
                iter(call(**{name: one[i : i + 1] for name, one in zip(names, whole, strict=True)}).values())
            )
            for i in range(len(whole[0]))
        ]
        return np.concatenate(rows)

    return predict


def open_artifact(path: Path) -> Model:
    """Return a function from raw columns or arrays to predictions."""
    return open_prepared(path, open_model)


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
