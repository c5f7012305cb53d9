"""Decode what files hold, by their extensions: images, arrays, numbers, text."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from trainwright.datasets.images.pixels import as_bytes, opened
from trainwright.errors import DataError
from trainwright.types import Array

IMAGES = ("png", "jpg", "jpeg", "bmp", "gif", "pgm", "ppm", "tif", "tiff", "webp")
NUMBERS = ("cls", "cls2", "id", "inx", "index")
TEXTS = ("txt", "text", "transcript")
# As webdataset calls them: torch... has channels first, l is gray, 8 is uint8; others are float32, 0 to 1.
ImageForm = Literal["torchrgb", "torchrgb8", "torchl", "torchl8", "rgb", "rgb8", "l", "l8"]
Decoder = Callable[[bytes], Any]


def decoder_of(extension: str, images: ImageForm) -> Decoder:
    """Return the function that decodes files with an extension; of several (`seg.png`) the last one decides.

    Raises:
        DataError: There is none.
    """
    last = extension.rpartition(".")[2].lower()
    if last in IMAGES:
        return lambda data: decoded_image(data, images)
    if last in _OTHERS:
        return _OTHERS[last]
    raise DataError(
        f"files that end in .{last} are not decoded; there are {', '.join((*_OTHERS, *IMAGES))}; name the "
        "fields to read in data.features"
    )


def decoded_image(data: bytes, form: ImageForm) -> Array:
    """Return an image as an array: (channels, height, width) or (height, width, channels)."""
    image = opened(data)
    mode = "L" if form.removeprefix("torch").startswith("l") else "RGB"
    pixels: Array = as_bytes(image, mode)
    if form.startswith("torch"):
        pixels = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    return pixels if form.endswith("8") else pixels.astype(np.float32) / np.float32(255)


def _npy(data: bytes) -> Array:
    array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return array


_OTHERS: Mapping[str, Decoder] = {
    "npy": _npy,
    "json": json.loads,
    **dict.fromkeys(NUMBERS, int),
    **dict.fromkeys(TEXTS, bytes.decode),
}
