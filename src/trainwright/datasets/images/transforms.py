"""Transforms of images before a model sees them, as `data.transforms` lists them.

Each takes an image, (height, width, channels) uint8 or float32 from 0 to 1, and a generator that belongs to
this image in this epoch alone. So the result is a function of the seed, the epoch and the sample, whichever
process computes it. Without a generator, a transform does what it does in evaluation: random ones do nothing,
except for crops, which cut out the middle. All randomness comes from `Generator.random` and `beta`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainwright.config import transforms as sections
from trainwright.datasets.images.pixels import Image, is_mask, resized, transformed
from trainwright.errors import DataError, InputError
from trainwright.require import import_path
from trainwright.types import NO_LABEL

Random = np.random.Generator
Change = Callable[[Image, Random | None], Image]
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue (ITU-R BT.601)
_TRIES = 10  # of a crop or a rectangle that must fit


def changes(listed: list[Any]) -> list[Change]:
    """Return the transforms of single images, in their order.

    Args:
        listed: `data.transforms`.

    Raises:
        DataError: A function of the user's cannot be imported.
    """
    return [_MAKERS[type(one)](one) for one in listed if is_of_single_images(one)]


def is_of_single_images(section: Any) -> bool:
    """Return whether an item of `data.transforms` is a change that `changes` returns."""
    return type(section) in _MAKERS


def sizes_outside_training(listed: list[Any]) -> list[dict[str, Any]]:
    """Return the changes of size outside of training, in their order, as plain values.

    They are `{"resize": SIDE or [HEIGHT, WIDTH], "interpolation": NAME}` and `{"crop": [HEIGHT, WIDTH]}`, of
    the middle; all other transforms leave images of bytes as they are.
    """
    steps: list[dict[str, Any]] = []
    for one in listed:
        if isinstance(one, sections.Resize):
            steps.append({"resize": one.size, "interpolation": one.interpolation})
        elif isinstance(one, sections.RandomResizedCrop):
            steps.append({"resize": _shown_side(*both_sides(one.size)), "interpolation": "bilinear"})
        if isinstance(one, sections.CenterCrop | sections.RandomCrop | sections.RandomResizedCrop):
            steps.append({"crop": list(both_sides(one.size))})
    return steps


def as_floats(image: Image) -> Image:
    """Return an image as float32 from 0 to 1."""
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def _like(floats: Image, image: Image) -> Image:
    """Return float32 from 0 to 1 in the dtype of an image."""
    floats = np.clip(floats, 0, 1)
    return (floats * 255 + 0.5).astype(np.uint8) if image.dtype == np.uint8 else floats


def both_sides(size: Any) -> tuple[int, int]:
    """Return (height, width) of a size in a config."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


# -- size and place


def resize_shorter(image: Image, side: int, interpolation: str = "bilinear") -> Image:
    """Return an image whose shorter side has a length, with the same aspect ratio."""
    height, width = image.shape[:2]
    if height <= width:
        return resized(image, side, int(side * width / height), interpolation)
    return resized(image, int(side * height / width), side, interpolation)


def _resize(section: sections.Resize) -> Change:
    def change(image: Image, random: Random | None) -> Image:  # noqa: ARG001 - one form for all
        if isinstance(section.size, int):
            return resize_shorter(image, section.size, section.interpolation)
        return resized(image, *both_sides(section.size), section.interpolation)

    return change


def _padded(image: Image, top: int, left: int, bottom: int, right: int) -> Image:
    if not (top or left or bottom or right):
        return image
    border = NO_LABEL if is_mask(image) else 0
    return np.pad(image, ((top, bottom), (left, right), (0, 0)), constant_values=border)


