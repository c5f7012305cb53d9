"""Predict with a model that Trainwright exported for ExecuTorch. It needs executorch, torch and NumPy.

python FOLDER/reader.py predict rows.csv      # the predictions, as CSV
python FOLDER/reader.py verify [rows.csv]     # compares the model with its certificate
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.runtime import Runtime

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:  # noqa: ARG001
    """Return a function from arrays (rows, ...) by name to outputs (rows, ...)."""
    program = Runtime.get().load_program(folder / "model.pte")
    method = program.load_method("forward")

    def predict(feeds: Arrays) -> Any:
        whole = [torch.from_numpy(np.ascontiguousarray(one)) for one in feeds.values()]
        rows = [
            # It takes one row, and the next call overwrites the outputs.
            method.execute([one[i : i + 1] for one in whole])[0].clone().numpy()
            for i in range(len(whole[0]))
        ]
        return np.concatenate(rows)

    return predict


def open_artifact(path: Path) -> Model:
    """Return a function from raw columns or arrays to predictions."""
    return open_prepared(path, open_model)


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
