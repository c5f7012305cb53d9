"""A split of images, which are decoded and transformed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from trainwright.config import transforms as sections
from trainwright.datasets.base import Draw, Reading, unnoted
from trainwright.datasets.images import transforms
from trainwright.datasets.images.pixels import Image
from trainwright.datasets.images.sources import Images
from trainwright.datasets.samples.threads import THREADS
from trainwright.digest import array_buffer, digest, sha256_json, tensor_records
from trainwright.errors import DataError
from trainwright.order import stream_seed
from trainwright.types import FEATURES, TARGET, Array, Batch, Ids

_PARTNER = 1  # the stream of the image that another one is mixed with
_OF_TRANSFORM = 2  # the first of the streams of the transforms of an image with a mask
_MOST_MEASURED = 10_000  # images whose mean and standard deviation are computed
Mixing = sections.Mixup | sections.Cutmix


class Pipeline:
    """The transforms of images, in their order; the last one scales them and puts the channels first.

    Args:
        listed: `data.transforms`.
        mean: Of each channel, for `normalize`; None: not measured yet, or there is no `normalize`.
        std: The same.
    """

    def __init__(
        self, listed: Sequence[Any], mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        self.listed = list(listed)
        self.mean, self.std = mean, std
        self.mixing: list[Mixing] = [one for one in listed if isinstance(one, Mixing)]
        self._changes = transforms.changes(self.listed)
        alone = [one for one in self.listed if transforms.is_of_single_images(one)]
        self._moves = [one.moves for one in alone]  # for each change
        self.may_pad = any(one.may_pad for one in alone)

    @property
    def normalizes(self) -> sections.Normalize | None:
        """The section `normalize`, if there is one."""
        return next((one for one in self.listed if isinstance(one, sections.Normalize)), None)

    @property
    def has_own(self) -> bool:
        """True where there is a function of the user's."""
        return any(isinstance(one, sections.CustomTransform) for one in self.listed)

    def __call__(self, image: Image, random: transforms.Random | None = None) -> Array:
        """Return an image as (channels, height, width) float32; without `random` as outside of training."""
        for change in self._changes:
            image = change(image, random)
        return self._scaled(image)

    def with_mask(self, image: Image, mask: Image, seed: int | None) -> tuple[Array, Array]:
        """Return an image as (channels, height, width) float32, and its mask as (height, width).

        Each transform has random numbers of its own, so that a mask can also be changed alone.

        Args:
            image: The image.
            mask: Its mask, (height, width, 1).
            seed: Of the sample's random numbers; None: outside of training.

        Raises:
            DataError: A function of the user's has changed the size of the image.
        """
        for i, change in enumerate(self._changes):
            image = change(image, _stream(seed, i))
        changed = self.of_mask(mask, seed)
        if image.shape[:2] != changed.shape:
            raise DataError(
                f"data.transforms: an image has {image.shape[:2]} pixels, and its mask {changed.shape}: "
                "functions of your own change the image alone, and must leave its size as it is"
            )
        return self._scaled(image), changed

    def of_mask(self, mask: Image, seed: int | None) -> Array:
        """Return the mask that `with_mask` returns."""
        for i, change in enumerate(self._changes):
            if self._moves[i]:
                mask = change(mask, _stream(seed, i))
        return mask[:, :, 0]

    def _scaled(self, image: Image) -> Array:
        """Return an image as (channels, height, width) float32, normalized."""
        planes = np.ascontiguousarray(image.transpose(2, 0, 1))  # NumPy computes along the last axis
        floats = transforms.as_floats(planes)
        if self.mean is not None and self.std is not None:
            mean, std = (np.array(one, np.float32)[:, None, None] for one in (self.mean, self.std))
            floats = floats - mean
            floats /= std
        return floats

    def measured(self, images: Images, positions: Sequence[int]) -> Pipeline:
        """Return the same transforms with the mean and standard deviation that `normalize` needs.

        Args:
            images: The images.
            positions: Those of the training split; at most 10,000 of them, spread evenly, are measured.
        """
        section = self.normalizes
        if section is None:
            return self
        if section.mean is not None:
            return Pipeline(self.listed, section.mean, section.std)
        if len(positions) > _MOST_MEASURED:
            positions = [positions[i] for i in np.linspace(0, len(positions) - 1, _MOST_MEASURED).astype(int)]
        plain = Pipeline(self.listed)

        def sums(position: int) -> Array:
            values = plain(images.image(position)).astype(np.float64)  # (channels, height, width)
            one, two = values.sum(axis=(1, 2)), (values * values).sum(axis=(1, 2))
            return np.stack([np.full_like(one, values[0].size), one, two])  # (3, channels)

        count, one, two = np.sum(np.stack(THREADS.map(sums, positions)), axis=0)  # in order, thus exact
        mean = one / count
        std = np.sqrt(np.maximum(two / count - mean * mean, 0))
        return Pipeline(self.listed, mean.tolist(), [value or 1.0 for value in std.tolist()])