def _large_enough(image: Image, height: int, width: int) -> Image:
    """Return an image of at least this size, by a black border if needed."""
    rows, columns = max(0, height - image.shape[0]), max(0, width - image.shape[1])
    return _padded(image, rows // 2, columns // 2, rows - rows // 2, columns - columns // 2)


def center_crop(image: Image, size: Any) -> Image:
    """Crop an image to its center."""
    height, width = both_sides(size)
    image = _large_enough(image, height, width)
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def _center_crop(section: sections.CenterCrop) -> Change:
    return lambda image, random: center_crop(image, section.size)  # noqa: ARG005


def _random_crop(section: sections.RandomCrop) -> Change:
    def change(image: Image, random: Random | None) -> Image:
        if random is None:
            return center_crop(image, section.size)
        height, width = both_sides(section.size)
        image = _large_enough(_padded(image, *[section.padding] * 4), height, width)
        top = _below(random, image.shape[0] - height + 1)
        left = _below(random, image.shape[1] - width + 1)
        return image[top : top + height, left : left + width]

    return change


def _shown_side(height: int, width: int) -> int:
    """Return the shorter side of an image that is as large as the mean training crop shows it: 224 of 256."""
    return round(max(height, width) * 256 / 224)


def _random_resized_crop(section: sections.RandomResizedCrop) -> Change:
    height, width = both_sides(section.size)

    def change(image: Image, random: Random | None) -> Image:
        if random is None:
            return center_crop(resize_shorter(image, _shown_side(height, width)), section.size)
        box = _rectangle(image, random, section.scale, section.ratio)
        if box is None:
            return resized(center_crop(image, min(image.shape[:2])), height, width)
        top, left, rows, columns = box
        return resized(image[top : top + rows, left : left + columns], height, width)

    return change


def _rectangle(
    image: Image, random: Random, scale: list[float], ratio: list[float]
) -> tuple[int, int, int, int] | None:
    """Return top, left, height and width of a rectangle at random; None if none of some fits."""
    area = image.shape[0] * image.shape[1]
    for _ in range(_TRIES):
        share = _between(random, *scale) * area
        shape = math.exp(_between(random, math.log(ratio[0]), math.log(ratio[1])))
        height, width = round(math.sqrt(share / shape)), round(math.sqrt(share * shape))
        if 0 < height <= image.shape[0] and 0 < width <= image.shape[1]:
            top = _below(random, image.shape[0] - height + 1)
            return top, _below(random, image.shape[1] - width + 1), height, width
    return None


def _flip(section: sections.HorizontalFlip | sections.VerticalFlip) -> Change:
    axis = 1 if isinstance(section, sections.HorizontalFlip) else 0

    def change(image: Image, random: Random | None) -> Image:
        return np.flip(image, axis) if random is not None and random.random() < section.p else image

    return change


def _rotation(section: sections.Rotation) -> Change:
    def change(image: Image, random: Random | None) -> Image:
        if random is None:
            return image
        return rotated(image, _between(random, -section.degrees, section.degrees))

    return change


def rotated(image: Image, degrees: float) -> Image:
    """Return an image that is turned about its middle, counterclockwise."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return transformed(image, (cos, -sin, 0, sin, cos, 0))


# -- colors


def brighter(image: Image, factor: float) -> Image:
    """Return an image with all values multiplied."""
    return _like(as_floats(image) * np.float32(factor), image)


def contrasted(image: Image, factor: float) -> Image:
    """Return an image whose values move away from the mean gray, or towards it."""
    floats = as_floats(image)
    mean = _gray(floats).mean(dtype=np.float64).astype(np.float32)
    return _like(mean + (floats - mean) * np.float32(factor), image)


def saturated(image: Image, factor: float) -> Image:
    """Return an image whose colors move away from gray, or towards it."""
    if image.shape[2] < 3:
        return image
    floats = as_floats(image).copy()
    gray = _gray(floats)[:, :, None]
    floats[:, :, :3] = gray + (floats[:, :, :3] - gray) * np.float32(factor)
    return _like(floats, image)


def _gray(floats: Image) -> Image:
    """Return (height, width) float32."""
    return floats[:, :, :3] @ _GRAY if floats.shape[2] >= 3 else floats[:, :, 0]


def _color_jitter(section: sections.ColorJitter) -> Change:
    steps: list[tuple[float, Callable[[Image, float], Image]]] = [
        (section.brightness, brighter),
        (section.contrast, contrasted),
        (section.saturation, saturated),
    ]

    def change(image: Image, random: Random | None) -> Image:
        for most, function in steps:
            if random is not None and most:
                image = function(image, 1 + _between(random, -most, most))
        return image

    return change


def _random_erasing(section: sections.RandomErasing) -> Change:
    def change(image: Image, random: Random | None) -> Image:
        if random is None or random.random() >= section.p:
            return image
        box = _rectangle(image, random, section.scale, section.ratio)
        if box is None:
            return image
        top, left, rows, columns = box
        erased = image.copy()
        erased[top : top + rows, left : left + columns] = 0
        return erased

    return change


# -- RandAugment: operations with a strength from -1 to 1


def _solarized(image: Image, strength: float) -> Image:
    limit, floats = np.float32(1 - abs(strength)), as_floats(image)
    return _like(np.where(floats >= limit, 1 - floats, floats), image)


def _posterized(image: Image, strength: float) -> Image:
    levels = np.float32(2 ** (8 - round(4 * abs(strength))) - 1)
    return _like(np.floor(as_floats(image) * levels + np.float32(0.5)) / levels, image)


def _stretched(image: Image, strength: float) -> Image:  # noqa: ARG001 - it has none
    floats = as_floats(image)
    low, high = floats.min(axis=(0, 1)), floats.max(axis=(0, 1))
    return _like((floats - low) / np.where(high > low, high - low, 1), image)


_MOVING: list[Callable[[Image, float], Image]] = [
    lambda image, strength: rotated(image, 30 * strength),
    lambda image, strength: transformed(image, (1, 0.3 * strength, 0, 0, 1, 0)),
    lambda image, strength: transformed(image, (1, 0, 0, 0.3 * strength, 1, 0)),
    lambda image, strength: transformed(image, (1, 0, 0.45 * strength * image.shape[1], 0, 1, 0)),
    lambda image, strength: transformed(image, (1, 0, 0, 0, 1, 0.45 * strength * image.shape[0])),
]
_OPERATIONS = [
    *_MOVING,
    lambda image, strength: brighter(image, 1 + 0.9 * strength),
    lambda image, strength: contrasted(image, 1 + 0.9 * strength),
    lambda image, strength: saturated(image, 1 + 0.9 * strength),
    _solarized,
    _posterized,
    _stretched,
]


def _rand_augment(section: sections.RandAugment) -> Change:
    def change(image: Image, random: Random | None) -> Image:
        if random is None:
            return image
        for _ in range(section.num_ops):
            operation = _OPERATIONS[_below(random, len(_OPERATIONS))]
            sign = 1 if random.random() < 0.5 else -1
            if not is_mask(image) or operation in _MOVING:
                image = operation(image, sign * section.magnitude / 30)
        return image

    return change


def _own(section: sections.CustomTransform) -> Change:
    try:
        function = import_path(section.function)
    except InputError as error:
        raise DataError(f"data.transforms: {error}") from error
    if not callable(function) or isinstance(function, type):
        raise DataError(
            f"data.transforms: {section.function} is not a function of (image, rng); call it in one of yours"
        )

    def change(image: Image, random: Random | None) -> Image:
        if random is None:
            return image
        try:
            made = np.asarray(function(image.copy(), random, **section.params))
        except Exception as error:
            raise DataError(
                f"data.transforms: {section.function} failed on an image of shape {image.shape}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if made.ndim != 3 or made.dtype.kind not in "uf" or made.shape[2] != image.shape[2]:
            raise DataError(
                f"data.transforms: {section.function} returned {made.dtype} of shape {made.shape} for "
                f"{image.dtype} {image.shape}; return (height, width, channels), uint8, or floats from 0 to 1"
            )
        return made if made.dtype == np.uint8 else made.astype(np.float32)

    return change


def _below(random: Random, number: int) -> int:
    """Return a whole number from 0 to `number` - 1."""
    return min(int(random.random() * number), number - 1)


def _between(random: Random, low: float, high: float) -> float:
    return low + (high - low) * float(random.random())


_MAKERS: Mapping[type, Callable[[Any], Change]] = {
    sections.Resize: _resize,
    sections.CenterCrop: _center_crop,
    sections.RandomCrop: _random_crop,
    sections.RandomResizedCrop: _random_resized_crop,
    sections.HorizontalFlip: _flip,
    sections.VerticalFlip: _flip,
    sections.Rotation: _rotation,
    sections.ColorJitter: _color_jitter,
    sections.RandAugment: _rand_augment,
    sections.RandomErasing: _random_erasing,
    sections.CustomTransform: _own,
}
