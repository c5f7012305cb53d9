"""Predicted masks as PNG files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.errors import InputError
from trainyard.require import require
from trainyard.runs.prediction_files import Written, images_below
from trainyard.types import Array

_HIGHEST = (1 << 16) - 1  # number that a pixel of a PNG file holds


def write_masks(frames: Iterable[Any], data: Path | str, output: Path) -> Written:
    """Write the masks of images into a folder, each called as its image; files of these names are replaced.

    Args:
        frames: Data frames with the masks in the column `prediction`.
        data: The image, or the folder of images, that was predicted.
        output: The folder.

    Raises:
        InputError: These are no images in files, two have the same name, or the masks cannot be written.
    """
    root = Path(data)
    images = images_below(root)
    if images is None or output.suffix:
        what = f"{output} is no folder" if images is not None else f"{data} is neither"
        raise InputError(
            f"masks of an image, or of a folder of images, are written into a folder; {what} (from Python: "
            "trainyard.load(run).predict(images))"
        )
    files = [output / (image.relative_to(root) if root.is_dir() else image.name) for image in images]
    files = [file.with_suffix(".png") for file in files]
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise InputError(f"{twice} would be the mask of two images, which differ by their endings only")
    places = iter(files)
    try:
        for frame in frames:
            for mask, file in zip(frame["prediction"], places, strict=False):
                _write(mask, file)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror or error}") from error
    return Written(len(files), ["prediction"])


def _write(mask: Array, file: Path) -> None:
    if mask.min() < 0 or mask.max() > _HIGHEST:
        raise InputError(f"a class is {mask.max()}, and a PNG file holds numbers from 0 to {_HIGHEST}")
    file.parent.mkdir(parents=True, exist_ok=True)
    dtype = np.uint8 if mask.max() < 1 << 8 else np.uint16
    require("PIL.Image", "image").fromarray(mask.astype(dtype)).save(file)
