"""The shapes of images: which axis holds the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Layout = Literal["auto", "channels_first", "channels_last"]

_CHANNELS = (1, 2, 3, 4)  # an axis of this length holds channels, if only one of the outer two is so short


class ImageSize(NamedTuple):
    """The size of an image."""

    channels: int
    height: int
    width: int


def is_channels_last(shape: Sequence[int], layout: Layout = "auto") -> bool:
    """Return whether the last axis of an image holds its channels.

    Args:
        shape: (height, width), which has no such axis; or three axes.
        layout: Which one holds them; auto: the one that has 1 to 4, if the other has more.

    Raises:
        ValueError: This is no shape of an image, or `auto` cannot tell.
    """
    if len(shape) not in (2, 3):
        raise ValueError(
            f"samples of shape {tuple(shape)} are not images: (height, width), (channels, height, width) or "
            "(height, width, channels); for flat rows, set image_shape, such as [8, 8]"
        )
    if len(shape) == 2:
        return False
    if layout != "auto":
        return layout == "channels_last"
    first, last = shape[0] in _CHANNELS, shape[2] in _CHANNELS
    if first == last:
        raise ValueError(
            f"samples of shape {tuple(shape)}: either axis may hold the channels; set layout to "
            "channels_first or channels_last"
        )
    return last


def size_of(shape: Sequence[int], layout: Layout = "auto") -> ImageSize:
    """Return the size of images of a shape; arguments and errors are those of `is_channels_last`."""
    if is_channels_last(shape, layout):
        return ImageSize(shape[2], shape[0], shape[1])
    return ImageSize(*((1, *shape) if len(shape) == 2 else shape))
