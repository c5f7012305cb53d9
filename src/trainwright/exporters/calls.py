"""Call a module of PyTorch with arrays of NumPy, in readers: it needs no Trainwright."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trainwright.exporters.certificates.reader import Arrays


def calling(module: Any) -> Callable[[Arrays], Any]:
    """Return a function that calls a module with arrays (rows, ...) by name, and returns its outputs."""

    def predict(feeds: Arrays) -> Any:
        given = [torch.from_numpy(np.ascontiguousarray(one)) for one in feeds.values()]
        with torch.no_grad():
            return module(*given).numpy()

    return predict
