"""The unit of what a model returns without its preparation, which is not always that of the target."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from trainwright.types import DataInfo

log = logging.getLogger("trainwright")


def unit_of(info: DataInfo) -> dict[str, Any]:
    """Return the unit of the outputs of a model without what is around it, and how to convert them."""
    transform, unit = info.target_transform, info.target
    if transform is not None:
        unit = f"{transform['kind']} of {unit}"
    if info.target_offset:
        unit = f"{unit} less {', '.join(map(repr, info.target_offset))}"
    return {
        "name": "outputs",
        "unit": unit,
        "target_offset": list(info.target_offset),
        "target_transform": transform,
    }


def warn_of_unit(info: DataInfo, certificate: Path) -> None:
    """Warn where the outputs of a model without what is around it are not in the target's own unit."""
    if info.target_transform is not None or info.target_offset:
        log.warning(
            "the exported model returns the %s, as it was trained; %s has what turns that into the original "
            "units, as predict does",
            unit_of(info)["unit"],
            certificate.name,
        )
