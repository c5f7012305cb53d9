"""Predict with a model that Trainwright exported with AOTInductor. It needs torch and NumPy, no Trainwright.

python FOLDER/reader.py predict rows.csv      # the predictions, as CSV
python FOLDER/reader.py verify [rows.csv]     # compares the model with its certificate
"""

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainwright.exporters.certificates.columns import About, open_prepared
from trainwright.exporters.certificates.reader import Arrays, Model, main


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:
    """Return a function from arrays (rows, ...) by name to outputs (rows, ...).

    Raises:
        RuntimeError: The model was compiled for another machine.
    """
    check(about["needs"])
    module = torch._inductor.aoti_load_package(str(folder / "model.pt2"))

    def predict(feeds: Arrays) -> Any:
        given = [torch.from_numpy(np.ascontiguousarray(one)) for one in feeds.values()]
        with torch.no_grad():
            return module(*given).numpy()

    return predict


def check(needs: About) -> None:
    """Check that this machine can run a compiled model; else it could crash.

    Raises:
        RuntimeError: It cannot.
    """
    able = torch.cpu.get_capabilities()
    own = ".".join(torch.__version__.split(".")[:2])
    lacks = [name for name in needs["instructions"].split() if able.get(name) is not True]
    compiled = (
        f"this model was compiled for {needs['system']} on {needs['machine']} and torch {needs['torch']}"
    )
    advice = "export the run here, or with --format pt2"
    if (needs["system"], needs["machine"]) != (platform.system(), platform.machine()):
        raise RuntimeError(f"{compiled}; this is {platform.system()} on {platform.machine()}: {advice}")
    if own != needs["torch"]:
        raise RuntimeError(f"{compiled}; this is torch {own}: {advice}")
    if lacks:
        raise RuntimeError(
            f"{compiled}, with instructions that this CPU lacks ({', '.join(lacks)}): {advice}"
        )


def open_artifact(path: Path) -> Model:
    """Return a function from raw columns or arrays to predictions."""
    return open_prepared(path, open_model)


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
