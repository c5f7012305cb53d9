"""Masks of images: a class for each pixel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainwright.datasets.base import Draw, Reading, unnoted
from trainwright.datasets.images.pixels import MASK, Image
from trainwright.datasets.images.preparation import files_of
from trainwright.datasets.images.sources import Images
from trainwright.datasets.images.split import Pipeline, stacked
from trainwright.datasets.samples.threads import THREADS
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.tasks.support.masks import class_indices, class_numbers, classes_of
from trainwright.types import FEATURES, TARGET, Array, Batch, Ids

log = logging.getLogger("trainwright")


class Masks:
    """Masks by position, as `Images` of class indices, (height, width, 1) int16; NO_LABEL does not count.

    Args:
        files: The files of masks, decoded to numbers.
        values: The number of each class in the files, ascending.
        ignored: The number of pixels that do not count.
    """

    def __init__(self, files: Images, values: Sequence[int], ignored: int | None) -> None:
        self.names = files.names
        self._files, self._values, self._ignored = files, values, ignored

    def image(self, position: int) -> Image:
        """Return a mask.

        Raises:
            CorruptImageError: It cannot be decoded.
            DataError: It holds a number that is no class.
        """
        mask = self._files.image(position)
        try:
            return class_indices(mask, self._values, self._ignored).astype(MASK)
        except DataError as error:
            raise DataError(
                f"{self.names[position]}: {error}; the classes are {listed(self._values)} "
                "(data.ignore_index: pixels that do not count)"
            ) from error

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the SHA-256 of the file at each position."""
        return self._files.hashes(positions)

    def files(self, positions: Sequence[int]) -> list[str]:
        """Return the path of the file at each position."""
        return self._files.files(positions)


def masks_of(images: Sequence[Path], root: Path, folder: Path) -> list[Path]:
    """Return the masks of images: files with the same relative paths in another folder, whatever the suffix.

    Args:
        images: The images.
        root: The folder that their paths are relative to.
        folder: The folder of masks.

    Raises:
        DataError: An image has no mask, or several.
    """
    named: dict[Path, list[Path]] = {}
    for file in files_of(folder) or []:
        named.setdefault(file.relative_to(folder).with_suffix(""), []).append(file)
    masks = []
    for image in images:
        found = named.get(image.relative_to(root).with_suffix(""), [])
        if len(found) != 1:
            what = f"several: {listed(found)}" if found else "none"
            place = folder / image.relative_to(root).with_suffix("")
            raise DataError(f"{image} must have one mask {place}.*, but has {what}")
        masks += found
    if len(named) > len(images):
        log.warning("data.masks: %d masks in %s belong to no image", len(named) - len(images), folder)
    return masks


def found_classes(files: Images, positions: Sequence[int], ignored: int | None) -> list[int]:
    """Return the numbers in masks, ascending, without the number of pixels that do not count."""
    found = THREADS.map(lambda position: class_numbers(files.image(position)).tolist(), positions)
    return classes_of({number for numbers in found for number in numbers}, ignored)


class MaskedImages(NamedTuple):
    """Images and their masks, at the same positions; the masks hold positions in `classes`."""

    images: Images
    masks: Images
    classes: Sequence[int]
    ignored: int | None


class MaskSplit:
    """A `SampleSplit` of images and masks, which are cut, moved and resized alike.

    Args:
        source: The images and masks.
        positions: (rows,) those of this split.
        pipeline: The transforms.
        reading: How samples are read.
    """

    def __init__(self, source: MaskedImages, positions: Ids, pipeline: Pipeline, reading: Reading) -> None:
        self._source = source
        self._images, self._masks = source.images, source.masks
        self.positions = positions
        self._pipeline = pipeline
        self.reading = reading

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def labels_per_row(self) -> int | None:
        """The number of pixels of a mask; None if some may not count."""
        if self._source.ignored is not None or self._pipeline.may_pad:
            return None
        return int(self.labels(np.zeros(1, np.int64), Draw(0)).size)

    def take(self, ids: Ids) -> Batch:
        """Return the samples `ids` as they are outside of training."""
        return self.read(ids, Draw(0))

    def read(self, ids: Ids, draw: Draw, note: Callable[[int], None] = unnoted) -> Batch:
        """Return images, (rows, channels, height, width) float32, and masks, (rows, height, width) int64.

        Raises:
            DataError: A file cannot be decoded, or sizes differ.
        """

        def one(at: tuple[int, int]) -> tuple[Array, Array]:
            index, sample = at
            note(sample)
            image, mask = (source.image(self._at(sample)) for source in (self._images, self._masks))
            if image.shape[:2] != mask.shape[:2]:
                raise DataError(
                    f"{self._masks.names[self._at(sample)]} has {_size(mask)} pixels, but its image "
                    f"{self._images.names[self._at(sample)]} {_size(image)}"
                )
            return self._pipeline.with_mask(image, mask, _seed(sample, index, draw))

        read = THREADS.map(one, enumerate(ids.tolist()))
        names = [self._images.names[self._at(sample)] for sample in ids.tolist()]
        return {
            FEATURES: stacked([image for image, _ in read], names),
            TARGET: np.stack([mask for _, mask in read]).astype(np.int64),
        }

    def labels(self, ids: Ids, draw: Draw) -> Array:
        """Return the masks that `read` returns, without decoding the images."""

        def one(at: tuple[int, int]) -> Array:
            index, sample = at
            return self._pipeline.of_mask(self._masks.image(self._at(sample)), _seed(sample, index, draw))

        return np.stack(THREADS.map(one, enumerate(ids.tolist()))).astype(np.int64)

    def _at(self, sample: int) -> int:
        return int(self.positions[sample])

    @property
    def files_read(self) -> list[str]:
        """The files of the images and masks; see `ReadFromFiles`."""
        positions = self.positions.tolist()
        return [*self._images.files(positions), *self._masks.files(positions)]

    def fingerprint(self) -> str:
        """Return the digest over the contents of the files, and the meaning of the numbers in masks."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        positions = self.positions.tolist()
        source = self._source
        hashes = [source.images.hashes(positions), source.masks.hashes(positions)]
        return sha256_json([*hashes, list(source.classes), source.ignored])


def _seed(sample: int, index: int, draw: Draw) -> int | None:
    """Return the seed of a sample's random numbers; None outside of training."""
    return None if draw.epoch is None else draw.of(sample, index)


def _size(image: Image) -> str:
    return " x ".join(map(str, image.shape[:2]))