class ImageSplit:
    """A `SampleSplit` of images.

    Args:
        images: The images of the source.
        positions: (rows,) those of this split.
        known: The arrays that are known without reading samples: the targets, and weights.
        pipeline: The transforms.
        reading: How samples are read.
        classes: The number of classes, whose indices are the targets; 0 where targets are values.
    """

    def __init__(
        self,
        images: Images,
        positions: Ids,
        known: Batch,
        pipeline: Pipeline,
        reading: Reading,
        classes: int = 0,
    ) -> None:
        self._images = images
        self.positions = positions
        self.known = known
        self._pipeline = pipeline
        self._reading = reading
        self._classes = classes

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def reading(self) -> Reading:
        """The way in which the samples are read."""
        return self._reading

    @property
    def mixes(self) -> bool:
        """True where training samples are mixed with others."""
        return bool(self._pipeline.mixing)

    def with_known(self, known: Batch) -> ImageSplit:
        """Return the same samples with other known arrays, such as weights."""
        return ImageSplit(self._images, self.positions, known, self._pipeline, self._reading, self._classes)

    def finished(self, pipeline: Pipeline, classes: int, reading: Reading) -> ImageSplit:
        """Return the same samples with the measured transforms, and as the task has them read."""
        return ImageSplit(self._images, self.positions, self.known, pipeline, reading, classes)

    def with_pipeline(self, pipeline: Pipeline) -> ImageSplit:
        """Return the same samples with the transforms of another model."""
        return self.finished(pipeline, self._classes, self._reading)

    def take(self, ids: Ids) -> Batch:
        """Return the samples `ids` as in evaluation."""
        return self.read(ids, Draw(0))

    def read(self, ids: Ids, draw: Draw, note: Callable[[int], None] = unnoted) -> Batch:
        """Return the samples `ids`: images (rows, channels, height, width) float32, and what is known.

        Raises:
            DataError: An image cannot be decoded, or the images differ in size.
        """

        def one(at: tuple[int, int]) -> tuple[Array, Array | None]:
            index, sample = at
            note(sample)
            return self._sample(sample, None if draw.epoch is None else draw.of(sample, index))

        read = THREADS.map(one, enumerate(ids.tolist()))
        batch = {name: array[ids] for name, array in self.known.items()}
        if draw.epoch is not None and self.mixes:
            batch[TARGET] = np.stack([target for _, target in read if target is not None])
        return {FEATURES: stacked([image for image, _ in read], self._names(ids)), **batch}

    def _sample(self, sample: int, seed: int | None) -> tuple[Array, Array | None]:
        """Return an image, (channels, height, width), and its target if images are mixed.

        Args:
            sample: Its position.
            seed: Of its random numbers; None: outside of training.
        """
        if seed is None:
            return self._pipeline(self._image(sample)), None
        random = generator(seed)
        image = self._pipeline(self._image(sample), random)
        if not self._pipeline.mixing:
            return image, None
        target = self._target(sample)
        listed = self._pipeline.mixing
        mixing = listed[0] if len(listed) == 1 else listed[int(random.integers(len(listed)))]
        if random.random() < mixing.p:
            other = min(int(random.random() * len(self)), len(self) - 1)
            partner = self._pipeline(self._image(other), generator(stream_seed(seed, _PARTNER)))
            image, share = mixed(image, partner, mixing, random)
            target = share * target + (1 - share) * self._target(other)
        return image, np.asarray(target, np.float32 if self._classes else np.float64)

    def _names(self, ids: Ids) -> list[str]:
        return [self._images.names[position] for position in self.positions[ids].tolist()]

    def _image(self, sample: int) -> Image:
        return self._images.image(int(self.positions[sample]))

    def _target(self, sample: int) -> Array:
        """Return the target of a sample: the probabilities of the classes, (classes,), or its values."""
        target = np.asarray(self.known[TARGET][sample])
        return np.eye(self._classes, dtype=np.float32)[target] if self._classes else target

    @property
    def files_read(self) -> list[str]:
        """The files that the images are read from; see `ReadFromFiles`."""
        return self._images.files(self.positions.tolist())

    def fingerprint(self) -> str:
        """Return the digest over the contents of the image files, and the properties of the samples."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        known = digest(tensor_records(array_buffer(name, array) for name, array in self.known.items()))
        return sha256_json([self._images.hashes(self.positions.tolist()), known])


def stacked(images: Sequence[Array], names: Sequence[str]) -> Array:
    """Return images of one size as (rows, channels, height, width).

    Raises:
        DataError: They have several sizes; names two of them.
    """
    for name, image in zip(names, images, strict=True):
        if image.shape != images[0].shape:
            sizes = [" x ".join(map(str, one.shape[1:])) for one in (images[0], image)]
            raise DataError(
                f"{names[0]} has {sizes[0]} pixels, but {name} {sizes[1]}: give them one size "
                "with data.transforms, such as {type: resize, size: [64, 64]}, or resize and center_crop"
            )
    return np.stack(images)


def _stream(seed: int | None, index: int) -> transforms.Random | None:
    """Return the generator of a transform of a sample; None outside of training."""
    return None if seed is None else generator(stream_seed(seed, _OF_TRANSFORM + index))


def generator(seed: int) -> transforms.Random:
    """Return the generator of a 64-bit seed."""
    return np.random.Generator(np.random.Philox(key=seed))


def mixed(
    image: Array, partner: Array, mixing: Mixing, random: transforms.Random
) -> tuple[Array, np.float32]:
    """Return a blend of two images, (channels, height, width), and the share of the first."""
    if image.shape != partner.shape:
        raise DataError(
            f"data.transforms: {mixing.type} mixes images of one size, but they have {image.shape[1:]} and "
            f"{partner.shape[1:]} pixels; put a resize or a crop before it"
        )
    share = float(random.beta(mixing.alpha, mixing.alpha))
    if isinstance(mixing, sections.Mixup):
        return np.float32(share) * image + np.float32(1 - share) * partner, np.float32(share)
    return _with_rectangle(image, partner, share, random)


def _with_rectangle(
    image: Array, partner: Array, share: float, random: transforms.Random
) -> tuple[Array, np.float32]:
    """Return an image with a rectangle of its partner, 1 - `share` of the area, and the share that stays."""
    height, width = image.shape[1:]
    side = np.sqrt(1 - share)
    rows, columns = int(height * side), int(width * side)
    y, x = int(random.random() * height), int(random.random() * width)
    top, left = max(0, y - rows // 2), max(0, x - columns // 2)
    bottom, right = min(height, y + rows - rows // 2), min(width, x + columns - columns // 2)
    pasted = image.copy()
    pasted[:, top:bottom, left:right] = partner[:, top:bottom, left:right]
    return pasted, np.float32(1 - (bottom - top) * (right - left) / (height * width))
