"""The sources of images: files, bytes in a table, or arrays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from trainwright.datasets.images.pixels import Image, Mode, decode
from trainwright.datasets.samples.file_hashes import hashes_of
from trainwright.datasets.samples.files import read_bytes
from trainwright.digest import sha256_bytes
from trainwright.process.machine import available_memory
from trainwright.types import Ids

log = logging.getLogger("trainwright")
_CACHE_SHARE = 0.5  # of the available memory, for decoded images
_ADVICE = "remove or repair it, or set data.on_corrupt: skip"


class Images(Protocol):
    """Images by position; any thread may read them."""

    names: Sequence[str]  # of the images, for messages and tables

    def image(self, position: int) -> Image:
        """Return an image, (height, width, channels) uint8 or float32 from 0 to 1.

        Raises:
            CorruptImageError: It cannot be decoded.
        """

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the SHA-256 (hex) of the contents of images."""

    def files(self, positions: Sequence[int]) -> list[str]:
        """Return the files that images are read from; none if they are in memory."""


class RawImages:
    """Images of a split before they are transformed, decoded when they are taken.

    Args:
        images: The images of the source.
        positions: (rows,) those of the split.
    """

    def __init__(self, images: Images, positions: Ids) -> None:
        self._images, self._positions = images, positions

    def __len__(self) -> int:
        return len(self._positions)

    def take(self, ids: Ids) -> list[Image]:
        """Return the images `ids`."""
        return [self._images.image(position) for position in self._positions[ids].tolist()]


class FileImages:
    """Image files.

    Args:
        paths: The files: paths or URLs.
        mode: The colors to decode to; None for masks.
    """

    def __init__(self, paths: Sequence[str], mode: Mode | None) -> None:
        self.names = paths
        self._mode = mode

    def image(self, position: int) -> Image:
        """Decode a file; see `Images`."""
        path = self.names[position]
        return decode(read_bytes(path), self._mode, path, _ADVICE)

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the hashes of files; those that have not changed since they were hashed are not read."""
        return hashes_of(self.files(positions))

    def files(self, positions: Sequence[int]) -> list[str]:
        """Return the files of images."""
        return [self.names[position] for position in positions]


class ByteImages:
    """Encoded images in memory, as columns of Parquet files hold them.

    Args:
        contents: The contents of image files.
        names: Their names, for messages.
        mode: The colors to decode to; None for masks.
    """

    def __init__(self, contents: Sequence[bytes], names: Sequence[str], mode: Mode | None) -> None:
        self.names = names
        self._contents = contents
        self._mode = mode

    def image(self, position: int) -> Image:
        """Decode an image; see `Images`."""
        return decode(self._contents[position], self._mode, self.names[position], _ADVICE)

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the hashes of the encoded images."""
        return [sha256_bytes(self._contents[position]) for position in positions]

    def files(self, positions: Sequence[int]) -> list[str]:  # noqa: ARG002 - as in `Images`
        """Return no files."""
        return []


class CachedImages:
    """A cache of decoded images, which takes up to half of the available memory."""

    def __init__(self, images: Images) -> None:
        self.names = images.names
        self._images = images
        self._kept: dict[int, Image] = {}
        self._left = int((available_memory() or 1 << 33) * _CACHE_SHARE)
        self._is_full = False

    def image(self, position: int) -> Image:
        """Return an image; see `Images`."""
        kept = self._kept.get(position)
        if kept is not None:
            return kept
        image = self._images.image(position)
        if image.nbytes <= self._left:
            self._left -= image.nbytes
            self._kept[position] = image
        elif not self._is_full:
            self._is_full = True
            log.info(
                "data.cache: %s images are kept in memory, half of which is used now; the "
                "others are decoded each time",
                f"{len(self._kept):,}",
            )
        return image

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the hashes of the images as they were."""
        return self._images.hashes(positions)

    def files(self, positions: Sequence[int]) -> list[str]:
        """Return the files of images, which are read at least once."""
        return self._images.files(positions)
