"""Decode images to arrays of bytes, and change their size and geometry, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import NO_LABEL

Mode = Literal["rgb", "gray", "rgba"]
# (height, width, channels): uint8, or float32 from 0 to 1; of a mask, (height, width, 1) MASK: class indices.
Image = NDArray[Any]
MASK = np.int16  # its dtype tells a mask from an image

# The endings of image files.
ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
CHANNELS: dict[Mode, int] = {"rgb": 3, "gray": 1, "rgba": 4}
PILLOW_MODES: dict[Mode, str] = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}
# What files may hold, whatever their names: Pillow would start Ghostscript for an EPS file.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")
_TOGETHER = {3: "RGB", 4: "RGBA"}  # numbers of channels that Pillow resizes at once


class CorruptImageError(DataError):
    """An image that cannot be decoded."""


def pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    return require("PIL.Image", "image")


def opened(raw: bytes) -> Any:
    """Return an image of Pillow of the content of a file, if that is in one of the formats of images.

    Raises:
        OSError: The content is in none of these formats.
    """
    return pillow().open(io.BytesIO(raw), formats=_FORMATS)


def as_bytes(image: Any, mode: str) -> NDArray[np.uint8]:
    """Return the pixels of an image of Pillow in a mode of Pillow's, (height, width[, channels]) uint8.

    Of pixels of 16 bits the upper 8 count, in gray as Pillow has it in colors.

    Raises:
        DataError: Its pixels have 32 bits, and nothing says which of their values is white.
    """
    if image.mode.startswith("I;16"):
        image = pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(
            f"it has pixels of 32 bits (Pillow's mode {image.mode}), and nothing says which value is white; "
            "save it with 8 or 16 bits, or give arrays (data.type: npy or npz)"
        )
    return np.asarray(image if image.mode == mode else image.convert(mode))


def decode(raw: bytes, mode: Mode | None, name: str, advice: str = "remove or repair it") -> Image:
    """Return an image as (height, width, channels) uint8.

    Args:
        raw: The content of the file.
        mode: Its colors; others are converted. None: it is a mask, whose numbers are returned as they are,
            (height, width, 1).
        name: The image, for messages.
        advice: What to do if it is corrupt, for messages.

    Raises:
        CorruptImageError: It cannot be decoded to its end.
        DataError: Its pixels have 32 bits.
    """
    try:
        with opened(raw) as image:
            pixels = np.asarray(image) if mode is None else as_bytes(image, PILLOW_MODES[mode])
    except MemoryError:
        raise
    except DataError as error:  # the image is whole
        raise DataError(f"{name} cannot be used: {error}") from None
    except Exception as error:  # Pillow's decoders raise many kinds of errors
        text = str(error).replace(repr(error), "")
        what = f"it is not one of {', '.join(_FORMATS)}" if "cannot identify" in text else text
        raise CorruptImageError(
            f"{name} cannot be decoded: {what or type(error).__name__}; {advice}"
        ) from error
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return _numbers(pixels, name) if mode is None else pixels


def _numbers(pixels: Image, name: str) -> Image:
    """Return the numbers of a mask, (height, width, 1); a gray one may be saved in colors.

    Raises:
        DataError: It holds colors, or fractions.
    """
    colors = pixels[:, :, :3] if pixels.shape[2] > 2 else pixels[:, :, :1]
    if (colors != colors[:, :, :1]).any() or pixels.dtype.kind == "f":
        raise DataError(
            f"{name} is not a mask: its pixels are "
            f"{'fractions' if pixels.dtype.kind == 'f' else 'colors'}; save a whole number for each "
            "pixel, as a gray or palette PNG"
        )
    return colors[:, :, :1]


def is_mask(image: Image) -> bool:
    """Return whether the image is a mask, with one class index per pixel."""
    return image.dtype == MASK


def resized(image: Image, height: int, width: int, interpolation: str = "bilinear") -> Image:
    """Return an image in another size; where it shrinks, all its pixels count (antialiasing).

    A pixel of a mask is the nearest one.
    """
    if image.shape[:2] == (height, width):
        return image
    how = getattr(pillow().Resampling, "NEAREST" if is_mask(image) else interpolation.upper())
    return _by_pillow(image, lambda one: one.resize((width, height), how))


def transformed(image: Image, matrix: Sequence[float]) -> Image:
    """Return an image whose pixel (x, y) is that at (a x + b y + c, d x + e y + f); black outside.

    A pixel of a mask is the nearest one, and does not count outside.

    Args:
        image: The image.
        matrix: a to f, from the centre of the image.
    """
    a, b, c, d, e, f = matrix
    y, x = ((side - 1) / 2 for side in image.shape[:2])
    moved = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
    library = pillow()
    # Pillow counts from the corners of pixels, and the matrix from their middles.
    moved = (a, b, moved[2] + 0.5 - 0.5 * (a + b), d, e, moved[5] + 0.5 - 0.5 * (d + e))
    size, affine, how = image.shape[1::-1], library.Transform.AFFINE, library.Resampling
    if is_mask(image):
        return _by_pillow(
            image, lambda one: one.transform(size, affine, moved, how.NEAREST, fillcolor=NO_LABEL)
        )
    return _by_pillow(image, lambda one: one.transform(size, affine, moved, how.BILINEAR))


def _by_pillow(image: Image, change: Any) -> Image:
    """Apply a change to an image, all channels at once where Pillow can."""
    library, channels = pillow(), image.shape[2]
    image = np.ascontiguousarray(image)
    if is_mask(image):
        plane = library.fromarray(image[:, :, 0].astype(np.int32))
        return np.asarray(change(plane))[:, :, None].astype(MASK)
    if image.dtype == np.uint8 and channels in _TOGETHER:
        return np.asarray(change(library.fromarray(image)))
    planes = [np.ascontiguousarray(image[:, :, i]) for i in range(channels)]
    return np.stack([np.asarray(change(library.fromarray(plane))) for plane in planes], axis=2)
