"""Predicted masks as PNG files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.images.preparation import images_at
from trainwright.errors import InputError
from trainwright.inference.written_tables import Written
from trainwright.require import require
from trainwright.types import Array

_HIGHEST = (1 << 16) - 1  # number that a pixel of a PNG file holds


def write_masks(frames: Iterable[Any], data: Path | str, output: Path) -> Written:
    """Write the masks of images into a folder; files of these names are replaced.

    Each is called as its image, or by the number of its row in an npz file, from 0.

    Args:
        frames: Data frames with the masks in the column `prediction`.
        data: The image, the folder of images, or the npz file of images that was predicted.
        output: The folder.

    Raises:
        InputError: These are no images in files, two have the same name, or the masks cannot be written.
    """
    places, written = _places(Path(data), output), 0
    try:
        for frame in frames:
            for mask, file in zip(frame["prediction"], places, strict=False):
                if mask is not None:  # of an image that cannot be read
                    _write(mask, file)
                    written += 1
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror or error}") from error
    return Written(written, ["prediction"])


def _places(root: Path, output: Path) -> Iterator[Path]:
    """Return the files of the masks, in the order of the images.

    Raises:
        InputError: These are no images in files, or two have the same name.
    """
    images, is_npz = images_at(root), root.suffix.lower() == ".npz"
    if (images is None and not is_npz) or output.suffix:
        what = f"{root} is neither" if images is None and not is_npz else f"{output} is not a folder"
        raise InputError(
            f"masks of an image, or of a folder of images, are written into a folder; {what} (from Python: "
            "trainwright.load(run).predict(images))"
        )
    if images is None:
        return (output / f"{row}.png" for row in itertools.count())
    files = [output / (image.relative_to(root) if root.is_dir() else image.name) for image in images]
    files = [file.with_suffix(".png") for file in files]
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise InputError(
            f"{twice} would be the mask of two images, whose names differ only in their "
            "endings; rename one of them"
        )
    return iter(files)


def _write(mask: Array, file: Path) -> None:
    if mask.min() < 0 or mask.max() > _HIGHEST:
        raise InputError(
            f"a mask holds class {mask.max()}, but a PNG file holds numbers from 0 to "
            f"{_HIGHEST}; get the masks as an array, from Python: trainwright.load(run).predict(images)"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    dtype = np.uint8 if mask.max() < 1 << 8 else np.uint16
    require("PIL.Image", "image").fromarray(mask.astype(dtype)).save(file)
