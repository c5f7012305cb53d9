"""The layout in which LightGBM builds histograms: by columns or by rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any


def faster_layout(library: Any, dataset: Any, params: Mapping[str, Any]) -> str:
    """Return `row_wise` or `col_wise`, whichever LightGBM finds to be faster here.

    LightGBM times both when a booster is made, and only its log says which one it has taken. The layouts
    differ in the order of sums, and hence in the last bits of the trees.

    Args:
        library: The module `lightgbm`.
        dataset: The training rows as a constructed `lightgbm.Dataset`.
        params: The parameters of the training, without a layout.
    """
    messages = _Messages()
    library.register_logger(messages)
    try:
        library.Booster({**params, "verbosity": 1}, dataset)
    finally:
        library.register_logger(logging.getLogger("lightgbm"))
    return "row_wise" if "Auto-choosing row-wise" in messages.text else "col_wise"


class _Messages:
    """A logger that collects what LightGBM says."""

    def __init__(self) -> None:
        self.text = ""

    def info(self, message: str) -> None:
        """Collect a message; LightGBM requires this method."""
        self.text += message

    warning = info
